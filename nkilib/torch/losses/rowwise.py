# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loss of rows as PyTorch sees it: its operators, made from one description, and the semantics around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor

from nkilib.torch.dispatch import checks
from nkilib.torch.dispatch.autograd import Derivative, differentiate
from nkilib.torch.dispatch.caller import Caller
from nkilib.torch.dispatch.losses import FLOAT_DTYPES, is_each, kernel_gradient, loss_output
from nkilib.torch.dispatch.operator import TILE_DTYPES, Call, Input, Operator, Output, per_row
from nkilib.torch.dispatch.register import register
from nkilib.torch.losses.checks import check_call, promoted
from nkilib.torch.losses.options import Defaults, group_of, options_of_loss, requests_of
from nkilib.torch.losses.rows import Rows

# The option of a forward that says whether it returns what the backward takes.
_WANTED: Final = "coefficients_wanted"


@dataclass(frozen=True)
class RowInputs:
    """What a loss takes.

    Attributes:
        matrices: names of the tensors of rows that every call has and that have gradients, the first one first.
        vectors: names of tensors with a float32 for each row, without a gradient.
        optional: names of further tensors of rows, with gradients; of one row for all of them, or of each.
    """

    matrices: Sequence[str]
    vectors: Sequence[str] = ()
    optional: Sequence[str] = ()

    @property
    def operands(self) -> tuple[Input, ...]:
        """Of the operators."""
        return (
            *(Input(each, dimensions=2, dtypes=FLOAT_DTYPES) for each in self.matrices),
            *(Input(each, dimensions=1, dtypes=(torch.float32,)) for each in self.vectors),
            *(Input(each, dimensions=2, dtypes=FLOAT_DTYPES, is_optional=True) for each in self.optional),
        )

    @property
    def differentiated(self) -> tuple[str, ...]:
        """Names of those that there are gradients of."""
        return (*self.matrices, *self.optional)

    def dtype(self, call: Call) -> torch.dtype:
        """The type of losses that are not reduced: what the types of the tensors of rows promote to."""
        named = [call.tensors[name] for name in (*self.matrices, *self.optional)]
        return promoted(each for each in named if each is not None)


@dataclass(frozen=True)
class RowwiseLoss:
    """A loss, registered with PyTorch.

    Attributes:
        caller: its name, and how messages speak of its first tensor.
        inputs: what it takes.
        has_coefficients: whether the forward makes some for the backward.
        derivative: of the operators.
    """

    caller: Caller
    inputs: RowInputs
    has_coefficients: bool
    derivative: Derivative = field(repr=False)

    def __call__(self, tensors: Mapping[str, Tensor | None], reduction: str, inplace: bool, **options: Any) -> Tensor:
        """The loss of the rows along the last dimension.

        Args:
            tensors: by name. Those of rows have one shape, the optional ones that or [1, columns]; vectors have it
                without the last dimension.
            reduction: ``"mean"``, ``"sum"`` or ``"none"``.
            inplace: the backward writes the gradient over the first tensor.
            options: of the kernels.
        """
        first = tensors[self.inputs.matrices[0]]
        if first is None:
            raise TypeError(f"{self.caller}: argument {self.caller.input!r} must be Tensor, not None")
        rows = Rows.of(first)
        given = [self._operand(name, each, rows, first) for name, each in tensors.items()]
        if self.has_coefficients:
            are_differentiated = torch.is_grad_enabled() and any(map(_may_require_grad, given))
            options = {**options, _WANTED: are_differentiated}
        found = self.derivative.apply(inplace, *given, reduction=reduction, **options)
        loss: Tensor = found[0] if self.has_coefficients else found
        return rows.restored(loss) if reduction == "none" else loss

    def _operand(self, name: str, tensor: Tensor | None, rows: Rows, first: Tensor) -> Tensor | None:
        if tensor is None:
            return None
        if name in self.inputs.vectors:
            return rows.vector(tensor)
        is_shared = name in self.inputs.optional and tensor.shape != first.shape
        return tensor if is_shared else rows.matrix(tensor)

    def check(
        self, tensors: Mapping[str, Tensor | None], reduction: Any, inplace: Any, integers: Sequence[str] = ()
    ) -> None:
        """Refuse what the kernels cannot compute or PyTorch does not accept, with PyTorch's types of errors.

        Args:
            tensors: of the call, by name.
            reduction, inplace: of the call.
            integers: names of tensors that PyTorch takes in integer types too.

        Raises:
            TypeError: an argument has the wrong Python type; or float64.
            ValueError: unknown ``reduction``.
            RuntimeError: devices do not fit; a complex tensor, or an integer one.
            NotImplementedError: another device; a part of a tensor; a derivative in forward mode.
        """
        check_call(self.caller, tensors, reduction, inplace, self.inputs.optional, integers)

    def check_inplace(self, given: Tensor, computed: Tensor) -> None:
        """Refuse ``inplace`` where the kernel would get a copy of the first tensor.

        Args:
            given: of the call.
            computed: what the loss is computed of.

        Raises:
            ValueError: always then.
            RuntimeError: of a leaf, or under torch.compile.
        """
        checks.check_inplace(self.caller, given)
        is_kept = given.dtype == computed.dtype and given.shape == computed.shape
        if not is_kept or not Rows.of(given).is_view(given):
            raise ValueError(
                f"{self.caller}: inplace=True needs {self.caller.input} dense with its rows contiguous, in the shape "
                f"and type in which the loss is computed, got {given.dtype} of {tuple(given.shape)}, strides "
                f"{given.stride()}; leave inplace off"
            )


