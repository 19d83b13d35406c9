# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Elementwise losses in PyTorch: their operators, made from one description, and the semantics around them.

:func:`elementwise_loss` registers the operators of a loss. :class:`ElementwiseLoss` calls the operators, and handles
dtypes, broadcasting, memory order and ``inplace``. :class:`Matrix` gives tensors two dimensions, so that a weight that
several elements share is not expanded. Most functions use :func:`loss_of_pair`, the loss of an input and a target.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from nkilib.experimental import loss as kernels
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.checks import Caller, broadcast_shape, counterpart
from nkilib.torch.dispatch.layout import stored_order, unviewed
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, TILE_DTYPES, Call, Input, Operator, Output, Shape, as_first
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.checks import check_call
from nkilib.torch.losses.options import Defaults, gradient_requests, options_of_loss
from nkilib.torch.losses.outputs import as_computed, is_each, kernel_gradient, loss_output, promoted

# A partition of the hardware has whole rows or a part of one: with fewer rows than this, many would be idle.
_FEWEST_ROWS: Final = 512


def _compact(weight: Tensor, dimensions: int) -> Tensor:
    """Return a view of a weight with ``dimensions`` dimensions, without the repetitions of ``expand``.

    Missing dimensions are added in front, with one element. A dimension of stride 0, along which ``expand`` repeats one
    element, is cut to that element.
    """
    whole = weight[(None,) * (dimensions - weight.dim())]
    return whole[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in whole.stride())]


