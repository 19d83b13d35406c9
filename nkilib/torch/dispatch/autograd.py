# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The derivative of an operator, by another operator or by its own results.

- :func:`overwritten_input`: a guard for an input over which a backward writes a gradient;
- :func:`refuse_second`, :func:`refuse_graph` and :class:`OnceDifferentiable` raise errors for derivatives of gradients;
- :class:`Derivative`: a backward operator as the derivative of a forward one, also in place;
- :func:`differentiate` registers a :class:`Derivative`;
- :func:`differentiate_by_results` registers the derivative of an operator that returns its gradients with the loss;
- :func:`register_formula` is the registration that both use.

An option of the backward, such as ``grad_<input>_wanted``, *requests* a gradient: the backward computes only requested
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor

from nkilib.torch.dispatch.devices import registrar
from nkilib.torch.dispatch.launch import as_tuple
from nkilib.torch.dispatch.memory import ReusedMemory
from nkilib.torch.dispatch.operator import Call, Input, Operator, compute_properties

# From the call of the backward, and which inputs of the forward need a gradient: gradients by name.
_Others = Callable[[Call, Mapping[str, bool]], Mapping[str, Tensor | None]]


def _differentiated(gradient: str) -> str:
    return gradient.removeprefix("grad_")


def overwritten_input(backward: Operator, input: Tensor) -> ReusedMemory:
    """Return a guard against a second backward, for an input over which ``backward`` writes a gradient."""
    return ReusedMemory(
        backward.qualified(True), "compute the loss again for another backward, or leave inplace off", input
    )


def refuse_second(backward: Operator) -> NoReturn:
    """Raise the error for a derivative of a gradient that ``backward`` computed.

    The message recommends :attr:`Operator.instead`, a function of PyTorch with derivatives of every order.
    """
    raise NotImplementedError(
        f"{backward.qualified()}: the gradient has no derivative here; for second derivatives use {backward.instead}"
    )


def refuse_graph(backward: Operator) -> None:
    """Raise an error if autograd is asked to record this backward, by ``create_graph=True``.

    The backward records no graph, so autograd would take the returned gradient for a constant.
    """
    if torch.is_grad_enabled():
        refuse_second(backward)


class OnceDifferentiable(torch.autograd.Function):
    """An identity function whose backward always raises the error of :func:`refuse_second`.

    Use it for a tensor that may have first derivatives but no second ones, because terms would be missing. The
    arguments of ``apply`` are the operator, which the message names, and the tensor.
    """

    @staticmethod
    def forward(ctx: Any, backward: Operator, tensor: Tensor) -> Tensor:
        ctx.operator = backward
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> NoReturn:
        refuse_second(ctx.operator)


