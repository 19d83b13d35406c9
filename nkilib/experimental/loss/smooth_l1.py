# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Squared error near 0 and absolute error beyond: ``torch.nn.functional.smooth_l1_loss`` and ``huber_loss``.

With d = x - t and c = d, clipped to [-b, b]: ``f (c^2 / (2 b) + max(|d| - b, 0))``, in which nothing cancels. The
smooth error has f = 1 and b = beta, Huber's f = b = delta. Derivatives ``f c / b`` and its negative.

Vector makes c and |d| - b. Of every fifth piece Scalar takes ``max(d - b, 0) + max(-d - b, 0)`` from d, which is the
same number: in 16 bits both engines then have as much to do.

Errors of float32 arithmetic.

Smooth absolute error, with d = x - t, b the width and f the factor, both float32 numbers.

d rounds once, u / 2 of itself. Within b the loss is a square: d costs it u, the rounded scale sqrt(f / (2 b)) at most
another u, the product with it u and the square u / 2. Beyond b the square is the number f b / 2, off by what the scale,
the product and the square cost it; |d| - b is off by u |d| / 2 and rounds once, and so does its product with f, if that
is not 1, and the sum. The scale of Huber's error is sqrt(1 / 2), which costs 0.3 u.

    |d| <= b    |error| <= 3.5 u of the loss, 2.8 u of Huber's
    |d| > b     |error| <= u f (5 b / 4 + |d| / 2 + (|d| - b) / 2 (or |d| - b) + (|d| - b / 2) / 2): 2.5 u of f |d|

Of a derivative f c / b: 2 u.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.hbm import HbmTensor
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.loss import Form
from nkilib.core.host.rounding import UNIT
from nkilib.core.host.samples import Sample
from nkilib.core.rows.arithmetic import subtract_on_gpsimd, transform
from nkilib.core.rows.numbers import LEAST_NORMAL, require_option
from nkilib.experimental.loss.l1 import L1, L1Truth
from nkilib.experimental.loss.skeletons.elementwise.host.row import NUMBERS, Functions, GradientError, elementwise_loss
from nkilib.experimental.loss.skeletons.elementwise.host.truth import WeightedTruth
from nkilib.experimental.loss.skeletons.elementwise.kind import (
    INPUT,
    TARGET,
    WEIGHT,
    Activation,
    Derivative,
    Kind,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.run import run_backward, run_forward
from nkilib.experimental.loss.skeletons.elementwise.weighted import weighted
from nkilib.nki import nl

# Of so many pieces Scalar makes what is beyond of one, in two passes more, and Vector in one pass less.
_SHARE = 5


@dataclass(frozen=True)
class SmoothL1:
    """The smooth error.

    Attributes:
        width: b, up to which an error is squared; positive.
        factor: f, of the losses.
    """

    width: float
    factor: float = 1.0

    tensors = (INPUT, TARGET)
    scratch_tiles = 4  # one more than a piece takes, so that GpSimd does not wait for Scalar

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Both, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """c, and d, or |d| - b in its place."""
        difference_sbuf, clipped_sbuf = piece.float32(), piece.float32()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, difference_sbuf)
        if not self._is_of_scalar(piece):
            transform(difference_sbuf, difference_sbuf, nl.abs, None, nl.subtract, self.width)
        return clipped_sbuf, difference_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """The square of c, and what is beyond: Scalar keeps one table, since a square needs none."""
        clipped_sbuf, other_sbuf = prepared
        square = Activation(nl.square, clipped_sbuf, sqrt(0.5 * self.factor / self.width))
        if self._is_of_scalar(piece):
            bias_sbuf = piece.constant(-self.width)
            scratch_sbuf = piece.float32() if losses.are_kept else None
            above = Activation(nl.relu, other_sbuf, scratch_sbuf=scratch_sbuf, bias_sbuf=bias_sbuf)
            losses.activations(square, above, Activation(nl.relu, other_sbuf, -1.0, bias_sbuf=bias_sbuf))
        else:
            losses.activations(square, Activation(nl.relu, other_sbuf, self.factor))

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """f c / b, and its negative."""
        clipped_sbuf = piece.float32()
        subtract_on_gpsimd(clipped_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, clipped_sbuf)
        slope = self.factor / self.width
        return {
            INPUT: Derivative(clipped_sbuf, slope, on_scalar=True),
            TARGET: Derivative(clipped_sbuf, -slope, on_scalar=True),
        }

    def _is_of_scalar(self, piece: Piece) -> bool:
        """What is beyond is made on Scalar, from d; where f is 1, so that nothing cancels."""
        return self.factor == 1.0 and piece.number % _SHARE == 0

    def _clip(self, dst_sbuf: nl.NkiTensor, difference_sbuf: nl.NkiTensor) -> None:
        transform(dst_sbuf, difference_sbuf, nl.minimum, self.width, nl.maximum, -self.width)


