# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derivative of an operator, which another operator computes: registered with PyTorch, or in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.native import registrar
from nkilib.torch.dispatch.operator import Call, Operator, Output
from nkilib.torch.dispatch.overlap import refuse_overlap

# From the call of the backward, and which inputs of the forward need a gradient: gradients by name.
Others = Callable[[Call, Mapping[str, bool]], Mapping[str, Tensor | None]]


@dataclass(frozen=True)
class Derivative:
    """How the results of one operator are differentiated by another.

    Attributes:
        forward: whose results are differentiated.
        backward: its inputs are named as inputs and results of the forward, which autograd saves, or ``grad_<result>``;
            its outputs are ``grad_<input>``. Results that it takes no gradient of are constants.
        others: gradients of further inputs, which something else computes.
        adding: does what ``backward`` does, and adds one gradient to the input of the forward that it writes to, where
            the call has that.
        options: of the backward, from the call of the forward, where they are not those of the same names.
    """

    forward: Operator
    backward: Operator
    others: Others | None = None
    adding: Operator | None = None
    options: Callable[[Call], Mapping[str, Any]] | None = None

    def apply(self, inplace: bool, *tensors: Tensor | None, **options: Any) -> Any:
        """The forward; if ``inplace``, its backward writes the gradient over the first input."""
        if inplace:
            names = (each.name for each in self.forward.inputs)
            refuse_overlap(self.forward.name.removesuffix("_forward"), dict(zip(names, tensors, strict=False)))
            function: Callable[..., Any] = _InPlace.apply
            return function(self, options, *tensors)
        first, *_ = tensors
        if first is None:
            raise TypeError(f"{self.forward.qualified()}: {self.forward.inputs[0].name} must be a tensor, got None")
        return self.forward.op(first.device)(*tensors, **options)

    def save(self, ctx: Any, call: Call, returned: Any, needed: Mapping[str, bool]) -> None:
        """Keep what the backward takes, and tell autograd which results are constants."""
        results = dict(zip((each.name for each in self.forward.outputs), as_tuple(returned), strict=True))
        known = {**call.tensors, **results}
        kept = [each for each in self.backward.inputs if not each.name.startswith("grad_")]
        ctx.save_for_backward(*(each.saved(call, results) if each.saved else known[each.name] for each in kept))
        ctx.options = {**call.options, **(self.options(call) if self.options else {})}
        # Not saved: micro-batches between this forward and its backward write to it too.
        ctx.written = {name: call.tensors[name] for name in self.adding.writes} if self.adding else {}
        self.mark_constants(ctx, call, results, needed)

    def mark_constants(self, ctx: Any, call: Call, results: Mapping[str, Tensor], needed: Mapping[str, bool]) -> None:
        """Tell autograd which of the results, by the names of the forward, have no derivative."""
        taken = {each.name for each in self.backward.inputs}
        constants = []
        for output in self.forward.outputs:
            is_needed = any(needed[name] for name in output.depends_on or needed)
            is_constant = f"grad_{output.name}" not in taken or not output.is_given(call) or not is_needed
            if is_constant and output.name in results:
                constants.append(results[output.name])
        ctx.mark_non_differentiable(*constants)
        # A result that nobody uses has no gradient; the kernel skips what it is not given.
        ctx.set_materialize_grads(False)

    def upstream(self, call: Call, grads: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """The gradients of results that the backward takes, by its names; they come by those of the results.

        A compiled graph hands over zeros for what has no gradient, of length 0 for a result that there is not.
        """
        taken = {each.name for each in self.backward.inputs}
        given = {output.name: grads.get(output.name) for output in self.forward.outputs if output.is_given(call)}
        return {f"grad_{name}": grad for name, grad in given.items() if grad is not None and f"grad_{name}" in taken}

    def needed(self, needs: Sequence[bool]) -> dict[str, bool]:
        """Which inputs need a gradient; the dispatcher leaves out those at the end that are None."""
        names = [each.name for each in self.forward.inputs]
        return dict(zip(names, [*needs, *[False] * len(names)], strict=False))

    def gradients(
        self, ctx: Any, grads: Sequence[Tensor | None], needs: Sequence[bool], inplace: bool = False
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs of the forward, None for those not asked for.

        Tensors are unpacked once: under ``torch.utils.checkpoint`` they are there once.
        """
        kept = [each.name for each in self.backward.inputs if not each.name.startswith("grad_")]
        call = Call(dict(zip(kept, ctx.saved_tensors, strict=True)), ctx.options)
        of_results = dict(zip((each.name for each in self.forward.outputs), grads, strict=False))
        upstream, needed = self.upstream(call, of_results), self.needed(needs)
        call = call.replaced(upstream)
        found = dict(self.others(call, needed)) if self.others else {}  # before anything is overwritten
        if upstream:
            found.update(self.of_kernel(call, ctx.written, needed, inplace))
        return tuple(found.get(name) if is_needed else None for name, is_needed in needed.items())

    def of_kernel(
        self, call: Call, written: Mapping[str, Tensor | None], needed: Mapping[str, bool], inplace: bool = False
    ) -> dict[str, Tensor]:
        """Gradients of inputs of the forward by name, from a launch where one is needed.

        Args:
            call: of the backward, with upstream gradients.
            written: of the call of the forward, what ``adding`` writes to.
            needed: which inputs of the forward need a gradient.
            inplace: the gradient of the first input goes over it.
        """
        wanted = [each for each in self.backward.outputs if needed[differentiated(each.name)]]
        if not wanted:
            return {}
        requests = {each.request: each in wanted for each in self.backward.outputs}
        inplace = inplace and self.backward.outputs[0] in wanted
        backward, call = self.chosen_backward(call.replaced({}, **requests), written, wanted)
        results = self.run(call, inplace, backward)
        return dict(zip((differentiated(each.name) for each in backward.outputs), results, strict=True))

    def chosen_backward(
        self, call: Call, written: Mapping[str, Tensor | None], wanted: Sequence[Output]
    ) -> tuple[Operator, Call]:
        """The operator that adds where there is something to add to and the gradient is wanted, with that tensor."""
        names = [each.name for each in wanted]
        if self.adding is None or not any(
            written[name] is not None and result in names for name, result in self.adding.writes.items()
        ):
            return self.backward, call
        refuse_graph(self.backward)
        return self.adding, call.replaced(written)

    def run(self, call: Call, inplace: bool, backward: Operator | None = None) -> tuple[Tensor, ...]:
        """The results of the backward, or of the one that adds, with those of its options that the call has."""
        backward = backward or self.backward
        results = {f"grad_{each.name}": each for each in self.forward.outputs}
        tensors = []
        for each in backward.inputs:
            tensor = call.tensors.get(each.name)
            is_missing = tensor is None and not each.is_optional
            tensors.append(results[each.name].new(call, 0.0) if is_missing else tensor)
        options = {each.name: call.options[each.name] for each in backward.keywords if each.name in call.options}
        if not inplace:
            return as_tuple(backward.op(call.first.device)(*tensors, **options))
        overwritten = call.first.detach()  # the same memory and version
        overwrite = backward.op(overwritten.device, overwrites=True)
        return overwritten, *as_tuple(overwrite(overwritten, *tensors[1:], **options))


def differentiated(gradient: str) -> str:
    """The name of the input whose gradient has a name."""
    return gradient.removeprefix("grad_")


def differentiate(
    forward: Operator,
    backward: Operator,
    others: Others | None = None,
    adding: Operator | None = None,
    options: Callable[[Call], Mapping[str, Any]] | None = None,
) -> Derivative:
    """Register the derivative of ``forward``, and that ``backward`` has none, wherever they are registered."""
    derivative = Derivative(forward, backward, others, adding, options)

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        derivative.save(ctx, call, returned, derivative.needed(ctx.needs_input_grad))

    def gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return derivative.gradients(ctx, grads, ctx.needs_input_grad[: len(forward.inputs)])

    register_formula(forward, setup, gradients)
    register_formula(backward, lambda *_: None, lambda ctx, *grads: refuse_second(backward))
    return derivative


def register_formula(
    operator: Operator, setup: Callable[[Any, Call, Any], None], gradients: Callable[..., Sequence[Tensor | None]]
) -> None:
    """Register the derivative of an operator wherever the operator is registered.

    Args:
        operator: that writes to none of its inputs.
        setup: keeps what the backward takes, from the context, the call and what was returned.
        gradients: of the inputs, from the context and the gradients of the results.
    """

    def setup_by_keyword(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
        setup(ctx, operator.call(inputs, keyword_only_inputs), output)

    def setup_by_position(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        setup(ctx, operator.call(inputs, {}), output)

    def gradients_and_none(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return *gradients(ctx, *grads), *[None] * len(operator.keywords)  # options have no gradient

    torch.library.register_autograd(operator.qualified(), gradients, setup_context=setup_by_keyword)
    if registrar.nki_op is None:
        return
    native = operator.qualified_natively()
    try:  # there, all arguments are positional
        torch.library.register_autograd(native, gradients_and_none, setup_context=setup_by_position)
    except Exception as error:  # whatever it raises
        registrar.give_up(f"the derivative of {native}", error)


def refuse_second(backward: Operator) -> NoReturn:
    """The backward of a gradient: an error that names what has derivatives of every order."""
    raise NotImplementedError(
        f"{backward.qualified()}: the gradient has no derivative here; for second derivatives use {backward.instead}"
    )


def refuse_graph(backward: Operator) -> None:
    """Refuse ``create_graph=True`` in a backward that makes none: its gradient would be taken for a constant."""
    if torch.is_grad_enabled():
        refuse_second(backward)


class OnceDifferentiable(torch.autograd.Function):
    """A tensor as it is, of a gradient that takes other tensors for constants: no derivative by it.

    Arguments of ``apply``: the operator to name, and the tensor.
    """

    @staticmethod
    def forward(ctx: Any, backward: Operator, tensor: Tensor) -> Tensor:
        ctx.operator = backward
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second(ctx.operator)


class _InPlace(torch.autograd.Function):
    """The forward operator, whose backward writes the gradient over the first input.

    ``torch.library.register_autograd`` refuses an operator that mutates. The operator declares what it mutates, so the
    version of the input changes: whoever saved it for a backward of their own gets PyTorch's error, and so does a
    second backward here.
    """

    @staticmethod
    def forward(ctx: Any, derivative: Derivative, options: dict[str, Any], *tensors: Tensor | None) -> Any:
        call = derivative.forward.call(tensors, options)
        returned = derivative.forward.op(call.first.device)(*tensors, **options)
        derivative.save(ctx, call, returned, derivative.needed(ctx.needs_input_grad[2:]))
        ctx.derivative = derivative
        return returned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(ctx.derivative.backward)
        needs = ctx.needs_input_grad[2:]
        return None, None, *ctx.derivative.gradients(ctx, grads, needs, inplace=True)[: len(needs)]
