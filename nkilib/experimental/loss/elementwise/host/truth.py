"""What losses of elements should give, and how far kernels may be off, from a few functions of a kind: numpy only.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A kind derives the error
of a loss and of its derivatives before they are summed, multiplied by an upstream gradient or rounded to a type; what
these steps add is the same for all kinds and added here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.host.reference import Float64Array, reduction_factor
from nkilib.experimental.loss.elementwise.kind import WEIGHT
from nkilib.experimental.loss.elementwise.sizes import PARTITIONS, RUN_COLUMNS, SUMS_OF_RUN

# What an activation function of the float32 implementations may be off, in u of its result.
LOG_UNITS, EXP_UNITS = 4.0, 3.0
Tensors = Mapping[str, Float64Array]


class Exact(NamedTuple):
    """The truth, and the largest accepted error of each number of it."""

    value: Float64Array
    error: Float64Array


class ElementwiseTruth(Protocol):
    """A loss of elements in float64. Tensors come by the names of the kind."""

    def value(self, tensors: Tensors) -> Exact:
        """The losses; the error is that of float32 arithmetic."""

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """By each tensor that there is a gradient of; the same."""


@dataclass(frozen=True)
class WeightedTruth:
    """A loss times the tensor ``"weight"``: the product rounds once more, u / 2 of itself.

    Attributes:
        truth: without the weight.
    """

    truth: ElementwiseTruth

    def value(self, tensors: Tensors) -> Exact:
        """loss * weight."""
        return _times(self.truth.value(tensors), tensors[WEIGHT])

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """Derivative * weight; by the weight, the loss."""
        found = {name: _times(each, tensors[WEIGHT]) for name, each in self.truth.derivative(tensors).items()}
        return {**found, WEIGHT: self.truth.value(tensors)}


def losses(truth: ElementwiseTruth, tensors: Mapping[str, npt.NDArray[Any]], dtype: Any) -> Exact:
    """Of the losses that are stored in a type."""
    with np.errstate(all="ignore"):
        exact = truth.value(_float64(tensors))
        error = exact.error + SMALLEST_NORMAL + rounding(exact.value, dtype)
        return Exact(_within_range(exact.value, dtype), error)


def reduced(truth: ElementwiseTruth, tensors: Mapping[str, npt.NDArray[Any]], reduction: str, columns: int) -> Exact:
    """Of the sum or mean, in tiles of so many columns."""
    with np.errstate(all="ignore"):
        each = truth.value(_float64(tensors))
        factor = reduction_factor(each.value.shape, reduction)
        total = factor * each.value.sum()
        error = factor * sum_bound(each.value, each.error, columns) + UNIT * abs(total)
    return Exact(np.array([total]), np.array([error]))


def gradients(
    truth: ElementwiseTruth, tensors: Mapping[str, npt.NDArray[Any]], upstream: npt.NDArray[Any], reduction: str
) -> dict[str, Exact]:
    """By each tensor, each in the type of its tensor. Products with upstream gradient and factor round twice."""
    found = {}
    with np.errstate(all="ignore"):
        doubled = _float64(tensors)
        grad = upstream.astype(np.float64) * reduction_factor(next(iter(doubled.values())).shape, reduction)
        for name, exact in truth.derivative(doubled).items():
            value = grad * exact.value
            error = np.abs(grad) * exact.error + UNIT * np.abs(value) + SMALLEST_NORMAL
            dtype = tensors[name].dtype
            found[name] = Exact(_within_range(value, dtype), error + rounding(value, dtype))
    return found


def _within_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Infinite where the type has no number for it, as rounding gives it; else as it is."""
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int) -> float:
    """Of a sum of losses, whose own errors are bounded by ``errors``, in tiles of so many columns."""
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = RUN_COLUMNS + SUMS_OF_RUN * div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def _float64(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Float64Array]:
    return {name: each.astype(np.float64) for name, each in tensors.items()}


def _times(exact: Exact, weight: Float64Array) -> Exact:
    value = exact.value * weight
    return Exact(value, exact.error * np.abs(weight) + 0.5 * UNIT * np.abs(value))
