# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss of elements as PyTorch sees it: its operators, made from one description, and the semantics around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.broadcasting import broadcast_shape
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.layout import stored_order
from nkilib.torch.dispatch.losses import (
    FLOAT_DTYPES,
    as_computed,
    check_inplace,
    is_each,
    kernel_gradient,
    loss_output,
)
from nkilib.torch.dispatch.operator import TILE_DTYPES, Call, Input, Operator, Output, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.checks import check_call, promoted
from nkilib.torch.losses.options import Defaults, options_of_loss, requests_of
from nkilib.torch.losses.shared_weights import Matrix, compact


@dataclass(frozen=True)
class ElementwiseLoss:
    """A loss, registered with PyTorch.

    Attributes:
        caller: its name, and how messages speak of its first tensor.
        tensors: names of those that every call has, the first one first.
        optional: names of further ones.
        constant: names of those that there is no gradient of.
        integers: names of those that PyTorch takes in integer types too.
        takes_integers_alone: it takes integers without any floating tensor, which are computed in float32.
        derivative: of the operators.
        is_float32_under_autocast: losses that are not reduced are, as PyTorch's.
    """

    caller: Caller
    tensors: Sequence[str]
    optional: Sequence[str]
    constant: Sequence[str]
    integers: Sequence[str]
    derivative: Derivative = field(repr=False)
    is_float32_under_autocast: bool = True
    takes_integers_alone: bool = False

    def __call__(
        self, tensors: Mapping[str, Tensor | None], reduction: str, inplace: bool = False, **options: Any
    ) -> Tensor:
        """The loss of tensors whose shapes broadcast.

        Args:
            tensors: by name, in the order of the description.
            reduction: ``"mean"``, ``"sum"`` or ``"none"``.
            inplace: the backward writes the gradient over the first tensor.
            options: of the kernels.

        Raises:
            TypeError: an argument has the wrong Python type; or float64.
            ValueError: unknown ``reduction``; ``inplace`` where the kernel would get a copy.
            RuntimeError: shapes or devices do not fit; a complex tensor, or an integer one; ``inplace`` of a leaf.
            NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
        """
        check_call(self.caller, tensors, reduction, inplace, self.optional, self.integers)
        for name in self.constant:
            checks.check_constant(self.caller, name, tensors[name])
        given = {name: each for name, each in tensors.items() if each is not None}
        dtype = self._dtype(given)
        floats = {name: each if each.is_floating_point() else each.to(dtype) for name, each in given.items()}
        shape = broadcast_shape(self.caller, {name: each.shape for name, each in given.items()})
        if self.is_float32_under_autocast:
            floats = {name: as_computed(each, reduction) for name, each in floats.items()}
        constant = [name for name in self.optional if name in floats and not floats[name].requires_grad]
        weights = {name: compact(floats.pop(name), len(shape)) for name in constant}
        computed = {name: each.expand(shape) for name, each in floats.items()}
        if inplace:
            first = given[self.tensors[0]]
            check_inplace(self.caller, first, computed[self.tensors[0]], first.permute(stored_order(first)))
        return self._of_dimensions(computed, weights, inplace, reduction=reduction, **options)

    def _dtype(self, tensors: Mapping[str, Tensor]) -> torch.dtype:
        """That integer tensors are computed in.

        Raises:
            NotImplementedError: there is none, as in PyTorch.
        """
        if any(each.is_floating_point() for each in tensors.values()):
            return promoted(tensors.values())
        if not self.takes_integers_alone:
            raise NotImplementedError(
                f"{self.caller}: not implemented for integers alone, got {self.caller.input} of "
                f"{tensors[self.tensors[0]].dtype}; pass {self.caller.input}.float()"
            )
        return torch.float32

    def _of_dimensions(
        self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], inplace: bool, **options: Any
    ) -> Tensor:
        """Of tensors that the kernels get as the first one lies in memory, and with a dimension."""
        first = tensors.get(self.tensors[0])
        if first is None:
            raise TypeError(f"{self.caller}: argument {self.caller.input!r} must be Tensor, not None")
        if first.dim() == 0:
            rows, of_rows = ({name: each.reshape(1) for name, each in some.items()} for some in (tensors, weights))
            return self._of_dimensions(rows, of_rows, inplace, **options).reshape(())
        order = stored_order(first)
        stored, of_stored = ({name: each.permute(order) for name, each in some.items()} for some in (tensors, weights))
        loss = self._of_stored(stored, of_stored, inplace, **options)
        if options["reduction"] != "none":
            return loss
        return loss.permute([order.index(dim) for dim in range(len(order))])

    def _of_stored(
        self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], inplace: bool, **options: Any
    ) -> Tensor:
        """Of tensors as they lie in memory; weights that elements share are not copied to their size."""
        shape = tuple(tensors[self.tensors[0]].shape)
        matrix = Matrix.of(shape, list(weights.values()))
        if matrix is None:
            computed = {**tensors, **{name: each.expand(shape) for name, each in weights.items()}}
        else:
            computed = {name: matrix.elements(each) for name, each in tensors.items()}
            computed |= {name: matrix.weight(each) for name, each in weights.items()}
        every = [computed.get(name) for name in (*self.tensors, *self.optional)]
        loss: Tensor = self.derivative.apply(inplace, *every, **options)
        return loss if matrix is None or options["reduction"] != "none" else loss.reshape(shape)


