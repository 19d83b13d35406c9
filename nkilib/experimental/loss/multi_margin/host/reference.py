# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""References of the kernels in float64, computed from the same inputs that the kernels get, and derived error
bounds.

Numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A hinge is
relu(x_j + fl(margin - x_t)), where fl rounds to float32: its error is u / 2 of |margin - x_t|, of
x_j + (margin - x_t), and of the margin, which float32 may round. The error of a square is twice the hinge
times the error of the hinge, and u / 2 of the square. The sum of a row adds C numbers, including the
target's own term, within a chunk one after the other at most, and subtracts that term. Three factors
follow: 1 / (N C), the weight and the upstream gradient. A sum of rows adds 32 numbers at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkilib.core.host.exact import Float64Array
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.multi_margin.host.tiling import MOST_COLUMNS
from nkilib.experimental.loss.skeletons.indexed.positions import PARTITIONS, Shape


@dataclass(frozen=True)
class MultiMarginReference:
    """The hinges and weights of every row, in float64.

    Attributes:
        hinges: relu(x_j - x_t + margin), [N, C], 0 at the target.
        weights: the class weight of each row's target, divided by C, [N].
        targets: the target of each row, [N].
        p: the exponent, 1 or 2.
    """

    hinges: Float64Array
    weights: Float64Array
    targets: npt.NDArray[Any]
    p: int

    @classmethod
    def of(
        cls,
        input: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        class_weight: npt.NDArray[Any] | None = None,
        p: int = 1,
        margin: float = 1.0,
    ) -> MultiMarginReference:
        """Compute the reference from the arguments of ``torch.nn.functional.multi_margin_loss``, with int32 targets."""
        x = input.astype(np.float64)
        rows, classes = x.shape
        with np.errstate(all="ignore"):
            hinges = np.maximum(x - x[np.arange(rows), targets][:, None] + margin, 0.0)
        hinges[np.arange(rows), targets] = 0.0
        weight = np.ones(classes) if class_weight is None else class_weight.astype(np.float64)
        return cls(hinges, weight[targets] / classes, targets, p)

    def losses(self) -> Float64Array:
        """Return ``F.multi_margin_loss(input, target, p, margin, weight, reduction="none")``, [N]."""
        losses: Float64Array = self.weights * (self.hinges**self.p).sum(axis=1)
        return losses

    def gradient(self, upstream: npt.NDArray[Any]) -> Float64Array:
        """Return the gradient of the losses times ``upstream`` ([N] or one number), [N, C]."""
        slopes = (self.hinges > 0).astype(np.float64) if self.p == 1 else 2.0 * self.hinges
        gradient = np.asarray(slopes * (self.weights * upstream.astype(np.float64))[:, None])
        gradient[np.arange(len(gradient)), self.targets] = -gradient.sum(axis=1)
        return gradient


def hinge_errors(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> Float64Array:
    """Return the error of each hinge, [N, C]."""
    at_target = input.astype(np.float64)[np.arange(len(input)), reference.targets][:, None]
    error: Float64Array = 0.5 * UNIT * (2.0 * np.abs(margin) + np.abs(at_target) + reference.hinges) + SMALLEST_NORMAL
    return error


def loss_bounds(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> Float64Array:
    """Return the largest accepted error of the loss of each row in float32, [N]."""
    of_hinge = hinge_errors(input, reference, margin)
    own = max(margin, 0.0) ** reference.p
    if reference.p == 2:
        of_hinge = (2.0 * reference.hinges + of_hinge) * of_hinge + 0.5 * UNIT * reference.hinges**2
    sums = (reference.hinges**reference.p).sum(axis=1) + own
    error = of_hinge.sum(axis=1) + 0.5 * UNIT * _additions(input.shape[1]) * sums
    bounds: Float64Array = np.abs(reference.weights) * error + 2.0 * UNIT * np.abs(reference.losses()) + SMALLEST_NORMAL
    return bounds


def sum_bound(input: npt.NDArray[Any], reference: MultiMarginReference, margin: float) -> float:
    """Return the largest accepted error of the sum of the losses."""
    blocks = div_ceil(len(input), Shape.of(tuple(input.shape)).rows_of_block)
    additions = LEAF * (levels(blocks) + levels(PARTITIONS))
    losses = np.abs(reference.losses()).sum()
    return float(loss_bounds(input, reference, margin).sum() + 0.5 * UNIT * additions * losses)


def gradient_bounds(
    input: npt.NDArray[Any], reference: MultiMarginReference, margin: float, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the largest accepted error of each element of the gradient in the type of the input, [N, C].

    For p = 1 a term that is within its error of 0 may count or not.
    """
    of_hinge = hinge_errors(input, reference, margin)
    scale = np.abs(reference.weights * upstream.astype(np.float64))[:, None]
    exact = reference.gradient(upstream)
    if reference.p == 1:
        x = input.astype(np.float64)
        rows = np.arange(len(x))
        distance = np.abs(x - x[rows, reference.targets][:, None] + margin)
        error = np.where(distance <= of_hinge, 1.0, 0.0)
    else:
        error = 2.0 * of_hinge
    error[np.arange(len(error)), reference.targets] = 0.0
    sums = error.sum(axis=1)
    if reference.p == 2:
        sums += 0.5 * UNIT * _additions(input.shape[1]) * 2.0 * (reference.hinges.sum(axis=1) + max(margin, 0.0))
    error[np.arange(len(error)), reference.targets] = sums
    bounds: Float64Array = scale * error + 2.0 * UNIT * np.abs(exact) + SMALLEST_NORMAL + rounding(exact, input.dtype)
    return bounds


def _additions(classes: int) -> int:
    """Return the number of consecutive additions in the sum of a row.

    They are the additions within a chunk, those of the chunks, and the subtraction of the target's own term.
    """
    return min(classes, MOST_COLUMNS) + div_ceil(classes, MOST_COLUMNS) + 2