@dataclass(frozen=True)
class Derivative:
    """The derivative of one operator's results, computed by another operator.

    Attributes:
        forward: the operator whose results are differentiated.
        backward: the operator that computes the gradients. Its inputs are inputs and results of the forward, under the
            same names, which autograd saves, and upstream gradients ``grad_<result>``; its outputs are
            ``grad_<input>``. A result for which it has no input ``grad_<result>`` is a constant for autograd.
        others: a function that computes the gradients of further inputs; its arguments are the call of the backward
            and the result of :meth:`needed`.
        adding: an operator that adds a gradient to an optional input of the forward, such as ``grad_weight_sum``,
            instead of returning it. It runs instead of ``backward`` if the forward got that input.
        options: a function from the call of the forward to the options of the backward that differ from those of the
            forward, by name.
    """

    forward: Operator
    backward: Operator
    others: _Others | None = None
    adding: Operator | None = None
    options: Callable[[Call], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        compute_properties(self)

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The names of the results of :attr:`forward`, in order."""
        return tuple(output.name for output in self.forward.outputs)

    @cached_property
    def saved(self) -> Mapping[str, Input]:
        """The inputs of the backward that autograd saves, by name: all except upstream gradients."""
        return {operand.name: operand for operand in self.backward.inputs if not operand.name.startswith("grad_")}

    @cached_property
    def upstream_names(self) -> Mapping[str, str]:
        """The names ``grad_<result>`` of the backward's upstream gradients, by the name of the forward's result."""
        taken = {operand.name for operand in self.backward.inputs}
        return {name: f"grad_{name}" for name in self.results if f"grad_{name}" in taken}

    @cached_property
    def _requests(self) -> Mapping[str, str]:
        """The backward's options that request gradients, by the name of the forward's input."""
        return {_differentiated(output.name): output.request for output in self.backward.outputs}

    def apply(self, inplace: bool, *tensors: Tensor | None, **options: Any) -> Any:
        """Return the results of the forward, differentiable.

        If ``inplace``, the backward writes the gradient of the first input over that input.
        """
        if inplace:
            function: Callable[..., Any] = _InPlace.apply
            return function(self, options, *tensors)
        first, *_ = tensors
        if first is None:
            raise TypeError(f"{self.forward.qualified()}: {self.forward.inputs[0].name} must be a tensor, got None")
        return self.forward.op(first.device)(*tensors, **options)

    def save(self, ctx: Any, call: Call, returned: Any, needed: Mapping[str, bool]) -> None:
        """Save in ``ctx`` the tensors and options for the backward, and tell autograd which results are constants.

        Args:
            ctx: autograd's context.
            call: the call of the forward.
            returned: the forward's return value.
            needed: for each input of the forward, whether it needs a gradient.
        """
        results = dict(zip(self.results, as_tuple(returned), strict=True))
        known = {**call.tensors, **results}
        ctx.save_for_backward(
            *[operand.saved(call, results) if operand.saved else known[name] for name, operand in self.saved.items()]
        )
        ctx.options = {**call.options, **(self.options(call) if self.options else {})}
        # Not saved: micro-batches between this forward and its backward write to it too.
        ctx.written = {name: call.tensors[name] for name in self.adding.writes} if self.adding else {}
        self.mark_constants(ctx, call, results, needed)

    def mark_constants(self, ctx: Any, call: Call, results: Mapping[str, Tensor], needed: Mapping[str, bool]) -> None:
        """Tell autograd which results of the forward have no derivative in this call.

        These are results without an upstream gradient in the backward, results that the call does not return, and
        results that depend on no input that needs a gradient.

        Args:
            ctx: autograd's context.
            call: the call of the forward.
            results: the results of the forward by name.
            needed: for each input of the forward, whether it needs a gradient.
        """
        constants = []
        for output in self.forward.outputs:
            is_needed = any(needed[name] for name in output.depends_on or needed)
            is_constant = output.name not in self.upstream_names or not output.is_given(call) or not is_needed
            if is_constant and output.name in results:
                constants.append(results[output.name])
        ctx.mark_non_differentiable(*constants)
        # A result that nobody uses has no gradient; the kernel skips what it is not given.
        ctx.set_materialize_grads(False)

    def upstream(self, call: Call, grads: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Return the upstream gradients for the backward, by the names ``grad_<result>`` of its inputs.

        Args:
            call: the call of the forward.
            grads: the gradients by the names of the forward's results. A compiled graph passes zeros for a missing
                gradient, of length 0 for a result that does not exist.
        """
        gradients = {output.name: grads.get(output.name) for output in self.forward.outputs if output.is_given(call)}
        names = self.upstream_names
        return {names[name]: grad for name, grad in gradients.items() if grad is not None and name in names}

    def needed(self, needs: Sequence[bool]) -> dict[str, bool]:
        """Return, by name, whether each input of the forward needs a gradient.

        Args:
            needs: whether each input needs a gradient, in the order of the inputs. Trailing inputs that are None may be
                missing, because PyTorch's dispatcher omits them.
        """
        names = self.forward.input_names
        return {**dict.fromkeys(names, False), **dict(zip(names, needs, strict=False))}

    def gradients(
        self,
        ctx: Any,
        grads: Sequence[Tensor | None],
        needs: Sequence[bool],
        overwritten: ReusedMemory | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of the forward's inputs; None for gradients that are not needed.

        Saved tensors are unpacked only once, because ``torch.utils.checkpoint`` provides them only once.

        Args:
            ctx: the context of the forward.
            grads: the upstream gradients.
            needs: for each input, whether its gradient is needed.
            overwritten: the guard of the first input if its gradient is written over it, else None.
        """
        if overwritten is not None:
            overwritten.check()
        call = Call(dict(zip(self.saved, ctx.saved_tensors, strict=True)), ctx.options)
        of_results = dict(zip(self.results, grads, strict=False))
        upstream, needed = self.upstream(call, of_results), self.needed(needs)
        call = call.replaced(upstream)
        if overwritten is not None:
            overwritten.check(call.first)
            overwritten.is_spent = bool(upstream) and needs[0]
        gradients = dict(self.others(call, needed)) if self.others else {}  # before anything is overwritten
        if upstream:
            gradients.update(self.of_kernel(call, ctx.written, needed, overwritten is not None))
        return tuple(gradients.get(name) if is_needed else None for name, is_needed in needed.items())

    def of_kernel(
        self, call: Call, written: Mapping[str, Tensor | None], needed: Mapping[str, bool], inplace: bool = False
    ) -> dict[str, Tensor]:
        """Return the gradients of the forward's inputs by name; launch the kernel only if a gradient is needed.

        Args:
            call: the call of the backward, with upstream gradients.
            written: the inputs of the forward that ``adding`` writes to.
            needed: for each input of the forward, whether it needs a gradient.
            inplace: whether the gradient of the first input is written over it.
        """
        wanted = {request: needed[name] for name, request in self._requests.items()}
        if not any(wanted.values()):
            return {}
        inplace = inplace and wanted[self.backward.outputs[0].request]
        backward, call = self._chosen_backward(call, written, needed)
        results = self.run(call, inplace, backward, wanted)
        return dict(zip((_differentiated(output.name) for output in backward.outputs), results, strict=True))

    def _chosen_backward(
        self, call: Call, written: Mapping[str, Tensor | None], needed: Mapping[str, bool]
    ) -> tuple[Operator, Call]:
        """Return the operator to run, and its call.

        The operator is ``adding`` if the gradient that it adds is needed, and the call has the tensor to add to; else
        ``backward``.
        """
        if self.adding is None or not any(
            written[name] is not None and needed[_differentiated(result)] for name, result in self.adding.writes.items()
        ):
            return self.backward, call
        refuse_graph(self.backward)
        return self.adding, call.replaced(written)

    def run(
        self,
        call: Call,
        inplace: bool,
        backward: Operator | None = None,
        requests: Mapping[str, bool] | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the results of the backward operator.

        Args:
            call: a call with the tensors and options for the operator; further ones are ignored. Missing upstream
                gradients are zeros.
            inplace: whether the operator writes its first gradient over the first input.
            backward: the operator; by default :attr:`backward`.
            requests: the options that request gradients, by name.
        """
        backward = backward or self.backward
        tensors = []
        for operand in backward.inputs:
            tensor = call.tensors.get(operand.name)
            if tensor is None and not operand.is_optional:
                (result,) = [output for output in self.forward.outputs if f"grad_{output.name}" == operand.name]
                tensor = result.new(call, 0.0)
            tensors.append(tensor)
        options = backward.taken({**call.options, **(requests or {})})
        if not inplace:
            return as_tuple(backward.op(call.first.device)(*tensors, **options))
        overwritten = call.first.detach()  # the same memory and version
        overwrite = backward.op(overwritten.device, overwrites=True)
        return overwritten, *as_tuple(overwrite(overwritten, *tensors[1:], **options))


class _InPlace(torch.autograd.Function):
    """The forward operator, with a backward that writes the gradient over the first input.

    ``torch.library.register_autograd`` rejects an operator that mutates. The operator declares that it mutates the
    input, so the version of the input changes, and code that saved the input for its own backward gets PyTorch's error.
    A second backward here raises the same error, from :class:`ReusedMemory`.
    """

    @staticmethod
    def forward(ctx: Any, derivative: Derivative, options: dict[str, Any], *tensors: Tensor | None) -> Any:
        call = derivative.forward.call(tensors, options)
        returned = derivative.forward.op(call.first.device)(*tensors, **options)
        derivative.save(ctx, call, returned, derivative.needed(ctx.needs_input_grad[2:]))
        ctx.derivative = derivative
        ctx.overwritten = overwritten_input(derivative.backward, call.first) if ctx.needs_input_grad[2] else None
        return returned

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_graph(ctx.derivative.backward)
        needs = ctx.needs_input_grad[2:]
        return None, None, *ctx.derivative.gradients(ctx, grads, needs, ctx.overwritten)[: len(needs)]


def register_formula(
    operator: Operator, setup: Callable[[Any, Call, Any], None], gradients: Callable[..., Sequence[Tensor | None]]
) -> None:
    """Register the derivative of an operator, in each namespace that has the operator.

    Args:
        operator: an operator that writes to none of its inputs.
        setup: a function that saves the tensors for the backward; its arguments are autograd's context, the call and
            the returned values.
        gradients: a function that returns the gradients of the inputs; its arguments are the context and the gradients
            of the results.
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


def differentiate(
    forward: Operator,
    backward: Operator,
    others: _Others | None = None,
    adding: Operator | None = None,
    options: Callable[[Call], Mapping[str, Any]] | None = None,
) -> Derivative:
    """Register ``backward`` as the derivative of ``forward``, and an error as the derivative of ``backward``; return
    the derivative.

    Both are registered in each namespace that has these operators; see :class:`Derivative` for the arguments.
    """
    derivative = Derivative(forward, backward, others, adding, options)

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        derivative.save(ctx, call, returned, derivative.needed(ctx.needs_input_grad))

    def gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return derivative.gradients(ctx, grads, ctx.needs_input_grad[: len(forward.inputs)])

    register_formula(forward, setup, gradients)
    register_formula(backward, lambda *_: None, lambda ctx, *grads: refuse_second(backward))
    return derivative


def differentiate_by_results(operator: Operator) -> None:
    """Register the derivative of an operator whose first result is a scalar, and whose other results are its gradients
    ``grad_<input>``.

    The backward multiplies the gradients that are needed by the upstream gradient, in place, and returns them.
    Therefore a second backward raises the error of :class:`ReusedMemory`.
    """
    names = [_differentiated(output.name) for output in operator.outputs[1:]]

    def setup(ctx: Any, call: Call, returned: Any) -> None:
        _, *gradients = as_tuple(returned)
        ctx.save_for_backward(*gradients)
        remedy = "compute the loss again for another backward, or leave memory_limit out"
        ctx.reused = ReusedMemory(operator.qualified(), remedy)
        ctx.mark_non_differentiable(*gradients)
        ctx.set_materialize_grads(False)

    def gradients(ctx: Any, upstream: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a product without the graph of its factors would be taken for a constant
            refuse_second(operator)
        ctx.reused.check()
        inputs = operator.input_names
        needs = dict(zip(inputs, ctx.needs_input_grad, strict=False))
        needed = {name: saved for name, saved in zip(names, ctx.saved_tensors, strict=True) if needs.get(name)}
        if upstream is None or not needed:
            return (None,) * len(inputs)
        ctx.reused.is_spent = True
        return tuple(needed[name].mul_(upstream) if name in needed else None for name in inputs)

    register_formula(operator, setup, gradients)
