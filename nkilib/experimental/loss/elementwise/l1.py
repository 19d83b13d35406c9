# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Absolute error ``|x - t|`` of inputs x and targets t, ``torch.nn.functional.l1_loss(x, t)``.

The derivatives are ``sign(x - t)`` and its negative.

The file has the definition in instructions (:class:`L1`), the float64 reference (:class:`L1Reference`), the kernels
(``l1_loss_...``) and the registry entry (:data:`L1_LOSS`).

Errors of float32 arithmetic, with u = 2^-23.

The difference rounds once, which costs u / 2 of its value. A sign is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import combine, difference, subtract_on_gpsimd, transform
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, Derived, Exact, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    WEIGHT,
    Derivative,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.host import (
    NUMBERS,
    Functions,
    GradientError,
    WeightedReference,
    elementwise_loss,
)
from nkilib.experimental.loss.skeletons.elementwise.results import weighted
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class L1:
    """The definition of the absolute error."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return a tile of x - t."""
        difference_sbuf = piece.float32()
        difference(difference_sbuf, piece[INPUT], piece[TARGET])
        return (difference_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses |x - t|."""
        (difference_sbuf,) = prepared
        losses.activation(nl.abs, difference_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives: the sign of x - t for the input, and its negative for the target.

        Where x - t is NaN, the derivatives are 0, as in PyTorch: two comparisons turn the result s of the activation
        function ``sign`` into [s > 0] - [s < 0]. Signs are exact in bfloat16.
        """
        difference_sbuf, sign_sbuf, sound_sbuf = piece.float32(), piece.bfloat16(), piece.bfloat16()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT], piece[TARGET])
        nisa.activation(dst=sign_sbuf, op=nl.sign, data=difference_sbuf)
        transform(sound_sbuf, sign_sbuf, nl.less, 0.0)
        combine(sound_sbuf, sign_sbuf, nl.greater, 0.0, nl.subtract, sound_sbuf)
        return {INPUT: Derivative(sound_sbuf), TARGET: Derivative(sound_sbuf, -1.0)}


ERROR: Final = TermError(0.5)


@dataclass(frozen=True)
class L1Reference:
    """The float64 reference, ``torch.nn.functional.l1_loss(input.double(), target.double())``."""

    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses |x - t| and their errors."""
        loss = np.abs(tensors[INPUT] - tensors[TARGET])
        return Derived.of_units(loss, (), 0.5 * loss)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives: the sign of x - t (0 for NaN) for the input, and its negative for the target."""
        sign = np.nan_to_num(np.sign(tensors[INPUT] - tensors[TARGET]))
        return {INPUT: Exact(sign, np.zeros_like(sign)), TARGET: Exact(-sign, np.zeros_like(sign))}


def l1_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the absolute error ``|x - t|`` of inputs x and targets t, elementwise, times a weight if there is one.

    Equivalent to ``F.l1_loss(input, target, reduction=reduction)`` in PyTorch, computed in float32. With a weight, the
    reduction is applied to ``weight * F.l1_loss(input, target, reduction="none")``; its mean is over elements.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        weight_hbm: the weight of each element, of the input's shape; or for an input [R, C] one weight per row,
            [R, 1], or per column, [1, C], which is not expanded in memory; in any of these types; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "l1_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    return run_forward(function, weighted(L1(), weight_hbm), tensors_hbm, reduction, dtype, columns, buffers)


def l1_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the absolute error: ``sign(x - t) w`` with respect to the input x, its negative with
    respect to the target t, and ``|x - t|`` with respect to the weight w, each times the upstream gradient. The sign of
    0 and of NaN is 0.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input_wanted, grad_target_wanted, grad_weight_wanted: whether to compute each gradient; at least one is
            True, and a weight per row or per column has no gradient.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: the requested gradients, each of the shape and type of its
            tensor; with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "l1_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, WEIGHT: grad_weight_wanted}
    return run_backward(
        function,
        weighted(L1(), weight_hbm, grad_weight_wanted),
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
    )


L1_LOSS: Final = elementwise_loss(
    "l1_loss",
    "L1Loss",
    l1_loss_forward,
    l1_loss_backward,
    formula="|x - t|",
    derivative="sign(x - t)",
    errors=(ERROR,),
    gradient_error=GradientError("u times the gradient"),
    functions=Functions(forward=1, backward=1),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        Form(L1Reference(), NUMBERS),
        Form(WeightedReference(L1Reference()), {**NUMBERS, WEIGHT: Sample.POSITIVE}, label=", weighted"),
    ),
    edges="the gradient at 0 and at NaN is 0",
    differences="complex tensors are not supported",
    family=Family.REGRESSION,
)
