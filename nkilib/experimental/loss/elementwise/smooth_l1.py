# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Squared error near 0 and absolute error beyond: ``torch.nn.functional.smooth_l1_loss`` and ``huber_loss``.

With the difference d = x - t of the input x and the target t, a width b, and c, which is d clipped to [-b, b], the loss
is ``f (c^2 / (2 b) + max(|d| - b, 0))``, in which nothing cancels. Smooth L1 has a factor f = 1 and b = beta, Huber's
loss f = b = delta. The derivative is ``f c / b`` with respect to the input x, and its negative with respect to the
target t.

Vector computes c and |d| - b. For one piece in five, if f is 1, Scalar computes ``max(d - b, 0) + max(-d - b, 0)``,
which equals max(|d| - b, 0), so that both engines have equal work in 16 bits.

The file has the definition in instructions (:class:`SmoothL1`, for both losses), the float64 reference
(:class:`SmoothL1Reference`), the kernels (``smooth_l1_loss_...`` and ``huber_loss_...``) and the registry entries
(:data:`SMOOTH_L1` and :data:`HUBER`).

Errors of float32 arithmetic, with u = 2^-23.

Let d = x - t, b be the width and f the factor, both float32 numbers.

d rounds once, which costs u / 2 of d. Where |d| <= b the loss is a square: the error of d adds u, the rounded scale
sqrt(f / (2 b)) at most another u, the product with the scale u, and the square u / 2. Beyond b the square is the number
f b / 2, with the errors of the scale, the product and the square. |d| - b has an error of u |d| / 2 and rounds once;
its product with f (if f is not 1) and the sum round once each. The scale of Huber's loss is sqrt(1 / 2), which adds 0.3
u.

    |d| <= b    |error| <= 3.5 u of the loss, 2.8 u for Huber's
    |d| > b     |error| <= u f (5 b / 4 + |d| / 2 + (|d| - b) / 2 (or |d| - b) + (|d| - b / 2) / 2): 2.5 u of f |d|

The term "or |d| - b" is for Huber's loss. The error of a derivative f c / b is 2 u.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.arithmetic import subtract_on_gpsimd, transform
from nkilib.core.hardware import HbmTensor
from nkilib.core.host.error_bounds import SIMULATED, UNIT, Derived, Exact, FunctionErrors, Tensors
from nkilib.core.host.loss import Family, Form, Sample
from nkilib.core.rows.checks import LEAST_NORMAL, require_option
from nkilib.experimental.loss.elementwise.l1 import L1, L1Reference
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    INPUT,
    TARGET,
    WEIGHT,
    Activation,
    Derivative,
    LossDefinition,
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
from nkilib.nki import nl

# Scalar computes the part beyond b of one in so many pieces, with two passes more, and Vector has one pass less.
_SHARE = 5


@dataclass(frozen=True)
class SmoothL1:
    """The definition of the smooth L1 loss and of Huber's loss.

    The head of the module defines the symbols.

    Attributes:
        width: b, the magnitude up to which the difference d is squared; positive.
        factor: f, the factor of the losses: 1 for smooth L1, b for Huber's loss.
    """

    width: float
    factor: float = 1.0

    tensors = (INPUT, TARGET)
    scratch_tiles = 4  # one more than a piece takes, so that GpSimd does not wait for Scalar

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """Return tiles of c and of |d| - b; the second tile is d if Scalar will compute max(|d| - b, 0)."""
        difference_sbuf, clipped_sbuf = piece.float32(), piece.float32()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, difference_sbuf)
        if not self._scalar_computes_excess(piece):
            transform(difference_sbuf, difference_sbuf, nl.abs, None, nl.subtract, self.width)
        return clipped_sbuf, difference_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute the losses f (c^2 / (2 b) + max(|d| - b, 0))."""
        clipped_sbuf, other_sbuf = prepared
        square = Activation(nl.square, clipped_sbuf, sqrt(0.5 * self.factor / self.width))
        if self._scalar_computes_excess(piece):
            bias_sbuf = piece.constant(-self.width)
            scratch_sbuf = piece.float32() if losses.are_kept else None
            above = Activation(nl.relu, other_sbuf, scratch_sbuf=scratch_sbuf, bias_sbuf=bias_sbuf)
            losses.activations(square, above, Activation(nl.relu, other_sbuf, -1.0, bias_sbuf=bias_sbuf))
        else:
            losses.activations(square, Activation(nl.relu, other_sbuf, self.factor))

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return the derivative f c / b for the input, and its negative for the target."""
        clipped_sbuf = piece.float32()
        subtract_on_gpsimd(clipped_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, clipped_sbuf)
        slope = self.factor / self.width
        return {
            INPUT: Derivative(clipped_sbuf, slope, on_scalar=True),
            TARGET: Derivative(clipped_sbuf, -slope, on_scalar=True),
        }

    def _scalar_computes_excess(self, piece: Piece) -> bool:
        """Return whether Scalar computes max(|d| - b, 0) of this piece: for one piece in five, if f is 1."""
        return self.factor == 1.0 and piece.number % _SHARE == 0

    def _clip(self, dst_sbuf: nl.NkiTensor, difference_sbuf: nl.NkiTensor) -> None:
        transform(dst_sbuf, difference_sbuf, nl.minimum, self.width, nl.maximum, -self.width)


