# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""References of the kernels in float64, computed from the same inputs that the kernels get, and derived error
bounds.

Numpy only, for host code.

u = 2^-23; rounding to float32 once costs u / 2. A loss is one product of exact numbers: without a weight
its error is 0. A sum adds 32 numbers at a time; for a streamed input the positions of a partition are added
first. A mean multiplies by the reciprocal of a sum that has an error of its own. A gradient is the product
of an upstream gradient, a weight, and for a mean the reciprocal of the total weight: three products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkilib.core.host.exact import Float64Array
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.plan_limits import limited_parts
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.nll.class_tiles import PARTS_MAX, STREAMED_CLASSES_MAX, ClassTiling
from nkilib.experimental.loss.skeletons.indexed.positions import PARTITIONS, Shape, number_of_batches
from nkilib.nki import nl


class NllLosses(NamedTuple):
    """The losses and weights of every position, in the shape of the targets; 0 at ignored positions.

    Attributes:
        losses: ``-w[t] * x[t]``.
        weights: ``w[t]``.
    """

    losses: Float64Array
    weights: Float64Array

    def reduced(self, reduction: str) -> Float64Array:
        """Reduce the losses as ``F.nll_loss`` does."""
        with np.errstate(all="ignore"):
            if reduction == "none":
                return self.losses
            total = self.losses.sum()
            return np.asarray(total if reduction == "sum" else total / self.weights.sum())


def nll_loss_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], class_weight: npt.NDArray[Any] | None, ignore_index: int
) -> NllLosses:
    """Return the losses and weights of every position.

    PyTorch equivalent: ``F.nll_loss(input.double(), targets, class_weight, ignore_index=ignore_index,
    reduction="none")``.
    """
    counts = targets != ignore_index
    classes = np.where(counts, targets, 0)
    values = np.take_along_axis(input.astype(np.float64), np.expand_dims(classes, 1), 1).squeeze(1)
    weight = np.ones(input.shape[1]) if class_weight is None else class_weight.astype(np.float64)
    with np.errstate(all="ignore"):
        losses = np.where(counts, -weight[classes] * values, 0.0)
    return NllLosses(losses, np.where(counts, weight[classes], 0.0))


def nll_loss_gradient_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], weights: Float64Array, upstream: npt.NDArray[Any]
) -> Float64Array:
    """Return the gradient: ``-weights * upstream`` at the targets, and 0 elsewhere. Ignored targets have weight 0."""
    gradient = np.zeros(input.shape)
    with np.errstate(all="ignore"):
        values = np.where(weights == 0.0, 0.0, -weights * upstream)
    classes = np.where(weights == 0.0, 0, targets)
    np.put_along_axis(gradient, np.expand_dims(classes, 1), np.expand_dims(values, 1), 1)
    return gradient


def nll_loss_bound(
    reference: NllLosses, shape: tuple[int, ...], reduction: str, dtype: Any, streamed: bool | None = None
) -> Float64Array:
    """Return the largest accepted error of the losses, or of their sum or mean, for an input of shape ``shape``.

    The losses are stored in ``dtype`` for ``"none"``. ``streamed`` is the argument of the kernel.
    """
    if reduction == "none":
        return 0.5 * UNIT * np.abs(reference.losses) + rounding(reference.losses, dtype)
    additions = _additions(Shape.of(shape), streamed)
    with np.errstate(all="ignore"):
        error = (additions + 1) * 0.5 * UNIT * np.abs(reference.losses).sum()
        if reduction == "mean":
            total = np.abs(reference.weights.sum())
            of_weights = additions * 0.5 * UNIT * np.abs(reference.weights).sum() / total
            error = error / total + (of_weights + 2.0 * UNIT) * np.abs(reference.reduced(reduction))
    return np.asarray(error + SMALLEST_NORMAL)


def _additions(shape: Shape, streamed: bool | None) -> int:
    """Return the number of consecutive additions in a sum over all positions.

    For a streamed input, the additions of the positions of a partition come first.
    """
    if streamed is False or shape.classes > STREAMED_CLASSES_MAX:
        return LEAF * (levels(number_of_batches(shape)) + levels(PARTITIONS))
    tiling = ClassTiling.of(shape, nl.bfloat16)
    tiles = tiling.number_of_tiles
    most = limited_parts(PARTS_MAX)
    of_part = div_ceil(tiles, most) * tiling.positions
    return of_part + LEAF * (levels(min(tiles, most)) + levels(PARTITIONS))


def nll_loss_gradient_bound(exact: Float64Array, dtype: npt.DTypeLike) -> Float64Array:
    """Return the largest accepted error of each element of the gradient; an element that is 0 is exact."""
    return np.where(exact == 0.0, SMALLEST_NORMAL, 4.0 * UNIT * np.abs(exact) + rounding(exact, dtype))
