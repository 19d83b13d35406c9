# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Squared error ``(x - t)^2`` of inputs x and targets t, ``torch.nn.functional.mse_loss(x, t)``.

The derivatives are ``2 (x - t)`` and its negative.

The file has the definition in instructions (:class:`Mse`), the float64 reference (:class:`MseReference`), the kernels
(``mse_loss_...``) and the registry entry (:data:`MSE`).

Errors of float32 arithmetic, with u = 2^-23.

The difference d = x - t rounds once, u / 2 of itself; its square has twice that relative error, and rounds once more.

|error| <= 1.5 u d^2. The error of a derivative 2 d is at most u |d|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import difference
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, FunctionErrors, Tensors
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
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward, run_forward_backward
from nkilib.nki import nl


@dataclass(frozen=True)
class Mse:
    """The definition of the squared error."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 1

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return a tile of x - t."""
        difference_sbuf = piece.float32()
        difference(difference_sbuf, piece[INPUT], piece[TARGET])
        return (difference_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses (x - t)^2."""
        (difference_sbuf,) = prepared
        losses.activation(nl.square, difference_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivatives 2 (x - t) for the input, and -2 (x - t) for the target."""
        (difference_sbuf,) = self.prepare(piece)
        return {
            INPUT: Derivative(difference_sbuf, 2.0, on_scalar=True),
            TARGET: Derivative(difference_sbuf, -2.0, on_scalar=True),
        }


ERROR: Final = TermError(1.5)


@dataclass(frozen=True)
class MseReference:
    """The float64 reference, ``torch.nn.functional.mse_loss(input.double(), target.double())``."""

    stated: ClassVar[TermError] = ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses (x - t)^2 and their errors."""
        square = (tensors[INPUT] - tensors[TARGET]) ** 2
        return Derived.of_units(square, (), 1.5 * square)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives 2 (x - t) for the input, and -2 (x - t) for the target, with their errors."""
        slope = 2.0 * (tensors[INPUT] - tensors[TARGET])
        error = 0.5 * UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}


def mse_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the squared error ``(x - t)^2`` of inputs x and targets t, elementwise, times a weight if there is one.

    Equivalent to ``F.mse_loss(input, target, reduction=reduction)`` in PyTorch, computed in float32. With a weight, the
    reduction is applied to ``weight * F.mse_loss(input, target, reduction="none")``; its mean is over elements.

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
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    return run_forward("mse_loss_forward", weighted(Mse(), weight_hbm), tensors_hbm, reduction, dtype, columns, buffers)


def mse_loss_backward(
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
    """Compute the gradients of the squared error: ``2 (x - t) w`` with respect to the input x, its negative with
    respect to the target t, and ``(x - t)^2`` with respect to the weight w, each times the upstream gradient.

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
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, WEIGHT: grad_weight_wanted}
    return run_backward(
        "mse_loss_backward",
        weighted(Mse(), weight_hbm, grad_weight_wanted),
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
    )


def mse_loss_forward_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    dtype: nl.DType | None = None,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> tuple[nl.NkiTensor, ...]:
    """Compute the squared error and its gradients in a single launch, for callers that know the upstream gradient in
    advance.

    Equivalent to ``loss = F.mse_loss(input, target, reduction=reduction)`` in PyTorch, with a weight as in the forward,
    and ``torch.autograd.grad(loss, wanted, grad_loss)``. The tensors are read once, so this launch takes two thirds of
    the time of a forward and a backward launch. If the tiling differs from the forward's, the last bits of the loss may
    differ.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction, dtype: see the forward.
        grad_loss_hbm, grad_input_wanted, grad_target_wanted, grad_weight_wanted, inplace: see the backward.
        columns, buffers: the tiling, see the forward.

    Returns:
        loss_hbm: the losses, see the forward.
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: the requested gradients, see the backward.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    return run_forward_backward(
        "mse_loss_forward_backward",
        weighted(Mse(), weight_hbm, grad_weight_wanted),
        {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm},
        grad_loss_hbm,
        {INPUT: grad_input_wanted, TARGET: grad_target_wanted, WEIGHT: grad_weight_wanted},
        reduction,
        inplace,
        dtype,
        columns,
        buffers,
    )


MSE: Final = elementwise_loss(
    "mse_loss",
    "MSELoss",
    mse_loss_forward,
    mse_loss_backward,
    forward_backward=mse_loss_forward_backward,
    formula="(x - t)^2",
    derivative="2 (x - t)",
    errors=(ERROR,),
    gradient_error=GradientError("1.5 u times the gradient"),
    functions=Functions(forward=1),
    time_limits=((1.05, 1.05), (1.05, 1.05)),
    forms=(
        Form(MseReference(), NUMBERS),
        Form(WeightedReference(MseReference()), {**NUMBERS, WEIGHT: Sample.POSITIVE}, label=", weighted"),
    ),
    family=Family.REGRESSION,
)
