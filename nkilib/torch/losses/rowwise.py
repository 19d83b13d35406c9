# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row-wise losses in PyTorch: their operators, made from one description, and the semantics around them.

:func:`rowwise_loss` registers the operators of a loss, and :class:`RowwiseLoss` calls the operators. Its tensors are
:class:`RowInputs`; :class:`Rows` brings their rows to the same order in memory. :func:`as_floats` converts integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from nkilib.experimental import loss as kernels
from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.checks import Caller
from nkilib.torch.dispatch.layout import stored_order, unviewed
from nkilib.torch.dispatch.operator import FLOAT_DTYPES, TILE_DTYPES, Call, Input, Operator, Output, Shape, per_row
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.checks import check_call
from nkilib.torch.losses.options import Defaults, gradient_requests, options_from_defaults, options_of_loss
from nkilib.torch.losses.outputs import is_each, kernel_gradient, loss_output, promoted

# The option of a forward that says whether it returns what the backward takes.
_WANTED: Final = "coefficients_wanted"


@dataclass(frozen=True)
class Rows:
    """The order in memory of the rows of tensors of one shape. A row runs along the last dimension.

    Attributes:
        order: the dimensions before the last one, outermost in memory first.
        shape: the sizes of these dimensions, in the same order.
    """

    order: tuple[int, ...]
    shape: Shape

    @classmethod
    def of(cls, tensor: Tensor) -> Rows:
        """Return the memory order of the rows of a tensor of one or more dimensions.

        If the last dimension is not the innermost one in memory, the result has the dimensions in the tensor's own
        order, and :meth:`matrix` will copy the tensor.
        """
        last, order = tensor.dim() - 1, stored_order(tensor)
        lead = order[:-1] if order[-1] == last else tuple(range(last))
        return cls(lead, tuple(tensor.shape[dim] for dim in lead))

    def matrix(self, tensor: Tensor) -> Tensor:
        """Return a tensor as [rows, columns], with its rows in this order; a view if possible."""
        last = tensor.dim() - 1
        return tensor.permute(*self.order, last).reshape(prod(self.shape), tensor.shape[last])

    def vector(self, values: Tensor) -> Tensor:
        """Return a tensor with one number for each row, in the caller's shape, as [rows] in this order."""
        return values.permute(self.order).reshape(prod(self.shape))

    def restored(self, losses: Tensor) -> Tensor:
        """Return losses [rows] as a tensor of the caller's shape without the last dimension."""
        return unviewed(losses.reshape(self.shape).permute([self.order.index(dim) for dim in range(len(self.order))]))

    def is_view(self, tensor: Tensor) -> bool:
        """Return whether :meth:`matrix` returns a view of the tensor, not a copy."""
        return tensor.permute(*self.order, tensor.dim() - 1).is_contiguous()


@dataclass(frozen=True)
class RowInputs:
    """The tensors of a row-wise loss.

    Attributes:
        matrices: the names of the required tensors of rows, which have gradients, in order.
        vectors: the names of tensors with one float32 number for each row, without a gradient.
        optional: the names of optional tensors with gradients, of the shape of the matrices or [1, columns].
    """

    matrices: Sequence[str]
    vectors: Sequence[str] = ()
    optional: Sequence[str] = ()

    @property
    def operands(self) -> tuple[Input, ...]:
        """The operator's inputs, described as :class:`~nkilib.torch.dispatch.operator.Input`."""
        return (
            *(Input(name, dimensions=2, dtypes=FLOAT_DTYPES) for name in self.matrices),
            *(Input(name, dimensions=1, dtypes=(torch.float32,)) for name in self.vectors),
            *(Input(name, dimensions=2, dtypes=FLOAT_DTYPES, is_optional=True) for name in self.optional),
        )

    @property
    def differentiated(self) -> tuple[str, ...]:
        """The names of the tensors that have gradients."""
        return (*self.matrices, *self.optional)

    def dtype(self, call: Call) -> torch.dtype:
        """Return the dtype of losses with reduction ``"none"``, to which the dtypes of the tensors of rows promote."""
        tensors = [call.tensors[name] for name in (*self.matrices, *self.optional)]
        return promoted(tensor for tensor in tensors if tensor is not None)


