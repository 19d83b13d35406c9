# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses of rows should give, and how far kernels may be off, from a few functions of a kind: numpy only.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A kind derives the error
of the loss of a row and of its derivatives; what sums of rows, upstream gradients and types add is added here. A sum of
a row of D numbers has :func:`additions` in a row, of which each costs u / 2 of what is summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array, as_float64
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import MOST_EACH, RUN_COLUMNS, partitions_of_tile

_HALF: Final = 0.5 * UNIT
Tensors = Mapping[str, Float64Array]


class RowwiseTruth(Protocol):
    """A loss of rows in float64. Tensors come by the names of the kernel's arguments."""

    @property
    def stated(self) -> TermError:
        """The error of :meth:`value` as figures; n is :func:`additions`."""

    def value(self, tensors: Tensors) -> Derived:
        """The losses [N], and the error of float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """By each tensor that there is a gradient of, [N, D] whatever its shape.

        Errors are infinite where float32 may take another side.
        """


def additions(columns: int) -> float:
    """How many are in a row where so many numbers are summed up in runs, and then the runs."""
    return min(columns, RUN_COLUMNS) + div_ceil(columns, RUN_COLUMNS) + 1.0


def summed(terms: Float64Array, errors: Float64Array) -> Exact:
    """The sums of rows of terms."""
    cost = additions(terms.shape[1]) * _HALF * np.abs(terms).sum(axis=1)
    return Exact(terms.sum(axis=1), errors.sum(axis=1) + cost)


def losses(
    truth: RowwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Of the losses that are stored in a type."""
    with np.errstate(all="ignore"):
        exact = truth.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        return Exact(exact.value, error if np.dtype(dtype) == np.float32 else error + rounding(exact.value, dtype))


def reduced(
    truth: RowwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Of their sum or mean, [1]."""
    exact = truth.value(as_float64(tensors)).exact(functions)
    rows = exact.value.size
    tiles = div_ceil(rows, partitions_of_tile(rows)) + 2
    numbers = min(rows, MOST_EACH) + LEAF * (levels(tiles) + levels(128))
    error = exact.error.sum() + numbers * _HALF * np.abs(exact.value).sum()
    factor = factor_of(reduction, rows)
    value = exact.value.sum() * factor
    return Exact(np.array([value]), np.array([error * factor + UNIT * abs(value) + SMALLEST_NORMAL]))


def gradients(
    truth: RowwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """By each tensor, in its type and shape; the upstream gradient is [N], or [1] of a sum or mean."""
    found = {}
    with np.errstate(all="ignore"):
        for name, exact in truth.derivative(as_float64(tensors), functions).items():
            grad = upstream.astype(np.float64).reshape(-1, 1) * factor_of(reduction, len(exact.value))
            value = grad * exact.value
            error = np.abs(grad) * exact.error + 2.0 * UNIT * np.abs(value) + SMALLEST_NORMAL
            if tensors[name].shape[0] < len(value):
                error = error.sum(axis=0, keepdims=True) + _additions_of_rows(value) * _HALF * np.abs(value).sum(axis=0)
                value = value.sum(axis=0, keepdims=True)
            found[name] = Exact(value, error + rounding(value, tensors[name].dtype))
    return found


def _additions_of_rows(values: Float64Array) -> float:
    """How many are in a row where rows are summed up: tiles at most, rows of a partition by halves, partitions."""
    rows = len(values)
    partitions = partitions_of_tile(rows)
    return div_ceil(rows, partitions) / 2.0 + MOST_EACH.bit_length() + partitions + 3.0


def factor_of(reduction: str, rows: int) -> float:
    """What the sum of the losses is multiplied by; 1 for ``"none"``."""
    return 1.0 / rows if reduction == "mean" else 1.0
