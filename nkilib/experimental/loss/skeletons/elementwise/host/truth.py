# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses of elements should give, and how far kernels may be off, from a few functions of a kind: numpy only.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A kind derives the error
of a loss and of its derivatives before they are summed, multiplied by an upstream gradient or rounded to a type; what
these steps add is the same for all kinds and added here. Errors are of first order in u.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import (
    WEIGHT_UNITS,
    Derived,
    Exact,
    Float64Array,
    Tensors,
    as_float64,
    reduction_factor,
    within_range,
)
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.elementwise.kind import WEIGHT
from nkilib.experimental.loss.skeletons.elementwise.tiling import PIECE_COLUMNS, RUN_COLUMNS, SUMS_OF_RUN, run_columns


class ElementwiseTruth(Protocol):
    """A loss of elements in float64. Tensors come by the names of the kind."""

    @property
    def stated(self) -> TermError:
        """The error of :meth:`value` as figures."""

    def value(self, tensors: Tensors) -> Derived:
        """The losses, and the error of float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """By each tensor that there is a gradient of; the error is that of float32 arithmetic with such functions."""


@dataclass(frozen=True)
class WeightedTruth:
    """A loss times the tensor ``"weight"``: the product rounds once more, u / 2 of itself.

    Attributes:
        truth: without the weight.
    """

    truth: ElementwiseTruth

    @property
    def stated(self) -> TermError:
        """Of the product."""
        stated = self.truth.stated
        return replace(stated, own=stated.own + WEIGHT_UNITS)

    def value(self, tensors: Tensors) -> Derived:
        """loss * weight."""
        return self.truth.value(tensors).times(tensors[WEIGHT])

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Derivative * weight; by the weight, the loss."""
        slopes = self.truth.derivative(tensors, functions)
        found = {name: _times(each, tensors[WEIGHT]) for name, each in slopes.items()}
        return {**found, WEIGHT: self.truth.value(tensors).exact(functions)}


def losses(
    truth: ElementwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Of the losses that are stored in a type. In float32 they are what the arithmetic gives."""
    with np.errstate(all="ignore"):
        exact = truth.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        if np.dtype(dtype) != np.float32:
            error = error + rounding(exact.value, dtype)
        return Exact(within_range(exact.value, dtype), error)


def reduced(
    truth: ElementwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    columns: int,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Of the sum or mean, in tiles of so many columns."""
    with np.errstate(all="ignore"):
        each = truth.value(as_float64(tensors)).exact(functions)
        factor = reduction_factor(each.value.shape, reduction)
        total = factor * each.value.sum()
        error = factor * sum_bound(each.value, each.error, columns, _run(tensors)) + UNIT * abs(total)
    return Exact(np.array([total]), np.array([error]))


def gradients(
    truth: ElementwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """By each tensor, each in the type of its tensor. Products with upstream gradient and factor round twice."""
    found = {}
    with np.errstate(all="ignore"):
        doubled = as_float64(tensors)
        grad = upstream.astype(np.float64) * reduction_factor(next(iter(doubled.values())).shape, reduction)
        for name, exact in truth.derivative(doubled, functions).items():
            value = grad * exact.value
            error = np.abs(grad) * exact.error + UNIT * np.abs(value) + SMALLEST_NORMAL
            dtype = tensors[name].dtype
            found[name] = Exact(within_range(value, dtype), error + rounding(value, dtype))
    return found


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int, run: int) -> float:
    """Of a sum of losses, whose own errors are bounded by ``errors``, in tiles and runs of so many columns."""
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = run + SUMS_OF_RUN * div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def _run(tensors: Mapping[str, npt.NDArray[Any]]) -> int:
    """Columns of a run of these tensors at most."""
    return run_columns([each.dtype.itemsize for each in tensors.values()], PIECE_COLUMNS)


def _times(exact: Exact, weight: Float64Array) -> Exact:
    value = exact.value * weight
    return Exact(value, exact.error * np.abs(weight) + 0.5 * UNIT * np.abs(value))