SMOOTH_L1_ERROR: Final = TermError(3.5)
HUBER_ERROR: Final = TermError(3.0)


@dataclass(frozen=True)
class SmoothL1Reference:
    """The float64 reference, ``torch.nn.functional.smooth_l1_loss(input.double(), target.double(), beta=width)`` times
    f.

    Attributes:
        width: b, the magnitude up to which the difference d is squared.
        factor: f, the factor of the losses: None (1) for smooth L1, the width for Huber's loss.
    """

    width: float
    factor: float | None = None

    @property
    def stated(self) -> TermError:
        """The error that the guarantee states: of smooth L1 if ``factor`` is None, else of Huber's loss."""
        return SMOOTH_L1_ERROR if self.factor is None else HUBER_ERROR

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses f d^2 / (2 b) where |d| <= b and f (|d| - b / 2) elsewhere, with their errors."""
        width, factor = self._numbers()
        size = np.abs(tensors[INPUT] - tensors[TARGET])
        is_beyond, beyond = size > width, factor * (size - width)
        loss = np.where(is_beyond, factor * (size - 0.5 * width), 0.5 * factor * size**2 / width)
        of_scale = 1.0 if self.factor is None else 0.3
        of_beyond = 0.5 * factor * size + (0.5 if self.factor is None else 1.0) * beyond + 0.5 * loss
        own = np.where(is_beyond, (1.5 + of_scale) * 0.5 * factor * width + of_beyond, (2.5 + of_scale) * loss)
        return Derived.of_units(loss, (np.where(is_beyond, factor * size, 0.0),), own)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives f c / b for the input and its negative for the target, with their errors."""
        width, factor = self._numbers()
        slope = factor * np.clip(tensors[INPUT] - tensors[TARGET], -width, width) / width
        error = UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}

    def _numbers(self) -> tuple[float, float]:
        width = float(np.float32(self.width))
        return width, 1.0 if self.factor is None else float(np.float32(self.factor))


def smooth_l1_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    reduction: str = "mean",
    beta: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute the smooth L1 loss, elementwise: ``d^2 / (2 beta)`` up to ``|d| = beta``, ``|d| - beta / 2`` beyond, with
    ``d = input - target``.

    Equivalent to ``F.smooth_l1_loss(input, target, reduction=reduction, beta=beta)`` in PyTorch, computed in float32.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        beta: the magnitude up to which the difference is squared; 0 gives the absolute error, as in
            ``l1_loss_forward``.
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "smooth_l1_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    return run_forward(function, _smooth_l1(function, beta), tensors_hbm, reduction, dtype, columns, buffers)


def smooth_l1_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    beta: float = 1.0,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of the smooth L1 loss: ``clip(input - target, -beta, beta) / beta`` with respect to the
    input and its negative with respect to the target, each times the upstream gradient. With beta 0 they are the sign
    of the difference and its negative.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, beta: the arguments of the forward.
        grad_loss_hbm: the upstream gradient: for ``"none"`` of the input's shape, bfloat16, float16 or float32; else
            [1], float32, read on the device.
        grad_input_wanted, grad_target_wanted: whether to compute each gradient; at least one is True.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: the tiling, see the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: the requested gradients, each of the shape and type of its tensor; with
            ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "smooth_l1_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function, _smooth_l1(function, beta), tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers
    )


def _smooth_l1(function: str, beta: float) -> LossDefinition:
    beta = require_option(function, "beta", beta, least=0.0)
    # An engine cannot take a beta below the normal numbers; the loss differs from the absolute error by less than beta.
    return L1() if beta < LEAST_NORMAL else SmoothL1(beta)


