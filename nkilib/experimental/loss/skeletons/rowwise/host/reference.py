# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 results of row-wise losses and the accepted errors of their kernels, from a few functions of
each loss.

Numpy only. u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32.
The reference of a loss derives the error of the loss of a row and of its derivatives; the errors of sums
over rows, of products with upstream gradients and of rounding to other types are added here. A sum of a row
of D numbers has :func:`additions` consecutive additions, each of which costs u / 2 of the sum.
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


class RowwiseReference(Protocol):
    """A row-wise loss in float64; tensors are passed under the names of the kernel's arguments."""

    @property
    def stated(self) -> TermError:
        """The error of :meth:`value` that the guarantee of the loss states, in numbers; n is :func:`additions`."""

    def value(self, tensors: Tensors) -> Derived:
        """Return the losses [N] and the error of float32 arithmetic."""

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivative with respect to each differentiable tensor, [N, D] whatever the tensor's shape.

        An error is infinite where rounding to float32 may select another branch of the loss.
        """


def additions(columns: int) -> float:
    """Return the number of consecutive additions when ``columns`` numbers are summed in runs, and then the runs
    are summed.
    """
    return min(columns, RUN_COLUMNS) + div_ceil(columns, RUN_COLUMNS) + 1.0


def summed(terms: Float64Array, errors: Float64Array) -> Exact:
    """Return the sum of each row of ``terms``, whose own errors are ``errors``, with the accepted error of the
    sum.
    """
    cost = additions(terms.shape[1]) * _HALF * np.abs(terms).sum(axis=1)
    return Exact(terms.sum(axis=1), errors.sum(axis=1) + cost)


def losses(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    dtype: Any,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the losses, stored in ``dtype``, with their accepted errors."""
    with np.errstate(all="ignore"):
        exact = reference.value(as_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        return Exact(exact.value, error if np.dtype(dtype) == np.float32 else error + rounding(exact.value, dtype))


def reduced(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Return the sum or mean of the losses, [1], with its accepted error."""
    exact = reference.value(as_float64(tensors)).exact(functions)
    rows = exact.value.size
    tiles = div_ceil(rows, partitions_of_tile(rows)) + 2
    numbers = min(rows, MOST_EACH) + LEAF * (levels(tiles) + levels(128))
    error = exact.error.sum() + numbers * _HALF * np.abs(exact.value).sum()
    factor = factor_of(reduction, rows)
    value = exact.value.sum() * factor
    return Exact(np.array([value]), np.array([error * factor + UNIT * abs(value) + SMALLEST_NORMAL]))


def gradients(
    reference: RowwiseReference,
    tensors: Mapping[str, npt.NDArray[Any]],
    upstream: npt.NDArray[Any],
    reduction: str,
    functions: FunctionErrors = SIMULATED,
) -> dict[str, Exact]:
    """Return the gradient of each tensor, in its type and shape, with its accepted error.

    The upstream gradient is [N], or [1] for a sum or mean.
    """
    results = {}
    with np.errstate(all="ignore"):
        for name, exact in reference.derivative(as_float64(tensors), functions).items():
            grad = upstream.astype(np.float64).reshape(-1, 1) * factor_of(reduction, len(exact.value))
            value = grad * exact.value
            error = np.abs(grad) * exact.error + 2.0 * UNIT * np.abs(value) + SMALLEST_NORMAL
            if tensors[name].shape[0] < len(value):
                error = error.sum(axis=0, keepdims=True) + _additions_of_rows(value) * _HALF * np.abs(value).sum(axis=0)
                value = value.sum(axis=0, keepdims=True)
            results[name] = Exact(value, error + rounding(value, tensors[name].dtype))
    return results


def _additions_of_rows(values: Float64Array) -> float:
    """Return the maximum number of consecutive additions when the gradients of all rows are summed.

    The tiles are added first, then the rows of a partition by halves, then the partitions.
    """
    rows = len(values)
    partitions = partitions_of_tile(rows)
    return div_ceil(rows, partitions) / 2.0 + MOST_EACH.bit_length() + partitions + 3.0


def factor_of(reduction: str, rows: int) -> float:
    """Return the factor by which a reduction multiplies the sum of the losses; 1 for ``"none"``."""
    return 1.0 / rows if reduction == "mean" else 1.0
