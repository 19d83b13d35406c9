# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of arithmetic on Vector and Scalar: casts to integers, sums while the results are rounded, activation
functions of large numbers, infinities and NaN, and subnormal results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import ml_dtypes
import numpy as np

from nkilib.core.rows.tiles import FLOAT32_HIGHEST, FLOAT32_LOWEST
from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    CROSS_ENTROPY,
    INSTRUCTION_READINGS,
    TENSOR_READINGS,
    Probe,
    Reading,
    loaded,
    row,
    same_arguments,
    stored,
    tile,
)
from nkilib.verify.step import Array

_INF: Final = np.inf
_NAN: Final = np.nan


@nki.jit
def cast_to_int32(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return float32 values cast to int32 on Vector."""
    values_sbuf = loaded(values_hbm)
    integers_sbuf = tile(values_hbm.shape, nl.int32)
    nisa.tensor_copy(dst=integers_sbuf, src=values_sbuf)
    return stored(integers_sbuf)


_TO_CAST: Final = row(0.5, 1.5, 2.5, -0.5, -1.5, 2.7, -2.7, 3e9, -3e9, _NAN)
_ROUNDED: Final[dict[str, Callable[[Array], Array]]] = {
    "to the nearest, halves to even": np.rint,
    "towards zero": np.trunc,
    "to the nearest, halves away from zero": lambda values: np.copysign(np.floor(np.abs(values) + 0.5), values),
}


def _int32(rounded: Callable[[Array], Array], saturates: bool) -> Array:
    """Return the expected int32 results of the cast, if the device rounds like the function ``rounded``.

    With ``saturates``, values out of range become the nearest integer and NaN becomes 0; else all of them become the
    lowest integer, as on x86.
    """
    lowest, highest = -(2.0**31), 2.0**31 - 1
    values = rounded(_TO_CAST.astype(np.float64))
    if saturates:
        return np.nan_to_num(values, nan=0.0).clip(lowest, highest).astype(np.int32)
    return np.where((values >= lowest) & (values <= highest), values, lowest).astype(np.int32)


CAST: Final = Probe(
    "float to integer",
    True,
    "how a float becomes an integer",
    (TENSOR_READINGS, "float to integer"),
    "the argmax, which is counted in float32 and returned as int32",
    cast_to_int32,
    same_arguments(values_hbm=_TO_CAST),
    ("integers",),
    [
        Reading(
            f"{name}; {'saturates, NaN gives 0' if saturates else 'out of range and NaN give -2^31'}",
            {"integers": _int32(rounded, saturates)},
        )
        for saturates in (True, False)
        for name, rounded in _ROUNDED.items()
    ],
)


@nki.jit
def sum_beside_cast(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of the exponentials of bfloat16 values, while the rounded exponentials are written over the
    values.

    The forward of cross-entropy does this.
    """
    values_sbuf = loaded(values_hbm)
    sum_sbuf, zero_sbuf = tile((1, 1)), tile((1, 1))
    nisa.memset(dst=zero_sbuf, value=0.0)
    nisa.activation(
        dst=values_sbuf,
        op=nl.exp,
        data=values_sbuf,
        bias=zero_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )
    return stored(sum_sbuf)


# exp of it lies between 1 and the middle of 1 and its neighbour in bfloat16.
_SMALL: Final = 2.0**-9
_TERMS: Final = 64
SUM: Final = Probe(
    "sum beside a result",
    True,
    "whether a reduction beside a bfloat16 result adds the float32 values or the rounded ones",
    (INSTRUCTION_READINGS, "reductions beside a result (`reduce_res`)"),
    "the sum of exponentials in bfloat16: rounded terms cost 2^-9 of it, some 0.002 of every loss",
    sum_beside_cast,
    same_arguments(values_hbm=np.full((1, _TERMS), _SMALL, np.float32).astype(ml_dtypes.bfloat16)),
    ("sum",),
    [
        Reading("the float32 values", {"sum": row(_TERMS * np.exp(_SMALL))}),
        Reading("the values rounded to bfloat16", {"sum": row(_TERMS)}),
    ],
    tolerance=1e-4,
)


@nki.jit
def activations(values_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor, nl.NkiTensor]:
    """Return exp, log and tanh of the values, from Scalar."""
    values_sbuf = loaded(values_hbm)
    results = []
    for function in (nl.exp, nl.log, nl.tanh):
        result_sbuf = tile(values_hbm.shape)
        nisa.activation(dst=result_sbuf, op=function, data=values_sbuf)
        results.append(stored(result_sbuf))
    return results[0], results[1], results[2]


_FUNCTIONS: Final = ("exp", "log", "tanh")
_OUTSIDE: Final = "activation functions outside their valid range"
_OF_EXP: Final = row(-_INF, FLOAT32_LOWEST, -1e4, 0.0, 1.0, 89.0, 1e4, FLOAT32_HIGHEST, _INF, _NAN)
EXPONENTIALS: Final = Probe(
    "exp of large numbers and infinities",
    True,
    "what exp gives for infinities, NaN, and where it overflows or vanishes",
    (INSTRUCTION_READINGS, _OUTSIDE),
    "masked logits, whose exponential is 0, and the class of rows with +inf or NaN",
    activations,
    same_arguments(values_hbm=_OF_EXP),
    _FUNCTIONS,
    [
        Reading("the mathematical function", {"exp": row(0, 0, 0, 1, np.e, _INF, _INF, _INF, _INF, _NAN)}),
        Reading(
            "saturates at the largest float32",
            {"exp": row(0, 0, 0, 1, np.e, *[FLOAT32_HIGHEST] * 4, _NAN)},
        ),
        Reading("NaN for -inf", {"exp": row(_NAN, 0, 0, 1, np.e, _INF, _INF, _INF, _INF, _NAN)}),
        Reading("NaN for both infinities", {"exp": row(_NAN, 0, 0, 1, np.e, _INF, _INF, _INF, _NAN, _NAN)}),
        Reading("0 for NaN", {"exp": row(0, 0, 0, 1, np.e, _INF, _INF, _INF, _INF, 0)}),
    ],
    tolerance=1e-3,
)

_OF_LOG: Final = row(1.0, 2.0**-60, 2.0**60, 2.0**-100, 2.0**100, 0.0, _INF, _NAN)
_LIMIT: Final = 64 * np.log(2.0)
_INSIDE: Final = (0.0, 60 * np.log(0.5), 60 * np.log(2.0))
LOGARITHMS: Final = Probe(
    "log outside its range",
    True,
    "what log gives for 0, infinity, NaN and beyond [2^-64, 2^64], for which it is documented",
    (INSTRUCTION_READINGS, _OUTSIDE),
    "rows with only -inf, with a +inf, or with a NaN",
    activations,
    same_arguments(values_hbm=_OF_LOG),
    _FUNCTIONS,
    [
        Reading(
            "the mathematical function",
            {"log": row(*_INSIDE, 100 * np.log(0.5), 100 * np.log(2.0), -_INF, _INF, _NAN)},
        ),
        Reading(
            "the logarithm of the nearest number in the range", {"log": row(*_INSIDE, *[-_LIMIT, _LIMIT] * 2, _NAN)}
        ),
        Reading("NaN outside the range", {"log": row(*_INSIDE, *[_NAN] * 5)}),
        Reading(
            "the mathematical function of finite numbers, the largest of float32 for 0 and infinity",
            {"log": row(*_INSIDE, 100 * np.log(0.5), 100 * np.log(2.0), FLOAT32_LOWEST, FLOAT32_HIGHEST, _NAN)},
        ),
        Reading(
            "the mathematical function of numbers, NaN for infinity",
            {"log": row(*_INSIDE, 100 * np.log(0.5), 100 * np.log(2.0), -_INF, _NAN, _NAN)},
        ),
    ],
    tolerance=1e-3,
)

_OF_TANH: Final = row(-_INF, -1e30, -100.0, 0.0, 0.5, 100.0, 1e30, _INF, _NAN)
_FINITE_TANH: Final = (-1, -1, 0, np.tanh(0.5), 1, 1)
TANGENTS: Final = Probe(
    "tanh of large numbers and infinities",
    False,
    "what tanh gives for infinities and large numbers",
    (INSTRUCTION_READINGS, _OUTSIDE),
    "soft caps of masked logits",
    activations,
    same_arguments(values_hbm=_OF_TANH),
    _FUNCTIONS,
    [
        Reading("the mathematical function", {"tanh": row(-1, *_FINITE_TANH, 1, _NAN)}),
        Reading("NaN for infinities", {"tanh": row(_NAN, *_FINITE_TANH, _NAN, _NAN)}),
        Reading("a number for NaN", {"tanh": row(-1, *_FINITE_TANH, 1, 1)}),
    ],
    tolerance=1e-3,
)


@nki.jit
def subnormal_results(exponents_hbm: nl.NkiTensor, factors_hbm: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return results below the smallest normal number: exponentials from Scalar, and products from Vector."""
    exponents_sbuf, factors_sbuf = loaded(exponents_hbm), loaded(factors_hbm)
    of_scalar_sbuf, of_vector_sbuf = tile(exponents_hbm.shape), tile(factors_hbm.shape)
    nisa.activation(dst=of_scalar_sbuf, op=nl.exp, data=exponents_sbuf)
    nisa.tensor_scalar(dst=of_vector_sbuf, data=factors_sbuf, op0=nl.multiply, operand0=2.0**-40)
    return stored(of_scalar_sbuf), stored(of_vector_sbuf)


_EXPONENTS: Final = row(-80.0, -90.0, -92.0)
_FACTORS: Final = row(2.0**-80, 2.0**-90, 2.0**-95)


def _kept_and_flushed(values: Array) -> dict[bool, Array]:
    """Return two possible results of values whose last two are subnormal: under True, with these kept; under False,
    with these flushed to zero.
    """
    values = values.astype(np.float32)
    return {True: values, False: np.where(values < 2.0**-126, np.float32(0), values)}


_OF_SCALAR: Final = _kept_and_flushed(np.exp(_EXPONENTS.astype(np.float64)))
_OF_VECTOR: Final = _kept_and_flushed(_FACTORS.astype(np.float64) * 2.0**-40)
SUBNORMAL: Final = Probe(
    "subnormal results",
    False,
    "whether numbers below 2^-126 are kept or become 0",
    (CROSS_ENTROPY, "| gradient, float32 |"),
    "the class of very small gradients; the bound allows either",
    subnormal_results,
    same_arguments(exponents_hbm=_EXPONENTS, factors_hbm=_FACTORS),
    ("scalar", "vector"),
    [
        Reading(name, {"scalar": _OF_SCALAR[by_scalar], "vector": _OF_VECTOR[by_vector]})
        for name, by_scalar, by_vector in (
            ("kept by Scalar and Vector", True, True),
            ("0 on Scalar and Vector", False, False),
            ("0 on Scalar, kept by Vector", False, True),
            ("kept by Scalar, 0 on Vector", True, False),
        )
    ],
    tolerance=1e-3,
)

PROBES: Final = (CAST, SUM, EXPONENTIALS, LOGARITHMS, TANGENTS, SUBNORMAL)
