# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions of the operators of instructions, by name: arithmetic in float32, and bit-wise on integers.

- :data:`ARITHMETIC`, :data:`ARITHMETIC_UNARY`, :data:`BITWISE`, :data:`BITWISE_UNARY`: the operators;
- :data:`ARITHMETIC_REDUCTIONS`, :data:`BITWISE_REDUCTIONS`: the :class:`Reduction`, or numpy function, of an operator;
- :func:`row_sums`, :func:`row_maxima`: faster reductions, for long rows of float32 and for rows of bfloat16;
- :func:`is_bitwise`, :func:`is_unary`: whether an operator works on bits, or has one operand.

Source: table "Supported Math Operators" (``nki/api/nki.api.shared.rst``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Two operands and an array for the result, which may be one of them.
Binary = Callable[[Any, Any, Array], Any]
Unary = Callable[[Array, Array], Any]

_WORD_BITS = 8

# Elements that einsum adds in one go. It keeps 16 or more partial sums, some for each place of its vectors, so that a
# partial sum has at most 16 terms, as in numpy's pairwise sum.
_PIECE = 256
_SHORTEST = 2048

_NEGATIVE_INFINITY_BITS = 0xFF80
# 2 MiB: the second pass finds the rows in a server core's second-level cache.
_BLOCK_ELEMENTS = 1 << 20


def _ufunc(function: np.ufunc) -> Binary:
    return lambda x, y, out: function(x, y, out=out)


def _predicate(function: np.ufunc) -> Binary:
    # 1 where the comparison or logical function holds, else 0.
    return lambda x, y, out: np.copyto(out, function(x, y), casting="unsafe")


def _power(x: Any, y: Any, out: Array) -> None:
    if out.dtype.kind in "iu":
        # Integers stay exact; 1 / x^-y is cut to an integer for negative y, which leaves something of 1 and -1 only.
        is_one = np.absolute(x) == 1
        np.power(x, np.where(is_one, np.absolute(y), np.maximum(y, 0)), out=out)
        out[(y < 0) & ~is_one] = 0
    else:
        np.power(x, y, out=out)


def _by_magnitude(wins: np.ufunc) -> Binary:
    """Return an operator that chooses the operand, with its sign, by magnitude.

    ``wins(abs(x), abs(y))`` is true where x is chosen; for equal magnitudes y is chosen. Source: docstrings of
    ``nl.abs_max`` and ``nl.abs_min``.
    """
    return lambda x, y, out: np.copyto(out, np.where(wins(np.absolute(x), np.absolute(y)), x, y), casting="unsafe")


@dataclass(frozen=True)
class Reduction:
    """How an operator reduces along the free axis.

    Attributes:
        ufunc: the numpy function whose ``reduce`` is used.
        identity: the value from which the reduction starts.
    """

    ufunc: np.ufunc
    identity: float


ARITHMETIC: dict[str, Binary] = {
    "add": _ufunc(np.add),
    "subtract": _ufunc(np.subtract),
    "multiply": _ufunc(np.multiply),
    "maximum": _ufunc(np.maximum),
    "minimum": _ufunc(np.minimum),
    "equal": _predicate(np.equal),
    "not_equal": _predicate(np.not_equal),
    "greater_equal": _predicate(np.greater_equal),
    "greater": _predicate(np.greater),
    "less_equal": _predicate(np.less_equal),
    "less": _predicate(np.less),
    "logical_and": _predicate(np.logical_and),
    "logical_or": _predicate(np.logical_or),
    "logical_xor": _predicate(np.logical_xor),
    "power": _power,
    "abs_max": _by_magnitude(np.greater),
    "abs_min": _by_magnitude(np.less),
}

ARITHMETIC_UNARY: dict[str, Unary] = {
    "abs": lambda x, out: np.absolute(x, out=out),
    "square": lambda x, out: np.square(x, out=out),
    "relu": lambda x, out: np.maximum(x, np.float32(0.0), out=out),
    "rsqrt": lambda x, out: np.divide(np.float32(1.0), np.sqrt(x), out=out),
    "reciprocal": lambda x, out: np.divide(np.float32(1.0), x, out=out),
}


def _shift(function: np.ufunc) -> Binary:
    """Return a logical shift of bit patterns; the result is 0 if the distance is at least the number of bits."""

    def shift(x: Any, y: Any, out: Array) -> None:
        unsigned = out.view(out.dtype.str.replace("i", "u"))
        bits = np.asarray(x).astype(out.dtype).view(unsigned.dtype)
        distance = np.asarray(y).astype(out.dtype).view(unsigned.dtype)
        width = out.dtype.itemsize * _WORD_BITS
        shifted = function(bits, np.minimum(distance, width - 1).astype(unsigned.dtype))
        np.copyto(unsigned, np.where(distance < width, shifted, 0), casting="unsafe")

    return shift


BITWISE: dict[str, Binary] = {
    "bitwise_and": _ufunc(np.bitwise_and),
    "bitwise_or": _ufunc(np.bitwise_or),
    "bitwise_xor": _ufunc(np.bitwise_xor),
    "left_shift": _shift(np.left_shift),
    "right_shift": _shift(np.right_shift),
}

BITWISE_UNARY: dict[str, Unary] = {"invert": lambda x, out: np.invert(x, out=out)}

# "Legal Reduction op" of the table, with the result of a reduction over nothing.
ARITHMETIC_REDUCTIONS: dict[str, Reduction] = {
    "add": Reduction(np.add, 0.0),
    "subtract": Reduction(np.subtract, 0.0),
    "multiply": Reduction(np.multiply, 1.0),
    "maximum": Reduction(np.maximum, -np.inf),
    "minimum": Reduction(np.minimum, np.inf),
    "logical_and": Reduction(np.logical_and, 1.0),
    "logical_or": Reduction(np.logical_or, 0.0),
    "logical_xor": Reduction(np.logical_xor, 0.0),
}

BITWISE_REDUCTIONS: dict[str, np.ufunc] = {
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}


def is_bitwise(key: str) -> bool:
    return key in BITWISE or key in BITWISE_UNARY


def is_unary(key: str) -> bool:
    return key in ARITHMETIC_UNARY or key in BITWISE_UNARY


def row_sums(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the sum of each row of an array (rows, elements), in float32.

    A long row is summed in pieces of 256 elements, and the sums of the pieces are added pairwise. This is as exact as
    ``np.add.reduce`` and takes half the time, because numpy's pairwise sum of float32 is not vectorised.
    """
    rows, width = values.shape
    if width < _SHORTEST:
        return np.add.reduce(values, axis=1)
    in_pieces = width // _PIECE * _PIECE
    pieces = values[:, :in_pieces].reshape(rows, -1, _PIECE)
    total = np.add.reduce(np.einsum("ijk->ij", pieces), axis=1)
    if in_pieces < width:
        total += np.add.reduce(values[:, in_pieces:], axis=1)
    return total


def row_maxima(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the maximum of each row of a bfloat16 array (rows, one or more elements) in float32; NaN if a row has a
    NaN.

    The bit patterns are compared as integers, which needs no cast. As int16, non-negative numbers have their own order
    and exceed all negative numbers, which have the reverse order. So the maximum of a row of negative numbers is the
    minimum of its int16 patterns. A row has a NaN if its largest int16 or uint16 pattern exceeds that of an infinity.
    """
    signed, unsigned = values.view(np.int16), values.view(np.uint16)
    maxima = np.empty(values.shape[0], np.int16)
    has_nan = np.empty(values.shape[0], np.bool_)
    step = max(1, _BLOCK_ELEMENTS // values.shape[1])
    for start in range(0, values.shape[0], step):
        rows = slice(start, start + step)
        np.maximum.reduce(signed[rows], axis=1, out=maxima[rows])
        has_nan[rows] = np.maximum.reduce(unsigned[rows], axis=1) > _NEGATIVE_INFINITY_BITS
    negative = np.flatnonzero(maxima < 0)
    if negative.size:
        maxima[negative] = np.minimum.reduce(signed[negative], axis=1)
    results = maxima.view(values.dtype).astype(np.float32)
    results[has_nan] = np.nan
    return results
