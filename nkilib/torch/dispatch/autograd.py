"""The derivative of an operator, which another operator computes: registered with PyTorch, or in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.operator import NAMESPACE, Call, Operator

# From the call of the backward and which inputs of the forward need a gradient: gradients by the name of the input.
Others = Callable[[Call, Mapping[str, bool]], Mapping[str, Tensor | None]]


def no_others(call: Call, needed: Mapping[str, bool]) -> Mapping[str, Tensor | None]:
    """Of an operator all of whose gradients its backward computes."""
    return {}


@dataclass(frozen=True)
class Derivative:
    """How the results of one operator are differentiated by another.

    Attributes:
        forward: whose results are differentiated.
        backward: its inputs are named as inputs and results of the forward, which autograd saves, or ``grad_<result>``;
            its outputs are ``grad_<input>``. Results that it takes no gradient of are constants.
        others: gradients of further inputs, which something else computes.
    """

    forward: Operator
    backward: Operator
    others: Others = no_others

    def apply(self, inplace: bool, *tensors: Tensor | None, **options: Any) -> Any:
        """The forward; if ``inplace``, its backward writes the gradient over the first input."""
        if inplace:
            function: Callable[..., Any] = _InPlace.apply
            return function(self, options, *tensors)
        return _operator(self.forward, False)(*tensors, **options)

    def save(self, ctx: Any, call: Call, results: Sequence[Tensor], needed: Mapping[str, bool]) -> None:
        """Keep what the backward takes, and tell autograd which results are constants."""
        by_name = {**call.tensors, **dict(zip((each.name for each in self.forward.outputs), results, strict=True))}
        given = {name: tensor for name, tensor in by_name.items() if tensor is not None}
        ctx.save_for_backward(
            *(
                each.saved(call, given) if each.saved else by_name.get(each.name)
                for each in self.backward.inputs
                if not each.name.startswith("grad_")
            )
        )
        ctx.options = call.options
        self.mark_constants(ctx, call, results, needed)

    def mark_constants(self, ctx: Any, call: Call, results: Sequence[Tensor], needed: Mapping[str, bool]) -> None:
        """Tell autograd which of the results, the first of the forward's, have no derivative."""
        taken = {each.name for each in self.backward.inputs}
        constants = []
        for output, result in zip(self.forward.outputs, results, strict=False):
            by = needed if output.depends_on is None else output.depends_on
            is_needed = any(needed[name] for name in by)
            if f"grad_{output.name}" not in taken or not output.is_given(call) or not is_needed:
                constants.append(result)
        ctx.mark_non_differentiable(*constants)
        # A result that nobody uses has no gradient; the kernel skips what it is not given.
        ctx.set_materialize_grads(False)

    def upstream(self, call: Call, grads: Sequence[Tensor | None]) -> dict[str, Tensor]:
        """The gradients of results that the backward takes, by its names.

        A compiled graph hands over zeros for what has no gradient, of length 0 for a result that there is not.
        """
        taken = {each.name for each in self.backward.inputs}
        return {
            f"grad_{output.name}": grad
            for output, grad in zip(self.forward.outputs, grads, strict=False)
            if grad is not None and f"grad_{output.name}" in taken and output.is_given(call)
        }

    def filled(self, upstream: Mapping[str, Tensor], call: Call) -> dict[str, Tensor | None]:
        """With zeros for a gradient that the backward cannot do without."""
        outputs = {f"grad_{output.name}": output for output in self.forward.outputs}
        found: dict[str, Tensor | None] = {}
        for each in self.backward.inputs:
            if each.name in outputs:
                missing = None if each.is_optional else outputs[each.name].new(call, 0.0)
                found[each.name] = upstream.get(each.name, missing)
        return found

    def gradients(
        self, ctx: Any, grads: Sequence[Tensor | None], needs: Sequence[bool], inplace: bool
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs of the forward, None for those not asked for.

        Tensors are unpacked once: under ``torch.utils.checkpoint`` they are there once.
        """
        saved = [each.name for each in self.backward.inputs if not each.name.startswith("grad_")]
        call = Call(dict(zip(saved, ctx.saved_tensors, strict=True)), ctx.options)
        upstream, needed = self.upstream(call, grads), self.needed(needs)
        found = dict(self.others(call.extended(upstream), needed))  # before anything is overwritten
        named = [each.name.removeprefix("grad_") for each in self.backward.outputs]
        if upstream and any(needed[name] for name in named):
            results = self.run(call.extended(self.filled(upstream, call)), inplace)
            found.update(zip(named, results, strict=True))
        return tuple(found.get(each.name) if needed[each.name] else None for each in self.forward.inputs)

    def needed(self, needs: Sequence[bool]) -> dict[str, bool]:
        """Which inputs need a gradient; the dispatcher leaves out those at the end that are None."""
        names = [each.name for each in self.forward.inputs]
        return dict(zip(names, [*needs, *[False] * len(names)], strict=False))

    def run(self, call: Call, inplace: bool) -> tuple[Tensor, ...]:
        """The results of the backward, with those of its options that are the forward's too."""
        keywords = {each.name: call.options[each.name] for each in self.backward.keywords if each.name in call.options}
        first, *others = (call.tensors[each.name] for each in self.backward.inputs)
        if not inplace:
            return as_tuple(_operator(self.backward, False)(first, *others, **keywords))
        overwritten = call.first.detach()  # the same memory and version
        return overwritten, *as_tuple(_operator(self.backward, True)(overwritten, *others, **keywords))


def differentiate(forward: Operator, backward: Operator, others: Others = no_others) -> Derivative:
    """Register the derivative of ``forward``, and that ``backward`` has none."""
    derivative = Derivative(forward, backward, others)
    torch.library.register_autograd(
        forward.qualified(),
        lambda ctx, *grads: derivative.gradients(ctx, grads, ctx.needs_input_grad, inplace=False),
        setup_context=partial(_setup, derivative),
    )
    torch.library.register_autograd(backward.qualified(), partial(refuse_second, backward))
    return derivative


def _setup(
    derivative: Derivative, ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any
) -> None:
    call = derivative.forward.call(inputs, keyword_only_inputs)
    derivative.save(ctx, call, as_tuple(output), derivative.needed(ctx.needs_input_grad))


def _operator(operator: Operator, overwrites: bool) -> Any:
    return getattr(getattr(torch.ops, NAMESPACE), operator.qualified(overwrites).removeprefix(f"{NAMESPACE}::"))


def refuse_second(backward: Operator, ctx: Any, *grads: Tensor | None) -> NoReturn:
    """The backward of a gradient: an error that names what has derivatives of every order."""
    raise NotImplementedError(
        f"{backward.qualified()}: the gradient of the loss has no derivative here; for second derivatives use "
        f"{backward.instead}"
    )


def refuse_graph_of_inplace(backward: Operator) -> None:
    """Refuse ``create_graph=True`` in a backward in place: a gradient without a graph would be taken for a constant."""
    if torch.is_grad_enabled():
        refuse_second(backward, None)


class OnceDifferentiable(torch.autograd.Function):
    """A tensor as it is, of a gradient that takes other tensors for constants: no derivative by it.

    Arguments of ``apply``: the operator to name, and the tensor.
    """

    @staticmethod
    def forward(ctx: Any, backward: Operator, tensor: Tensor) -> Tensor:
        ctx.backward_operator = backward
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second(ctx.backward_operator, ctx)


class _InPlace(torch.autograd.Function):
    """The forward operator, whose backward writes the gradient over the first input.

    ``torch.library.register_autograd`` refuses an operator that mutates. The operator declares what it mutates, so the
    version of the input changes: whoever saved it for a backward of their own gets PyTorch's error, and so does a
    second backward here.
    """

    @staticmethod
    def forward(ctx: Any, derivative: Derivative, options: dict[str, Any], *tensors: Tensor | None) -> Any:
        returned = _operator(derivative.forward, False)(*tensors, **options)
        needed = derivative.needed(ctx.needs_input_grad[2:])
        derivative.save(ctx, derivative.forward.call(tensors, options), as_tuple(returned), needed)
        ctx.derivative = derivative
        return returned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph_of_inplace(ctx.derivative.backward)
        of_inputs = ctx.derivative.gradients(ctx, grads, ctx.needs_input_grad[2:], inplace=True)
        return None, None, *of_inputs[: len(ctx.needs_input_grad) - 2]
