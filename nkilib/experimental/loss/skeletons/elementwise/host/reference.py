# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 results of elementwise losses and the accepted errors of their kernels, from a few functions of
each loss.

Numpy only. u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32.
The reference of a loss derives the error of the loss and of its derivatives before they are summed,
multiplied by an upstream gradient or rounded to a type; the errors of these steps are the same for all
losses and are added here. Errors are of first order in u.
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
from nkilib.experimental.loss.skeletons.elementwise.definition import WEIGHT
from nkilib.experimental.loss.skeletons.elementwise.tiling import PIECE_COLUMNS, RUN_COLUMNS, SUMS_OF_RUN, run_columns


class ElementwiseReference(Protocol):
    """An elementwise loss in float64; tensors are passed under the names of its loss definition."""

    @property
    def stated(self) -> TermError:
        """The error of :meth:`value` that the guarantee of the loss states, in numbers."""

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses and the error of float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivative with respect to each differentiable tensor, by name.

        The error of each is that of float32 arithmetic with activation functions that have the given errors.
        """


@dataclass(frozen=True)
class WeightedReference:
    """The reference of a loss times the tensor ``"weight"``; the product rounds once more, u / 2 of itself.

    Attributes:
        reference: the reference without the weight.
    """

    reference: ElementwiseReference

    @property
    def stated(self) -> TermError:
        """The error of :meth:`value` that the guarantee states: that of the loss, plus the rounding of the product."""
        stated = self.reference.stated
        return replace(stated, own=stated.own + WEIGHT_UNITS)

    def value(self, tensors: Tensors) -> Derived:
        """Return loss * weight."""
        return self.reference.value(tensors).times(tensors[WEIGHT])

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return each derivative times the weight; the derivative with respect to the weight is the loss."""
        slopes = self.reference.derivative(tensors, functions)
        derivatives = {name: _times(slope, tensors[WEIGHT]) for name, slope in slopes.items()}
        return {**derivatives, WEIGHT: self.reference.value(tensors).exact(functions)}


def losses(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the losses, stored in ``dtype``, with their accepted errors; float32 adds no rounding error."""
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        if np.dtype(dtype) != np.float32:
            error = error + rounding(exact.value, dtype)
        return Exact(within_range(exact.value, dtype), error)


def reduced(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    columns: int,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the sum or mean of the losses in tiles of ``columns`` columns, [1], with its accepted error."""
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        factor = reduction_factor(exact.value.shape, reduction)
        total = factor * exact.value.sum()
        error = factor * sum_bound(exact.value, exact.error, columns, _run(tensors)) + UNIT * abs(total)
    return Exact(np.array([total]), np.array([error]))


def gradients(
    reference: ElementwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """Return the gradient of each tensor in the tensor's type, with its accepted error.

    The product with the upstream gradient and the factor of the reduction rounds twice.
    """
    results = {}
    with np.errstate(all="ignore"):
        doubled = as_float64(tensors)
        grad = upstream.astype(np.float64) * reduction_factor(next(iter(doubled.values())).shape, reduction)
        for name, exact in reference.derivative(doubled, functions).items():
            value = grad * exact.value
            error = np.abs(grad) * exact.error + UNIT * np.abs(value) + SMALLEST_NORMAL
            dtype = tensors[name].dtype
            results[name] = Exact(within_range(value, dtype), error + rounding(value, dtype))
    return results


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int, run: int) -> float:
    """Return the accepted error of a sum of losses whose own errors are bounded by ``errors``.

    The losses are summed in tiles of ``columns`` columns, which are summed in runs of ``run`` columns.
    """
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = run + SUMS_OF_RUN * div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def _run(tensors: Mapping[str, npt.NDArray[Any]]) -> int:
    """Return the maximum number of columns of a run, see :func:`.tiling.run_columns`, for these tensors."""
    return run_columns([tensor.dtype.itemsize for tensor in tensors.values()], PIECE_COLUMNS)


def _times(exact: Exact, weight: Float64Array) -> Exact:
    value = exact.value * weight
    return Exact(value, exact.error * np.abs(weight) + 0.5 * UNIT * np.abs(value))