@dataclass(frozen=True)
class Matrix:
    """A way to reshape tensors to [rows, columns]: the first dimensions become the rows, the others the columns.

    Kernels take a weight that elements share, such as ``pos_weight`` of classes, unexpanded, [rows, 1] or [1, columns].
    The split is chosen so that as little as possible of the weights is repeated.

    Attributes:
        shape: the shape of the tensors.
        split: the number of dimensions that become the rows.
    """

    shape: Shape
    split: int

    @classmethod
    def of(cls, shape: Shape, weights: Sequence[Tensor]) -> Matrix | None:
        """Return the division that repeats as little as possible of these weights, for tensors of a shape.

        In each dimension a weight has the size of ``shape`` or 1. Return None if every weight has the whole shape, or
        if no division lets a kernel take a weight unexpanded.
        """
        if 0 in shape or all(tuple(weight.shape) == shape for weight in weights):
            return None
        splits = [split for split in range(1, len(shape)) if prod(shape[:split]) >= _FEWEST_ROWS]
        ranked = sorted((*cls(shape, split)._repeats(weights), split) for split in splits)
        if not ranked or ranked[0][0] == len(weights):
            return None
        return cls(shape, ranked[0][-1])

    def elements(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the shape :attr:`shape` as [rows, columns]; a view if the tensor is contiguous."""
        return tensor.reshape(self._rows, self._columns)

    def weight(self, weight: Tensor) -> Tensor:
        """Return a weight as kernels take it: [rows, 1] if it is equal along the columns, [1, columns] if it is equal
        along the rows, else expanded to [rows, columns].
        """
        if self._is_of_rows(weight):
            return weight.expand(*self.shape[: self.split], *weight.shape[self.split :]).reshape(self._rows, 1)
        if self._is_of_columns(weight):
            return weight.expand(*weight.shape[: self.split], *self.shape[self.split :]).reshape(1, self._columns)
        return self.elements(weight.expand(self.shape))

    @property
    def _rows(self) -> int:
        return prod(self.shape[: self.split])

    @property
    def _columns(self) -> int:
        return prod(self.shape[self.split :])

    def _is_of_rows(self, weight: Tensor) -> bool:
        return all(size == 1 for size in weight.shape[self.split :])

    def _is_of_columns(self, weight: Tensor) -> bool:
        return all(size == 1 for size in weight.shape[: self.split])

    def _repeats(self, weights: Sequence[Tensor]) -> tuple[int, int]:
        """Return two costs of this division: the number of weights that would have to be expanded to all elements, and
        the number of dimensions along which the other weights would be repeated.
        """
        whole, dimensions = 0, 0
        for weight in weights:
            if self._is_of_rows(weight):
                own = range(self.split)
            elif self._is_of_columns(weight):
                own = range(self.split, len(self.shape))
            else:
                whole += 1
                continue
            dimensions += sum(1 for dim in own if weight.shape[dim] == 1 and self.shape[dim] != 1)
        return whole, dimensions


@dataclass(frozen=True)
class ElementwiseLoss:
    """An elementwise loss, registered with PyTorch.

    Attributes:
        caller: the names of the loss and of its first tensor, for messages.
        tensors: the names of the required tensors, in order.
        optional: the names of optional tensors.
        constant: the names of tensors without a gradient.
        integers: the names of tensors that PyTorch accepts in integer dtypes too.
        bools: the names of those in ``integers`` that PyTorch accepts as bool too.
        derivative: the derivative of the operators.
        is_float32_under_autocast: whether losses that are not reduced are float32 under autocast, as in PyTorch.
        takes_integers_alone: whether all tensors of a call may be integers; the loss is then computed in float32.
    """

    caller: Caller
    tensors: Sequence[str]
    optional: Sequence[str]
    constant: Sequence[str]
    integers: Sequence[str]
    bools: Sequence[str]
    derivative: Derivative = field(repr=False)
    is_float32_under_autocast: bool = True
    takes_integers_alone: bool = False

    def check(self, tensors: Mapping[str, Tensor | None], reduction: Any, inplace: Any) -> None:
        """Check the tensors and flags of a call, with PyTorch's error types; shapes are checked when the loss is
        called.

        Raises:
            TypeError: an argument has the wrong Python type, or a tensor is float64.
            ValueError: unknown ``reduction``.
            RuntimeError: devices differ; a complex tensor, or an integer tensor that is not allowed; a tensor without a
                gradient requires grad.
            NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode
                differentiation.
        """
        check_call(self.caller, tensors, reduction, inplace, self.optional, self.integers, self.bools)
        for name in self.constant:
            checks.check_constant(self.caller, name, tensors[name])

    def __call__(self, tensors: Mapping[str, Tensor | None], reduction: str, inplace: bool, **options: Any) -> Tensor:
        """Return the loss of tensors that :meth:`check` has accepted, whose shapes broadcast.

        Args:
            tensors: the tensors by name: those of :attr:`tensors`, then those of :attr:`optional`.
            reduction: ``"mean"``, ``"sum"`` or ``"none"``.
            inplace: the backward writes the gradient over the first tensor.
            options: the options of the kernels.

        Raises:
            ValueError: ``inplace`` where the kernel would get a copy.
            RuntimeError: shapes that do not broadcast; ``inplace`` with a leaf that requires grad, or with another
                tensor that overlaps it in memory.
            NotImplementedError: integers alone, which the loss does not take.
        """
        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        floats = self._floats(present)
        shape = broadcast_shape(self.caller, {name: tensor.shape for name, tensor in present.items()})
        if self.is_float32_under_autocast and reduction == "none":
            floats = {name: as_computed(tensor, reduction) for name, tensor in floats.items()}
        constant = [name for name in self.optional if name in floats and not floats[name].requires_grad]
        weights = {name: _compact(floats.pop(name), len(shape)) for name in constant}
        computed = {name: tensor if tensor.shape == shape else tensor.expand(shape) for name, tensor in floats.items()}
        if inplace:
            others = dict(present)
            first = others.pop(self.tensors[0])
            own = computed[self.tensors[0]]
            is_alike = first.dtype == own.dtype and first.shape == own.shape
            is_kept = is_alike and first.permute(stored_order(first)).is_contiguous()
            checks.check_inplace(self.caller, first, others, others, is_kept)
        return self._of_dimensions(computed, weights, inplace, reduction=reduction, **options)

    def _floats(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors, all floating. Integer tensors are converted to the dtype that all dtypes together promote
        to, or to float32 if all tensors are integers.

        Raises:
            NotImplementedError: all tensors are integers, and the loss does not accept this, as in PyTorch.
        """
        are_floats = [tensor.is_floating_point() for tensor in tensors.values()]
        if all(are_floats):
            return dict(tensors)
        if not any(are_floats) and not self.takes_integers_alone:
            raise NotImplementedError(
                f"{self.caller}: not implemented for integers alone, got {self.caller.input} of "
                f"{tensors[self.tensors[0]].dtype}; pass {self.caller.input}.float()"
            )
        dtype = promoted(tensors.values()) if any(are_floats) else torch.float32
        return {name: tensor if tensor.is_floating_point() else tensor.to(dtype) for name, tensor in tensors.items()}

    def _of_dimensions(
        self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], inplace: bool, **options: Any
    ) -> Tensor:
        """Return the loss, computed on views whose dimensions are in the memory order of the first tensor.

        A tensor without dimensions is computed as one of the shape [1]. The result has the caller's order of
        dimensions.
        """
        first = tensors.get(self.tensors[0])
        if first is None:
            raise TypeError(f"{self.caller}: argument {self.caller.input!r} must be Tensor, not None")
        if first.dim() == 0:
            rows, of_rows = (
                {name: tensor.reshape(1) for name, tensor in named_tensors.items()}
                for named_tensors in (tensors, weights)
            )
            return unviewed(self._of_dimensions(rows, of_rows, inplace, **options).reshape(()))
        order = stored_order(first)
        if order == tuple(range(first.dim())):
            return self._of_stored(tensors, weights, inplace, **options)
        stored, of_stored = (
            {name: tensor.permute(order) for name, tensor in named_tensors.items()}
            for named_tensors in (tensors, weights)
        )
        loss = self._of_stored(stored, of_stored, inplace, **options)
        if options["reduction"] != "none":
            return loss
        return unviewed(loss.permute([order.index(dim) for dim in range(len(order))]))

    def _of_stored(
        self, tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], inplace: bool, **options: Any
    ) -> Tensor:
        """Return the loss of tensors whose dimensions are in memory order already.

        Weights that several elements share, such as class weights, are passed unexpanded if :class:`Matrix` allows it.
        """
        shape = tuple(tensors[self.tensors[0]].shape)
        matrix = Matrix.of(shape, list(weights.values()))
        if matrix is None:
            computed = {**tensors, **{name: weight.expand(shape) for name, weight in weights.items()}}
        else:
            computed = {name: matrix.elements(tensor) for name, tensor in tensors.items()}
            computed |= {name: matrix.weight(weight) for name, weight in weights.items()}
        inputs = [computed.get(name) for name in (*self.tensors, *self.optional)]
        loss: Tensor = self.derivative.apply(inplace, *inputs, **options)
        return loss if matrix is None or options["reduction"] != "none" else loss.reshape(shape)