SMOOTH_L1_ERROR: Final = TermError(3.5)
HUBER_ERROR: Final = TermError(3.0)


@dataclass(frozen=True)
class SmoothL1Truth:
    """``torch.nn.functional.smooth_l1_loss(input.double(), target.double(), beta=width)``, times the factor.

    Attributes:
        width: up to which an error is squared.
        factor: of the losses; None: 1. The width for ``huber_loss``.
    """

    width: float
    factor: float | None = None

    @property
    def stated(self) -> TermError:
        """Of the smooth or of Huber's error."""
        return SMOOTH_L1_ERROR if self.factor is None else HUBER_ERROR

    def value(self, tensors: Tensors) -> Derived:
        """f d^2 / (2 b), or f (|d| - b / 2) beyond b."""
        width, factor = self._numbers()
        size = np.abs(tensors[INPUT] - tensors[TARGET])
        is_beyond, beyond = size > width, factor * (size - width)
        found = np.where(is_beyond, factor * (size - 0.5 * width), 0.5 * factor * size**2 / width)
        of_scale = 1.0 if self.factor is None else 0.3
        of_beyond = 0.5 * factor * size + (0.5 if self.factor is None else 1.0) * beyond + 0.5 * found
        own = np.where(is_beyond, (1.5 + of_scale) * 0.5 * factor * width + of_beyond, (2.5 + of_scale) * found)
        return Derived.of_units(found, (np.where(is_beyond, factor * size, 0.0),), own)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """f c / b, and its negative; the number f / b rounds once more than c."""
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
    """Smooth absolute error, element by element: ``d^2 / (2 beta)`` up to ``|d| = beta``, ``|d| - beta / 2`` beyond,
    with ``d = x - t``.

    Equivalent to ``F.smooth_l1_loss(input, target, reduction=reduction, beta=beta)`` in PyTorch, computed in float32.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        beta: up to which an error is squared; 0: never, as in ``l1_loss_forward``.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

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
    """Gradients of the smooth absolute error: ``clip(x - t, -beta, beta) / beta`` by the input and its negative by the
    target, each times the upstream gradient; the sign of the difference for beta 0.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, reduction, beta: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted: which gradients are computed, at least one.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm: those that are wanted, of shape and type of their
            tensor; with ``inplace`` the first is ``input_hbm``.

    Raises:
        AssertionError: before anything is written, if an argument is not accepted.
    """
    function = "smooth_l1_loss_backward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm}
    wanted = {INPUT: grad_input_wanted, TARGET: grad_target_wanted}
    return run_backward(
        function, _smooth_l1(function, beta), tensors_hbm, grad_loss_hbm, wanted, reduction, inplace, columns, buffers
    )


def _smooth_l1(function: str, beta: float) -> Kind:
    beta = require_option(function, "beta", beta, least=0.0)
    # One below the normal numbers is no option of an engine: the loss differs from the absolute error by less than it.
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
    """Huber's error, element by element: ``d^2 / 2`` up to ``|d| = delta``, ``delta (|d| - delta / 2)`` beyond, with
    ``d = x - t``, times a weight if there is one.

    Equivalent to ``F.huber_loss(input, target, reduction=reduction, delta=delta)`` in PyTorch, computed in float32;
    with a weight ``(weight * F.huber_loss(input, target, reduction="none", delta=delta))``, reduced.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm: x, bfloat16, float16 or float32, of any dense shape, in HBM.
        target_hbm: t, of the shape of the input, in any of these types.
        weight_hbm: of each element, likewise; or of an input [R, C] one of rows, [R, 1], or of columns, [1, C], without
            a copy; None: 1.
        reduction: ``"none"``, ``"sum"`` or ``"mean"`` (over elements).
        delta: up to which an error is squared, positive.
        dtype: of the losses for ``"none"``; None: that of the input.
        columns: elements of a partition of a tile; None: chosen from shape and types.
        buffers: tiles of each tensor on chip at a time; None: 3.

    Returns:
        loss_hbm: of the shape of the input for ``"none"``, else [1], float32.

    Raises:
        AssertionError: before anything is computed, if an argument is not accepted.
    """
    function = "huber_loss_forward"
    tensors_hbm = {INPUT: input_hbm, TARGET: target_hbm, WEIGHT: weight_hbm}
    kind = weighted(_huber(function, delta), weight_hbm)
    return run_forward(function, kind, tensors_hbm, reduction, dtype, columns, buffers)


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
    """Gradients of Huber's error: ``clip(x - t, -delta, delta) w`` by the input, its negative by the target, the error
    itself by the weight, each times the upstream gradient.

    Equivalent to the gradients of the forward's expression in PyTorch.

    Dimensions:
        E: elements of the input, E > 0, of any shape.

    Args:
        input_hbm, target_hbm, weight_hbm, reduction, delta: what the forward was given.
        grad_loss_hbm: of the shape of the losses for ``"none"``, bfloat16, float16 or float32; else one float32, which
            is read on the device.
        grad_input_wanted, grad_target_wanted, grad_weight_wanted: which gradients are computed, at least one; a weight
            of rows or of columns has none.
        inplace: write the gradient of the input over ``input_hbm``; else into a new tensor.
        columns, buffers: as in the forward.

    Returns:
        grad_input_hbm, grad_target_hbm, grad_weight_hbm: those that are wanted, of shape and type of their
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
    gradient_error=GradientError("2 u of the gradient"),
    functions=Functions(forward=1),
    held=((1.5, 1.05), (1.05, 1.05)),
    forms=(
        Form(SmoothL1Truth(0.7), NUMBERS, {"beta": 0.7}),
        Form(L1Truth(), NUMBERS, {"beta": 0.0}, ", beta 0"),
    ),
    edges="beta = 0 is l1_loss",
    differences="beta must be finite; one below 2^-126 is 0",
)
HUBER: Final = elementwise_loss(
    "huber_loss",
    "HuberLoss",
    huber_loss_forward,
    huber_loss_backward,
    formula="d^2 / 2 up to |d| = delta, delta (|d| - delta / 2) beyond, d = x - t",
    derivative="clip(x - t, -delta, delta)",
    errors=(HUBER_ERROR,),
    gradient_error=GradientError("2 u of the gradient"),
    functions=Functions(forward=1),
    held=((1.5, 1.05), (1.05, 1.05)),
    forms=(
        Form(SmoothL1Truth(1.3, 1.3), NUMBERS, {"delta": 1.3}),
        Form(
            WeightedTruth(SmoothL1Truth(0.6, 0.6)),
            {**NUMBERS, WEIGHT: Sample.POSITIVE},
            {"delta": 0.6},
            ", weighted",
        ),
    ),
    differences="delta must be finite, and is at least 2^-126",
)
