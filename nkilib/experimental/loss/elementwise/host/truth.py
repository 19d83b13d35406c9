"""What losses of elements should give, and how far kernels may be off, from a few functions of a kind: numpy only.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Every input is exact in float32. A kind derives the error
of a loss and of its derivatives before they are summed, multiplied by an upstream gradient or rounded to a type; what
these steps add is the same for all kinds and added here. Errors are of first order in u.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nkilib.base.guarantee import TermError
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import SMALLEST_NORMAL, UNIT, rounding
from nkilib.core.partial_sums import LEAF, levels
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.elementwise.host.reference import Float64Array, reduction_factor
from nkilib.experimental.loss.elementwise.host.term_errors import WEIGHT_UNITS
from nkilib.experimental.loss.elementwise.kind import WEIGHT
from nkilib.experimental.loss.elementwise.sizes import PARTITIONS, PIECE_COLUMNS, RUN_COLUMNS, SUMS_OF_RUN, run_columns

Tensors = Mapping[str, Float64Array]


class Exact(NamedTuple):
    """The truth, and the largest accepted error of each number of it."""

    value: Float64Array
    error: Float64Array


class Derived(NamedTuple):
    """Losses, and what float32 arithmetic may add to them, in parts.

    Attributes:
        value: the losses.
        largest: of each the largest one of itself and of its terms, in magnitude.
        own: the error with every activation function rounded correctly, in proportion to ``largest``.
        functions: by activation function, what each u adds that it is further off.
        beside: further error, which is not in proportion to ``largest``.
    """

    value: Float64Array
    largest: Float64Array
    own: Float64Array
    functions: Mapping[str, Float64Array]
    beside: Float64Array | float = 0.0

    @classmethod
    def of_units(
        cls,
        value: Float64Array,
        terms: Sequence[Float64Array | float],
        own: Float64Array,
        functions: Mapping[str, Float64Array] | None = None,
        beside: Float64Array | float = 0.0,
    ) -> Derived:
        """Of errors in u, and of the terms of the losses; none: a loss itself is the largest."""
        largest = np.abs(value)
        for each in terms:
            largest = np.maximum(largest, np.abs(each))
        further = {name: UNIT * np.abs(units) for name, units in (functions or {}).items()}
        return cls(value, largest, UNIT * own, further, UNIT * beside)

    def exact(self, functions: FunctionErrors = SIMULATED) -> Exact:
        """With activation functions that are so far off."""
        error = self.own + self.beside
        for name, each in self.functions.items():
            error = error + functions.further(name) * each
        return Exact(self.value, error)

    def times(self, factor: Float64Array) -> Derived:
        """Multiplied, which rounds once more."""
        value, size = self.value * factor, np.abs(factor)
        functions = {name: each * size for name, each in self.functions.items()}
        own = self.own * size + WEIGHT_UNITS * UNIT * np.abs(value)
        return Derived(value, self.largest * size, own, functions, self.beside * size)


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
        exact = truth.value(_float64(tensors)).exact(functions)
        error = exact.error + SMALLEST_NORMAL
        if np.dtype(dtype) != np.float32:
            error = error + rounding(exact.value, dtype)
        return Exact(_within_range(exact.value, dtype), error)


def reduced(
    truth: ElementwiseTruth,
    tensors: Mapping[str, npt.NDArray[Any]],
    reduction: str,
    columns: int,
    functions: FunctionErrors = SIMULATED,
) -> Exact:
    """Of the sum or mean, in tiles of so many columns."""
    with np.errstate(all="ignore"):
        each = truth.value(_float64(tensors)).exact(functions)
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
        doubled = _float64(tensors)
        grad = upstream.astype(np.float64) * reduction_factor(next(iter(doubled.values())).shape, reduction)
        for name, exact in truth.derivative(doubled, functions).items():
            value = grad * exact.value
            error = np.abs(grad) * exact.error + UNIT * np.abs(value) + SMALLEST_NORMAL
            dtype = tensors[name].dtype
            found[name] = Exact(_within_range(value, dtype), error + rounding(value, dtype))
    return found


def _within_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Infinite where the type has no number for it, as rounding gives it; else as it is."""
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


def sum_bound(losses: Float64Array, errors: Float64Array, columns: int, run: int) -> float:
    """Of a sum of losses, whose own errors are bounded by ``errors``, in tiles and runs of so many columns."""
    tiles = div_ceil(losses.size, PARTITIONS * columns) + 2
    additions = run + SUMS_OF_RUN * div_ceil(columns, RUN_COLUMNS) + LEAF * (levels(tiles) + levels(PARTITIONS))
    return float(errors.sum() + additions * 0.5 * UNIT * np.abs(losses).sum()) + SMALLEST_NORMAL


def _run(tensors: Mapping[str, npt.NDArray[Any]]) -> int:
    """Columns of a run of these tensors at most."""
    return run_columns([each.dtype.itemsize for each in tensors.values()], PIECE_COLUMNS)


def _float64(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Float64Array]:
    return {name: each.astype(np.float64) for name, each in tensors.items()}


def _times(exact: Exact, weight: Float64Array) -> Exact:
    value = exact.value * weight
    return Exact(value, exact.error * np.abs(weight) + 0.5 * UNIT * np.abs(value))