def elementwise_loss(
    name: str,
    noun: str,
    kernels: tuple[Any, Any],
    tensors: Sequence[str] = ("input", "target"),
    optional: Sequence[str] = (),
    constant: Sequence[str] = (),
    integers: Sequence[str] = (),
    typed: Sequence[str] = (),
    options: Defaults | None = None,
    wanted: Sequence[str] | None = None,
    check_values: Callable[[Call], None] | None = None,
    is_float32_under_autocast: bool = True,
    takes_integers_alone: bool = False,
) -> ElementwiseLoss:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``.

    Args:
        name: of the function in ``torch.nn.functional``.
        noun: what its first tensor is, in words.
        kernels: forward and backward, whose arguments have the names of tensors and options.
        tensors, optional, constant, integers: as :class:`ElementwiseLoss` has them.
        typed: tensors whose types promote to that of the losses, as PyTorch has it; none: all of them.
        options: defaults of the kernels' options by name. The reduction comes first, unless it is among them.
        wanted: tensors whose gradients the operator computes if nothing is said; None: the first one alone.
        check_values: raises where values are out of range, on the CPU alone.
        is_float32_under_autocast, takes_integers_alone: as :class:`ElementwiseLoss` has them.
    """
    caller = Caller(name, tensors[0], noun, f"torch.nn.functional.{name}")
    every = (*tensors, *optional)
    inputs = tuple(Input(each, dtypes=FLOAT_DTYPES, is_optional=each in optional) for each in every)
    differentiated = [each for each in every if each not in constant]
    gradients = tuple(_gradient(each) for each in differentiated)
    is_chosen = len(gradients) > 1  # the only gradient has no flag
    asked = differentiated[:1] if wanted is None else wanted
    requests = requests_of({each: each in asked for each in differentiated})

    def dtype(call: Call) -> torch.dtype:
        return promoted(each for name, each in call.tensors.items() if each is not None and name in (typed or every))

    own = options_of_loss(options or {})
    forward = register(
        Operator(
            f"{name}_forward",
            inputs=inputs,
            options=(own,),
            outputs=(loss_output(as_first, tuple(differentiated), dtype),),
            kernel=kernels[0],
            arguments=lambda call: {"dtype": TILE_DTYPES[dtype(call)]} if is_each(call) else {},
            check_values=check_values,
            instead=caller.instead,
        )
    )
    backward = register(
        Operator(
            f"{name}_backward",
            inputs=(*inputs, Input("grad_loss")),
            options=(own, requests) if is_chosen else (own,),
            outputs=gradients,
            kernel=kernels[1],
            on_request={each.name: each.request for each in gradients} if is_chosen else {},
            arguments=kernel_gradient,
            may_overwrite=True,
            instead=caller.instead,
        )
    )
    derivative = differentiate(forward, backward)
    return ElementwiseLoss(
        caller, tensors, optional, constant, integers, derivative, is_float32_under_autocast, takes_integers_alone
    )


def _gradient(name: str) -> Output:
    def dtype(call: Call) -> torch.dtype:
        tensor = call.tensors[name]
        return call.first.dtype if tensor is None else tensor.dtype

    return Output(f"grad_{name}", dtype, as_first, requested_by=f"grad_{name}_wanted")