def _may_require_grad(tensor: Tensor | None) -> bool:
    """Return whether the tensor requires grad or may require it: inside vmap, ``requires_grad`` is always False."""
    if tensor is None:
        return False
    return tensor.requires_grad or (not torch.compiler.is_compiling() and is_batchedtensor(tensor))


@dataclass(frozen=True)
class RowwiseLoss:
    """A row-wise loss, registered with PyTorch.

    Attributes:
        caller: the names of the loss and of its first tensor, for messages.
        inputs: the names of its tensors.
        has_coefficients: whether the forward stores per-row coefficients from which the backward computes the
            gradients.
        derivative: the derivative of the operators.
    """

    caller: Caller
    inputs: RowInputs
    has_coefficients: bool
    derivative: Derivative = field(repr=False)

    def __call__(self, tensors: Mapping[str, Tensor | None], reduction: str, inplace: bool, **options: Any) -> Tensor:
        """Return the loss of the rows along the last dimension.

        Args:
            tensors: the tensors by name. Tensors of rows have one shape; optional ones have that shape or [1, columns];
                vectors have that shape without the last dimension.
            reduction: ``"mean"``, ``"sum"`` or ``"none"``.
            inplace: the backward writes the gradient over the first tensor.
            options: the options of the kernels.
        """
        first = tensors[self.inputs.matrices[0]]
        if first is None:
            raise TypeError(f"{self.caller}: argument {self.caller.input!r} must be Tensor, not None")
        rows = Rows.of(first)
        operands = [self._operand(name, tensor, rows, first) for name, tensor in tensors.items()]
        if self.has_coefficients:
            are_differentiated = torch.is_grad_enabled() and any(map(_may_require_grad, operands))
            options = {**options, _WANTED: are_differentiated}
        returned = self.derivative.apply(inplace, *operands, reduction=reduction, **options)
        loss: Tensor = returned[0] if self.has_coefficients else returned
        return rows.restored(loss) if reduction == "none" else loss

    def _operand(self, name: str, tensor: Tensor | None, rows: Rows, first: Tensor) -> Tensor | None:
        if tensor is None:
            return None
        if name in self.inputs.vectors:
            return rows.vector(tensor)
        is_shared = name in self.inputs.optional and tensor.shape != first.shape
        return tensor if is_shared else rows.matrix(tensor)

    def check(
        self,
        tensors: Mapping[str, Tensor | None],
        reduction: Any,
        inplace: Any,
        integers: Sequence[str] = (),
        bools: Sequence[str] = (),
    ) -> None:
        """Check the tensors and flags of a call, with PyTorch's error types.

        Args:
            tensors: the tensors of the call, by name.
            reduction, inplace: the arguments of the call.
            integers: names of the tensors that PyTorch takes in integer types too.
            bools: names of those in ``integers`` that PyTorch takes as bool too.

        Raises:
            TypeError: an argument has the wrong Python type, or a tensor is float64.
            ValueError: unknown ``reduction``.
            RuntimeError: devices differ; a complex tensor, or an integer tensor that is not allowed.
            NotImplementedError: an unsupported device; a sharded tensor (DTensor or FSDP); forward-mode
                differentiation.
        """
        check_call(self.caller, tensors, reduction, inplace, self.inputs.optional, integers, bools)

    def check_inplace(self, tensors: Mapping[str, Tensor | None], computed: Tensor) -> None:
        """Check that the gradient of the first tensor can be written over it.

        Args:
            tensors: the caller's tensors by name.
            computed: the tensor from which the loss is computed, in place of the first one.

        Raises:
            ValueError: the kernel would get a copy.
            RuntimeError: a leaf that requires grad; another tensor shares memory with it; torch.compile is tracing.
        """
        others = dict(tensors)
        input = others.pop(self.inputs.matrices[0])
        if input is None:
            raise TypeError(f"{self.caller}: argument {self.caller.input!r} must be Tensor, not None")
        is_alike = input.dtype == computed.dtype and input.shape == computed.shape
        checks.check_inplace(
            self.caller,
            input,
            others,
            aligned=self.inputs.differentiated,
            is_kept=is_alike and Rows.of(input).is_view(input),
            needs="dense with its rows contiguous, in the shape and type in which the loss is computed",
        )


