# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What losses should give in float64, and how far float32 arithmetic may be off: numpy only.

u = 2^-23; rounding to float32 once costs u / 2 of the number. Errors are of first order in u.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT

Float64Array: TypeAlias = npt.NDArray[np.float64]


Tensors = Mapping[str, Float64Array]


def reduction_factor(shape: tuple[int, ...], reduction: str) -> float:
    """What the sum of the losses is multiplied by; 1 for ``"none"``."""
    divisors = {"none": 1, "sum": 1, "mean": int(np.prod(shape)), "batchmean": shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


# Of a product with a weight, which rounds once more.
WEIGHT_UNITS: Final = 0.5


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


def within_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Infinite where the type has no number for it, as rounding gives it; else as it is."""
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


def as_float64(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Float64Array]:
    return {name: each.astype(np.float64) for name, each in tensors.items()}