def _may_require_grad(tensor: Tensor | None) -> bool:
    """In vmap nobody knows: what is mapped over says no, whatever it is a batch of."""
    if tensor is None:
        return False
    return tensor.requires_grad or (not torch.compiler.is_compiling() and is_batchedtensor(tensor))


def rowwise_loss(
    caller: Caller,
    kernels: tuple[Any, Any],
    inputs: RowInputs,
    options: Defaults | None = None,
    forward_alone: Sequence[str] = (),
    coefficients: Callable[[Call], int] | None = None,
    wanted: Mapping[str, bool] | None = None,
) -> RowwiseLoss:
    """Register the operators of a loss, ``nkilib::<name>_forward`` and ``nkilib::<name>_backward``.

    Args:
        caller: its name, and how messages speak of its first tensor.
        kernels: forward and backward, whose arguments have the names of tensors and options.
        inputs: what it takes.
        options: defaults of the kernels' options beside the reduction, by name.
        forward_alone: those that the backward does not take.
        coefficients: numbers a row that the backward takes; None: none.
        wanted: defaults of the requests for gradients by the name of the tensor; None: all.
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
            options=(own, group_of({_WANTED: True})) if saved else (own,),
            outputs=tuple(outputs),
            kernel=kernels[0],
            on_request={"coefficients": _WANTED} if saved else {},
            arguments=result_dtype,
            instead=caller.instead,
        )
    )
    gradients = tuple(_gradient(each) for each in inputs.differentiated)
    backward = register(
        Operator(
            f"{name}_backward",
            inputs=(*(each for each in inputs.operands if each.name not in inputs.vectors), *saved, Input("grad_loss")),
            options=(own, requests_of(wanted or dict.fromkeys(inputs.differentiated, True))),
            without=forward_alone,
            outputs=gradients,
            kernel=kernels[1],
            on_request={each.name: each.request for each in gradients},
            arguments=kernel_gradient,
            may_overwrite=True,
            instead=caller.instead,
        )
    )
    return RowwiseLoss(caller, inputs, bool(saved), differentiate(forward, backward))


def as_floats(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of which integer ones have the type that the floating ones promote to, or float32 without any."""
    floating = [each for each in tensors if each.is_floating_point()]
    dtype = promoted(floating) if floating else torch.float32
    return [each if each.is_floating_point() else each.to(dtype) for each in tensors]


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