def _coefficients_output(numbers: Callable[[Call], int]) -> Output:
    return Output(
        "coefficients",
        shape=lambda call: (numbers(call), call.first.shape[0]),
        depends_on=(),
        requested_by=_WANTED,
    )


def _gradient(name: str) -> Output:
    def like(call: Call) -> Tensor:
        tensor = call.tensors[name]
        return call.first if tensor is None else tensor

    return Output(
        f"grad_{name}",
        lambda call: like(call).dtype,
        lambda call: tuple(like(call).shape),
        requested_by=f"grad_{name}_wanted",
    )


def rowwise_loss(
    caller: Caller,
    inputs: RowInputs,
    options: Defaults | None = None,
    forward_alone: Sequence[str] = (),
    coefficients: Callable[[Call], int] | None = None,
    wanted: Mapping[str, bool] | None = None,
) -> RowwiseLoss:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``, and return the
    loss.

    The operators launch the kernels of these names of :mod:`nkilib.experimental.loss`. The kernels' arguments have the
    names of tensors and options.

    Args:
        caller: the name of the loss, with the words for messages.
        inputs: the names of its tensors.
        options: the defaults of the kernels' options other than the reduction, by name.
        forward_alone: the options that the backward does not take.
        coefficients: a function that returns how many coefficients per row the forward stores for the backward; None
            means none.
        wanted: the defaults of the gradient requests by the name of the tensor; None: all are requested.
    """
    name, saved = caller.function, list[Input]()
    own = options_of_loss(options or {})
    outputs = [loss_output(per_row, inputs.differentiated, inputs.dtype)]
    if coefficients is not None:
        outputs.append(_coefficients_output(coefficients))
        saved.append(Input("coefficients", dimensions=2, dtypes=(torch.float32,)))

    def result_dtype(call: Call) -> dict[str, Any]:
        return {"dtype": TILE_DTYPES[inputs.dtype(call)]} if is_each(call) else {}

    forward = register(
        Operator(
            f"{name}_forward",
            inputs=inputs.operands,
            options=(own, options_from_defaults({_WANTED: True})) if saved else (own,),
            outputs=tuple(outputs),
            kernel=lambda: getattr(kernels, f"{name}_forward"),
            on_request={"coefficients": _WANTED} if saved else {},
            arguments=result_dtype,
            instead=caller.instead,
        )
    )
    gradients = tuple(_gradient(tensor_name) for tensor_name in inputs.differentiated)
    backward = register(
        Operator(
            f"{name}_backward",
            inputs=(
                *(operand for operand in inputs.operands if operand.name not in inputs.vectors),
                *saved,
                Input("grad_loss"),
            ),
            options=(own, gradient_requests(wanted or dict.fromkeys(inputs.differentiated, True))),
            without=forward_alone,
            outputs=gradients,
            kernel=lambda: getattr(kernels, f"{name}_backward"),
            on_request={gradient.name: gradient.request for gradient in gradients},
            arguments=kernel_gradient,
            may_overwrite=True,
            instead=caller.instead,
        )
    )
    return RowwiseLoss(caller, inputs, bool(saved), differentiate(forward, backward))


def as_floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors, all floating. Integer tensors are cast to the dtype to which the floating ones promote, or to
    float32 if none is floating.
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    dtype = promoted(floating) if floating else torch.float32
    return [tensor if tensor.is_floating_point() else tensor.to(dtype) for tensor in tensors]
