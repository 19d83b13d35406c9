# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The accepted errors of reference values. The references themselves are in the modules of the losses.

A reference computes in float64 (:func:`as_float64`, :func:`reduction_factor`) and states its errors as
:class:`Derived`. From the errors of the activation functions (:class:`FunctionErrors`), :meth:`Derived.exact` makes the
accepted errors (:class:`Exact`). There are three sets of function errors: of correct rounding (:data:`CORRECT`), of the
simulator (:data:`SIMULATED`), and those that checks of a device allow (:data:`GRANTED`). :data:`SMALLEST_NORMAL` is the
least float32 that is not flushed to zero. :data:`WEIGHT_UNITS` is the error, in u, of multiplying a loss by a weight.
:func:`rounding`, :data:`HALF_ULP` and :func:`within_range` give the errors of rounding a result to its type.

The unit of errors is u = :data:`UNIT` = 2^-23, the spacing of float32 above 1: rounding to float32 once changes a
number y by at most |y| u / 2. Errors are of first order in u. A correctly rounded activation function has an error of u
/ 2. This module needs numpy only, and is never traced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]
Tensors = Mapping[str, Float64Array]

UNIT: Final = 2.0**-23
# The least float32, and bfloat16, that is not flushed to zero.
SMALLEST_NORMAL: Final = 2.0**-126
# Units of a product with a weight, which rounds once more.
WEIGHT_UNITS: Final = 0.5
# The error of a correctly rounded function, in u of its result.
CORRECTLY_ROUNDED: Final = 0.5


class HalfUlp(NamedTuple):
    """Half a unit in the last place of a floating-point type, the largest error of rounding to it.

    Attributes:
        relative: the relative error of a normal number.
        absolute: the absolute error where numbers are subnormal, or flushed to zero.
    """

    relative: float
    absolute: float


HALF_ULP: Final = {
    "float32": HalfUlp(2.0**-24, SMALLEST_NORMAL),
    "bfloat16": HalfUlp(2.0**-8, SMALLEST_NORMAL),
    "float16": HalfUlp(2.0**-11, 2.0**-25),
}


def rounding(exact: npt.NDArray[Any], dtype: Any) -> Float64Array:
    """Return, for each number, an upper bound of the change that rounding it to the type ``dtype`` makes."""
    half = HALF_ULP[np.dtype(dtype).name]
    with np.errstate(all="ignore"):
        error: Float64Array = half.relative * np.abs(exact) + half.absolute
    return error


def within_range(exact: Float64Array, dtype: Any) -> Float64Array:
    """Return the numbers, with an infinity of the same sign for each number that rounds to infinity in ``dtype``."""
    return np.where(np.isinf(exact.astype(dtype)), np.copysign(np.inf, exact), exact)


def as_float64(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Float64Array]:
    return {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def reduction_factor(shape: tuple[int, ...], reduction: str) -> float:
    """Return the factor by which a reduction multiplies the sum of the losses, such as 1 / N for a mean; 1 for
    ``"none"``.

    Args:
        shape: the shape of the losses before the reduction.
        reduction: ``"none"``, ``"sum"``, ``"mean"`` or ``"batchmean"``, which divides by ``shape[0]``.
    """
    divisors = {"none": 1, "sum": 1, "mean": int(np.prod(shape)), "batchmean": shape[0] if shape else 1}
    return 1.0 / divisors[reduction]


@dataclass(frozen=True)
class FunctionErrors:
    """The largest error of each activation function, in units of u = 2^-23 of the function's result.

    Attributes:
        exp, log, reciprocal, rsqrt, sigmoid, softplus, sqrt: the functions, named as in ``nki.language``.
    """

    exp: float = CORRECTLY_ROUNDED
    log: float = CORRECTLY_ROUNDED
    reciprocal: float = CORRECTLY_ROUNDED
    rsqrt: float = CORRECTLY_ROUNDED
    sigmoid: float = CORRECTLY_ROUNDED
    softplus: float = CORRECTLY_ROUNDED
    sqrt: float = CORRECTLY_ROUNDED

    def further(self, function: str) -> float:
        """Return the error of an activation function minus the error of correct rounding, in u."""
        error: float = getattr(self, function)
        return error - CORRECTLY_ROUNDED


# All of them rounded correctly.
CORRECT: Final = FunctionErrors()
# The errors of the simulator's functions, with which tests check the kernels. Only exp and log are further off than a
# correctly rounded function; a function that is not listed may be too (tanh is off by up to 0.92 u with AVX2, and 1.3 u
# without). They are numpy's, whose sources document 2.52 and 3.83 units of the last place; such a unit is between u / 2
# and u of a number. Over all float32 numbers with normal results, on CPUs with AVX2 and with AVX512, exp is off by at
# most 1.784 u (2.54 units, at -62.0295), and log, on the documented range from 2^-64 to 2^64, by at most 2.289 u (3.83
# units, at 0.7464124); without AVX2 by 0.5 u and 0.66 u. The larger numbers hold on every CPU, while the last bits of
# results differ between CPUs (docs/explanation/simulator.md).
SIMULATED: Final = FunctionErrors(exp=1.8, log=2.3)
# The errors that verification allows for hardware, whose functions nobody has measured.
GRANTED: Final = FunctionErrors(exp=3.0, log=4.0, reciprocal=4.0, rsqrt=4.0, sigmoid=4.0, softplus=4.0, sqrt=2.0)


class Exact(NamedTuple):
    """Reference values, and for each value the largest error that a check accepts."""

    value: Float64Array
    error: Float64Array


class Derived(NamedTuple):
    """Reference losses, and the error that float32 arithmetic may add to them, as a sum of three contributions.

    Attributes:
        value: the losses.
        largest: for each loss, the largest magnitude among the loss itself and the terms that add up to it.
        own: the error if every activation function is rounded correctly; it is in proportion to ``largest``.
        functions: by name of an activation function, how much the error of each loss grows for each u = 2^-23 by which
            the error of the function exceeds u / 2.
        beside: a further error, which is not in proportion to ``largest``.
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
        """Return an instance from errors in units of u = 2^-23.

        Args:
            value: the losses.
            terms: the terms that add up to each loss; without them, ``largest`` is the magnitude of the loss.
            own, functions, beside: the attributes of these names, divided by u.
        """
        largest = np.abs(value)
        for term in terms:
            largest = np.maximum(largest, np.abs(term))
        further = {name: UNIT * np.abs(units) for name, units in (functions or {}).items()}
        return cls(value, largest, UNIT * own, further, UNIT * beside)

    def exact(self, functions: FunctionErrors = SIMULATED) -> Exact:
        """Return the values with their largest accepted errors.

        Args:
            functions: the errors of the activation functions.
        """
        error = self.own + self.beside
        for name, per_unit in self.functions.items():
            error = error + functions.further(name) * per_unit
        return Exact(self.value, error)

    def times(self, factor: Float64Array) -> Derived:
        """Return the losses multiplied by a factor for each loss. The rounding of the products adds to ``own``."""
        value, size = self.value * factor, np.abs(factor)
        functions = {name: per_unit * size for name, per_unit in self.functions.items()}
        own = self.own * size + WEIGHT_UNITS * UNIT * np.abs(value)
        return Derived(value, self.largest * size, own, functions, self.beside * size)
