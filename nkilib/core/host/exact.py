# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 reference of a loss, and the accepted error of float32 arithmetic. Needs numpy only.

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
    """Return the factor that the sum of the losses is multiplied by; 1 for ``"none"``."""
    divisors = {"none": 1, "sum": 1, "mean": int(np.prod(shape)), "batchmean": shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


# Units of a product with a weight, which rounds once more.
WEIGHT_UNITS: Final = 0.5


class Exact(NamedTuple):
    """The reference values, and the largest accepted error of each."""

    value: Float64Array
    error: Float64Array


class Derived(NamedTuple):
    """Reference losses, and the error that float32 arithmetic may add to them, in parts.

    Attributes:
        value: the losses.
        largest: for each loss, the largest magnitude among the loss itself and its terms.
        own: the error with every activation function rounded correctly, in proportion to ``largest``.
        functions: by activation function, the error of the loss for each u by which the function is off beyond correct
            rounding.
        beside: the further error, which is not in proportion to ``largest``.
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
        """Make an instance from errors in units of u and from the terms that the losses consist of; without terms,
        ``largest`` is the magnitude of the loss.
        """
        largest = np.abs(value)
        for term in terms:
            largest = np.maximum(largest, np.abs(term))
        further = {name: UNIT * np.abs(units) for name, units in (functions or {}).items()}
        return cls(value, largest, UNIT * own, further, UNIT * beside)

    def exact(self, functions: FunctionErrors = SIMULATED) -> Exact:
        """Return the reference with the accepted error, for activation functions with the given errors."""
        error = self.own + self.beside
        for name, per_unit in self.functions.items():
            error = error + functions.further(name) * per_unit
        return Exact(self.value, error)

    def times(self, factor: Float64Array) -> Derived:
        """Return the losses multiplied by a factor. The product rounds once more, which adds to ``own``."""
        value, size = self.value * factor, np.abs(factor)
        functions = {name: per_unit * size for name, per_unit in self.functions.items()}
        own = self.own * size + WEIGHT_UNITS * UNIT * np.abs(value)
        return Derived(value, self.largest * size, own, functions, self.beside * size)


def within_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Replace numbers that ``dtype`` cannot hold by an infinity, as rounding does; leave the others as they are."""
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


def as_float64(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Float64Array]:
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