def huber_loss_forward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None = None,
    reduction: str = "mean",
    delta: float = 1.0,
    dtype: nl.DType | None = None,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor:
    """Compute Huber's loss, elementwise: ``d^2 / 2`` up to ``|d| = delta``, ``delta (|d| - delta / 2)`` beyond, with
    ``d = input - target``, times a weight if there is one.

    Equivalent to ``F.huber_loss(input, target, reduction=reduction, delta=delta)`` in PyTorch, computed in float32.
    With a weight, the reduction is applied to ``weight * F.huber_loss(input, target, reduction="none", delta=delta)``.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        weight_hbm: the weight of each element, of the input's shape; or for an input [R, C] one weight per row, [R, 1],
            or per column, [1, C], which is not expanded in memory; in any of these types; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        delta: the magnitude up to which the difference is squared, positive.
        dtype: the type of the losses for ``"none"``; None: the type of the input.
        columns: the number of elements per partition of a tile; None: chosen from shape and types.
        buffers: the number of tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: the losses, of the input's shape, for ``"none"``; else their sum or mean, [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "huber_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    definition = weighted(_huber(function, delta), weight_hbm)
    return run_forward(function, definition, tensors_hbm, reduction, dtype, columns, buffers)


def huber_loss_backward(
    input_hbm: HbmTensor,
    target_hbm: HbmTensor,
    weight_hbm: HbmTensor | None,
    grad_loss_hbm: HbmTensor,
    reduction: str = "mean",
    delta: float = 1.0,
    grad_input_wanted: bool = True,
    grad_target_wanted: bool = False,
    grad_weight_wanted: bool = False,
    inplace: bool = False,
    columns: int | None = None,
    buffers: int | None = None,
) -> nl.NkiTensor | tuple[nl.NkiTensor, ...]:
    """Compute the gradients of Huber's loss: ``clip(input - target, -delta, delta) w`` with respect to the input, its
    negative with respect to the target, and the unweighted loss with respect to the weight w, each times the upstream
    gradient.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction, delta: the arguments of the forward.
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
    function = "huber_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted, WEIGHT: grad_weight_wanted}
    return run_backward(
        function,
        weighted(_huber(function, delta), weight_hbm, grad_weight_wanted),
        tensors_hbm,
        grad_loss_hbm,
        wanted,
        reduction,
        inplace,
        columns,
        buffers,
    )


def _huber(function: str, delta: float) -> SmoothL1:
    delta = require_option(function, "delta", delta, least=LEAST_NORMAL)
    return SmoothL1(delta, factor=delta)


SMOOTH_L1: Final = elementwise_loss(
    "smooth_l1_loss",
    "SmoothL1Loss",
    smooth_l1_loss_forward,
    smooth_l1_loss_backward,
    formula="d^2 / (2 beta) up to |d| = beta, |d| - beta / 2 beyond, d = x - t",
    derivative="clip(x - t, -beta, beta) / beta",
    errors=(SMOOTH_L1_ERROR,),
    gradient_error=GradientError("2 u times the gradient"),
    functions=Functions(forward=1),
    time_limits=((1.5, 1.05), (1.05, 1.05)),
    forms=(
        Form(SmoothL1Reference(0.7), NUMBERS, {"beta": 0.7}),
        Form(L1Reference(), NUMBERS, {"beta": 0.0}, ", beta 0"),
    ),
    edges="beta = 0 gives l1_loss",
    differences="beta must be finite; below 2^-126 it counts as 0",
    family=Family.REGRESSION,
)
HUBER: Final = elementwise_loss(
    "huber_loss",
    "HuberLoss",
    huber_loss_forward,
    huber_loss_backward,
    formula="d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond, d = x - t",
    derivative="clip(x - t, -delta, delta)",
    errors=(HUBER_ERROR,),
    gradient_error=GradientError("2 u times the gradient"),
    functions=Functions(forward=1),
    time_limits=((1.5, 1.05), (1.05, 1.05)),
    forms=(
        Form(SmoothL1Reference(1.3, 1.3), NUMBERS, {"delta": 1.3}),
        Form(
            WeightedReference(SmoothL1Reference(0.6, 0.6)),
            {**NUMBERS, WEIGHT: Sample.POSITIVE},
            {"delta": 0.6},
            ", weighted",
        ),
    ),
    differences="delta must be finite and at least 2^-126",
    family=Family.REGRESSION,
)
