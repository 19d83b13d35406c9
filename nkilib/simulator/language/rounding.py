# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Rounding to integers, and quotients and remainders, which use rounding; every function runs several instructions.

:func:`floor`, :func:`ceil` and :func:`trunc` round; :func:`divide`, :func:`mod` and :func:`fmod` divide.

The engines have no such operators, but they round when they cast to int32; in the simulator to the nearest integer. The
functions are correct for any direction of that rounding.
"""

from __future__ import annotations

from math import copysign, inf
from typing import Any

from ..engines.vector.accumulating import scalar_tensor_tensor
from ..engines.vector.arithmetic import reciprocal, tensor_scalar, tensor_tensor
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.errors import NkiValidationError
from .creation import new_tile
from .elementwise import activated, binary, result_type
from .language_function import language_function
from .operands import TileOrNumber, as_tile, cast_copy, is_number

# From here on every float32 is an integer.
_ALL_INTEGERS = float(2**23)


def _excess(x: NkiTensor, comparison: str, combination: str) -> NkiTensor:
    """Return ``x - floor(x)`` or ``x - ceil(x)``: 0 for integers and infinities, NaN for NaN.

    A cast to int32 rounds ``x`` to some integer. The difference ``d = x - integer`` is exact and less than 1 in
    magnitude. The operators ``"less"`` and ``"add"`` give ``d + (d < 0)``, which is ``x - floor(x)``; ``"greater"`` and
    ``"subtract"`` give ``d - (d > 0)``, which is ``x - ceil(x)``.
    """
    # One tile holds the clipped values, then the difference, then the excess.
    values = new_tile(x.shape, dt.float32)
    tensor_scalar(values, x, OPERATORS["minimum"], _ALL_INTEGERS, op1=OPERATORS["maximum"], operand1=-_ALL_INTEGERS)
    integer = cast_copy(values, dt.int32)
    tensor_tensor(values, values, integer, OPERATORS["subtract"])
    scalar_tensor_tensor(values, values, OPERATORS[comparison], 0.0, OPERATORS[combination], values, reverse1=True)
    return values


def _rounded(x: NkiTensor, comparison: str, combination: str, dtype: Any) -> NkiTensor:
    tile = as_tile("x", x)
    if tile.dtype.is_integer:
        return cast_copy(tile, tile.dtype if dtype is None else dt.as_dtype(dtype))
    return binary("subtract", tile, _excess(tile, comparison, combination), tile.dtype if dtype is None else dtype)


@language_function
def floor(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the largest integer that is not above ``x``, like ``torch.floor``, by default in the type of ``x``."""
    return _rounded(x, "less", "add", dtype)


@language_function
def ceil(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the smallest integer that is not below ``x``, like ``torch.ceil``, by default in the type of ``x``."""
    return _rounded(x, "greater", "subtract", dtype)


@language_function
def trunc(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``x`` without its fraction, like ``torch.trunc``, by default in the type of ``x``."""
    tile = as_tile("x", x)
    if tile.dtype.is_integer:
        return floor(tile, dtype)
    magnitude = floor(activated("abs", tile, dt.float32))
    return binary("multiply", magnitude, activated("sign", tile, dt.float32), tile.dtype if dtype is None else dtype)


def _inverse(y: Any) -> Any:
    if is_number(y):
        # 0 gives an infinity, as in a tile, and no error.
        return copysign(inf, y) if y == 0 else 1.0 / y
    inverse = new_tile(y.shape, dt.float32)
    reciprocal(inverse, y)
    return inverse


def _operands(x: Any, y: Any) -> tuple[Any, Any]:
    """Return both operands, which are numbers or tiles that instructions can read.

    Raises:
        NkiValidationError: neither operand is a tile.
    """
    if is_number(x) and is_number(y):
        raise NkiValidationError(f"x or y must be a tile, got {x!r} and {y!r}")
    return (x if is_number(x) else as_tile("x", x)), (y if is_number(y) else as_tile("y", y))


def _magnitude(value: Any) -> Any:
    return abs(value) if is_number(value) else activated("abs", value, dt.float32)


def _sign(value: Any) -> Any:
    return (value > 0) - (value < 0) if is_number(value) else activated("sign", value, dt.float32)


@language_function
def divide(x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
    """Return ``x / y``, like ``torch.div``: ``x`` times the reciprocal of ``y``.

    The error is at most two units in the last place, and larger if the reciprocal is a subnormal number. Either operand
    may be a number, but not both; dimensions of size 1 are broadcast. Integers give float32.
    """
    x, y = _operands(x, y)
    kind = result_type(x, y)
    default = kind if kind.is_float else dt.float32
    return binary("multiply", x, _inverse(y), default if dtype is None else dtype)


def _remainder(x: Any, y: Any) -> NkiTensor:
    """Return ``x - y * floor(x / y)`` in float32, corrected where rounding made ``floor(x / y)`` wrong by one.

    The result has the sign of ``y`` and a smaller magnitude than ``y``.
    """
    quotient = floor(binary("multiply", x, _inverse(y), dt.float32))
    remainder = binary("subtract", x, binary("multiply", quotient, y, dt.float32), dt.float32)
    is_too_large = binary("greater_equal", activated("abs", remainder), _magnitude(y))
    remainder = binary("subtract", remainder, binary("multiply", is_too_large, y, dt.float32), dt.float32)
    has_wrong_sign = binary("less", binary("multiply", remainder, y, dt.float32), 0.0)
    return binary("add", remainder, binary("multiply", has_wrong_sign, y, dt.float32), dt.float32)


@language_function
def mod(x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
    """Return the remainder of ``x / y`` with the sign of ``y``, like ``torch.remainder`` and Python's ``%``.

    The arithmetic is float32. For ``|x / y|`` up to 2^22, the result is exact for integers up to 2^24, and otherwise
    off by at most ``|x| * 2^-23``. ``y`` must be finite; where ``y`` is 0, the result is NaN.
    """
    x, y = _operands(x, y)
    return cast_copy(_remainder(x, y), result_type(x, y) if dtype is None else dt.as_dtype(dtype))


@language_function
def fmod(x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
    """Return the remainder of ``x / y`` with the sign of ``x``, like ``torch.fmod`` and C's ``fmod``.

    The precision is that of :func:`mod`; where ``y`` is 0, the result is NaN.
    """
    x, y = _operands(x, y)
    remainder = _remainder(_magnitude(x), _magnitude(y))
    return binary("multiply", remainder, _sign(x), result_type(x, y) if dtype is None else dtype)