def _gradient(name: str) -> Output:
    def dtype(call: Call) -> torch.dtype:
        tensor = call.tensors[name]
        return call.first.dtype if tensor is None else tensor.dtype

    return Output(f"grad_{name}", dtype, as_first, requested_by=f"grad_{name}_wanted")


def elementwise_loss(
    name: str,
    noun: str,
    tensors: Sequence[str] = ("input", "target"),
    optional: Sequence[str] = (),
    constant: Sequence[str] = (),
    integers: Sequence[str] = (),
    bools: Sequence[str] = (),
    typed: Sequence[str] = (),
    options: Defaults | None = None,
    wanted: Sequence[str] | None = None,
    check_values: Callable[[Call], None] | None = None,
    is_float32_under_autocast: bool = True,
    takes_integers_alone: bool = False,
) -> ElementwiseLoss:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``, and return the
    loss.

    The operators launch the kernels of these names of :mod:`nkilib.experimental.loss`. The kernels' arguments have the
    names of tensors and options.

    Args:
        name: the name of the loss, which is that of its function in ``torch.nn.functional`` if there is one.
        noun: a word for the content of the first tensor, for messages.
        tensors, optional, constant, integers, bools: see :class:`ElementwiseLoss`.
        typed: the names of the tensors whose dtypes promote to the dtype of losses that are not reduced, as in PyTorch;
            empty means all tensors.
        options: the defaults of the kernels' options by name. The reduction is added in front if it is missing.
        wanted: the names of the tensors whose gradients the operator computes by default; None: only the first one.
        check_values: a function that raises an error if values are out of range, called on the CPU only.
        is_float32_under_autocast, takes_integers_alone: see :class:`ElementwiseLoss`.
    """
    caller = Caller(name, tensors[0], noun, counterpart(name))
    names = (*tensors, *optional)
    inputs = tuple(
        Input(tensor_name, dtypes=FLOAT_DTYPES, is_optional=tensor_name in optional) for tensor_name in names
    )
    differentiated = [tensor_name for tensor_name in names if tensor_name not in constant]
    gradients = tuple(_gradient(tensor_name) for tensor_name in differentiated)
    is_chosen = len(gradients) > 1  # the only gradient has no flag
    asked = differentiated[:1] if wanted is None else wanted
    requests = gradient_requests({tensor_name: tensor_name in asked for tensor_name in differentiated})

    def dtype(call: Call) -> torch.dtype:
        return promoted(
            tensor for name, tensor in call.tensors.items() if tensor is not None and name in (typed or names)
        )

    own = options_of_loss(options or {})
    forward = register(
        Operator(
            f"{name}_forward",
            inputs=inputs,
            options=(own,),
            outputs=(loss_output(as_first, tuple(differentiated), dtype),),
            kernel=lambda: getattr(kernels, f"{name}_forward"),
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
            kernel=lambda: getattr(kernels, f"{name}_backward"),
            on_request={gradient.name: gradient.request for gradient in gradients} if is_chosen else {},
            arguments=kernel_gradient,
            may_overwrite=True,
            instead=caller.instead,
        )
    )
    derivative = differentiate(forward, backward)
    return ElementwiseLoss(
        caller,
        tensors,
        optional,
        constant,
        integers,
        bools,
        derivative,
        is_float32_under_autocast,
        takes_integers_alone,
    )


def _sum_of(weight: Tensor) -> Tensor:
    """Return the sum of all elements of a weight in float32.

    PyTorch's own sum of an expanded weight has errors of up to 4e-3 on the CPU.
    """
    if weight.requires_grad:
        return weight.contiguous().sum(dtype=torch.float32)
    numbers = _compact(weight, weight.dim())
    return numbers.sum(dtype=torch.float32) * (weight.numel() // max(numbers.numel(), 1))


def _warn_of_broadcast(caller: Caller, input: Tensor, target: Tensor) -> None:
    if input.shape == target.shape:  # most are, and the loss broadcasts them with a weight
        return
    broadcast_shape(caller, {"input": input.shape, "target": target.shape})
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{caller}: target has shape {tuple(target.shape)} and input {tuple(input.shape)}: they are broadcast, and "
            f"every loss of the result enters it; reshape one of them if that is not meant",
            stacklevel=4,
        )


def _check_weight(caller: Caller, input: Tensor, weight: Tensor | None) -> None:
    """Check that a weight has the input's shape.

    Raises:
        ValueError: the shapes differ, as in PyTorch.
    """
    if weight is not None and weight.shape != input.shape:
        raise ValueError(
            f"{caller}: weight must have the shape of input, {tuple(input.shape)}, got {tuple(weight.shape)}; expand it"
        )


def loss_of_pair(
    loss: ElementwiseLoss,
    input: Tensor,
    target: Tensor,
    reduction: str,
    inplace: bool,
    weight: Tensor | None = None,
    divides_by_weight: bool = False,
    **options: float,
) -> Tensor:
    """Return the loss of an input and a target, with PyTorch's broadcasting and its warning.

    Args:
        loss: the elementwise loss.
        input, target: tensors whose shapes broadcast. If the shapes differ, a warning names the line that called the
            public function, the caller of this one.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        inplace: whether the gradient is written over the memory of the input.
        weight: a weight of the shape of the input; None means 1.
        divides_by_weight: whether a mean divides by the sum of the weights, not by their number.
        options: the options of the loss.
    """
    tensors: dict[str, Tensor | None] = {"input": input, "target": target}
    if loss.optional:
        tensors["weight"] = weight
    loss.check(tensors, reduction, inplace)
    _warn_of_broadcast(loss.caller, input, target)
    _check_weight(loss.caller, input, weight)
    if weight is None or reduction != "mean" or not divides_by_weight:
        return loss(tensors, reduction, inplace, **options)
    return loss(tensors, "sum", inplace, **options) / _sum_of(weight)
