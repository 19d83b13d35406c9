# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Probes of infinities and NaN on Vector: their maxima, limits, products with 0, and comparisons."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Final

import numpy as np

from nkilib.core.rows.tiles import FLOAT32_HIGHEST, FLOAT32_LOWEST
from nkilib.nki import nisa, nki, nl
from nkilib.verify.probes.probe import (
    INSTRUCTION_READINGS,
    KERNELS,
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
def negated_maximum(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return the negated maximum of each row, computed as in the forward of cross-entropy."""
    values_sbuf = loaded(values_hbm)
    maximum_sbuf = tile((values_hbm.shape[0], 1))
    nisa.tensor_reduce(dst=maximum_sbuf, op=nl.maximum, data=values_sbuf, axis=1, negate=True)
    return stored(maximum_sbuf)


_ROWS: Final = np.array(
    [
        [-_INF, 3, -_INF, 1],
        [-_INF] * 4,
        [1, _INF, 2, 0],
        [1, _NAN, 2, -3],
        [_NAN, 4, 2, -3],
        [1, 4, 2, _NAN],
        [_NAN] * 4,
    ],
    np.float32,
)


def _folded(step: Callable[[float, float], float], end: Callable[[float], float] = float) -> Array:
    """Return the expected negated maxima if the device computes the maximum of a row by comparisons, one element after
    the other.

    Args:
        step: the result of a comparison of the maximum so far with an element.
        end: a function that is applied to the last maximum.
    """
    return np.array([[-end(reduce(step, map(float, row)))] for row in _ROWS], np.float32)


MAXIMUM: Final = Probe(
    "maximum of infinities and NaN",
    True,
    "what the maximum of a row with -inf, +inf or NaN is",
    (KERNELS, "On hardware, the last three rows are unspecified"),
    "masked logits, whose row has a finite maximum; and that the loss of a row with a NaN is NaN",
    negated_maximum,
    same_arguments(values_hbm=_ROWS),
    ("neg_max",),
    [
        Reading("infinities are numbers, NaN wins", {"neg_max": _folded(lambda old, new: float(np.maximum(old, new)))}),
        Reading(
            "infinities are numbers, NaN loses against a number",
            {"neg_max": _folded(lambda old, new: float(np.fmax(old, new)))},
        ),
        Reading(
            "infinities are numbers, a NaN counts where it comes first",
            {"neg_max": _folded(lambda old, new: new if new > old else old)},
        ),
        Reading(
            "infinities are numbers, a NaN takes the place of what was before it",
            {"neg_max": _folded(lambda old, new: old if old > new else new)},
        ),
        Reading(
            "NaN loses against everything, -inf too",
            {
                "neg_max": _folded(
                    lambda old, new: float(np.fmax(old, new)), lambda found: -_INF if np.isnan(found) else found
                )
            },
        ),
        Reading(
            "-inf counts as the lowest float32, NaN wins",
            {"neg_max": _folded(lambda old, new: float(np.maximum(np.maximum(old, new), FLOAT32_LOWEST)))},
        ),
    ],
)


@nki.jit
def limited(values_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return values limited to the range of finite float32 numbers, as the forward of cross-entropy limits maxima."""
    values_sbuf = loaded(values_hbm)
    nisa.tensor_scalar(
        dst=values_sbuf,
        data=values_sbuf,
        op0=nl.minimum,
        operand0=FLOAT32_HIGHEST,
        op1=nl.maximum,
        operand1=FLOAT32_LOWEST,
    )
    return stored(values_sbuf)


LIMITS: Final = Probe(
    "limits of infinities and NaN",
    True,
    "what infinities and NaN become under a minimum and a maximum with the ends of float32",
    (KERNELS, "On hardware, the last three rows are unspecified"),
    "chunks with only -inf: a limit that lets -inf pass makes their row NaN",
    limited,
    same_arguments(values_hbm=row(-_INF, _INF, _NAN, 5, FLOAT32_LOWEST)),
    ("limited",),
    [
        Reading(name, {"limited": row(low, high, of_nan, 5, FLOAT32_LOWEST)})
        for name, low, high, of_nan in (
            ("infinities are limited, NaN stays", FLOAT32_LOWEST, FLOAT32_HIGHEST, _NAN),
            ("infinities are limited, NaN becomes the highest", FLOAT32_LOWEST, FLOAT32_HIGHEST, FLOAT32_HIGHEST),
            ("infinities are limited, NaN becomes the lowest", FLOAT32_LOWEST, FLOAT32_HIGHEST, FLOAT32_LOWEST),
            ("infinities pass, NaN stays", -_INF, _INF, _NAN),
        )
    ],
)


@nki.jit
def marked(values_hbm: nl.NkiTensor, suspects_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return values + 0 * suspects: a loss becomes NaN in this way if its log-sum-exp, the suspect, is infinite or
    NaN.
    """
    values_sbuf, suspects_sbuf = loaded(values_hbm), loaded(suspects_hbm)
    marked_sbuf = tile(values_hbm.shape)
    nisa.scalar_tensor_tensor(
        dst=marked_sbuf, data=suspects_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=values_sbuf
    )
    return stored(marked_sbuf)


ZERO_TIMES_INFINITY: Final = Probe(
    "0 times infinity",
    False,
    "whether 0 times an infinity is NaN on Vector",
    (KERNELS, "In the simulator, every result has the same class"),
    "the NaN loss of a row with a +inf",
    marked,
    same_arguments(values_hbm=row(7, 7, 7, 7, 7), suspects_hbm=row(1, _INF, -_INF, _NAN, FLOAT32_HIGHEST)),
    ("marked",),
    [
        Reading("NaN, as IEEE has it", {"marked": row(7, _NAN, _NAN, _NAN, 7)}),
        Reading("0; a NaN stays", {"marked": row(7, 7, 7, _NAN, 7)}),
        Reading("0, of NaN too", {"marked": row(7, 7, 7, 7, 7)}),
    ],
)


@nki.jit
def equal_pairs(left_hbm: nl.NkiTensor, right_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Return 1 where two values are equal, else 0, from Vector.

    The argmax finds the chunks that hold a row's maximum in this way.
    """
    left_sbuf, right_sbuf = loaded(left_hbm), loaded(right_hbm)
    is_equal_sbuf = tile(left_hbm.shape)
    nisa.tensor_tensor(dst=is_equal_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.equal)
    return stored(is_equal_sbuf)


EQUALITY: Final = Probe(
    "equality of NaN and zeros",
    False,
    "whether NaN equals itself, and the two zeros each other",
    (INSTRUCTION_READINGS, "comparisons in `nc_find_index8`"),
    "the argmax of rows with a NaN, and of rows whose maximum is a zero",
    equal_pairs,
    same_arguments(left_hbm=row(_NAN, _INF, -0.0, 1), right_hbm=row(_NAN, _INF, 0.0, 2)),
    ("is_equal",),
    [
        Reading("NaN equals nothing, zeros are equal", {"is_equal": row(0, 1, 1, 0)}),
        Reading("NaN equals itself, zeros are equal", {"is_equal": row(1, 1, 1, 0)}),
        Reading("NaN equals itself, zeros differ: bits are compared", {"is_equal": row(1, 1, 0, 0)}),
        Reading("NaN equals nothing, zeros differ", {"is_equal": row(0, 1, 0, 0)}),
    ],
)

PROBES: Final = (MAXIMUM, LIMITS, ZERO_TIMES_INFINITY, EQUALITY)
