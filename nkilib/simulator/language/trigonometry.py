# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions :func:`sin`, :func:`cos` and :func:`tan` of any angle: the Scalar engine has a sine on [-pi, pi] only.

A multiple of 2 pi is first subtracted from the angle, in three parts with few enough bits that the products are exact
(Cody and Waite): the reduced angle is off by at most 2^-22 for |x| up to 2^18. Because the multiple is rounded from a
float32, the reduced angle may lie outside [-pi, pi] by at most |x| * 2^-23, where the engine's polynomial continues.
"""

from __future__ import annotations

from math import pi
from typing import Any

from ..engines.scalar import activation
from ..engines.vector.accumulating import scalar_tensor_tensor
from ..engines.vector.arithmetic import tensor_scalar
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from .creation import full, new_tile
from .elementwise import binary, reciprocal
from .language_function import language_function
from .operands import as_tile, result_tile

# 2 pi = 6.28125 + 127 / 65536 + the rest; the first two have 8 significant bits at most, so that their products with a
# multiple below 2^16 are exact in float32.
_TURN = (6.28125, 127 / 65536, 2 * pi - 6.28125 - 127 / 65536)


def _reduced(x: NkiTensor) -> NkiTensor:
    """Return ``x`` minus the nearest multiple of 2 pi, in float32: an angle within or close to [-pi, pi]."""
    multiples = new_tile(x.shape, dt.int32)
    tensor_scalar(multiples, x, OPERATORS["multiply"], 1 / (2 * pi))
    angle, remainder = x, new_tile(x.shape, dt.float32)
    for part in _TURN:
        scalar_tensor_tensor(
            remainder, multiples, OPERATORS["multiply"], part, OPERATORS["subtract"], angle, reverse1=True
        )
        angle = remainder
    return remainder


def _sine(angle: NkiTensor, dtype: Any) -> NkiTensor:
    result = result_tile(angle.shape, dtype, dt.float32)
    activation(result, OPERATORS["sin"], angle)
    return result


def _cosine(angle: NkiTensor, dtype: Any) -> NkiTensor:
    """Return the cosine of ``angle`` as the sine of ``pi / 2 - |angle|``, which is within [-pi / 2, pi / 2]."""
    magnitude = new_tile(angle.shape, dt.float32)
    activation(magnitude, OPERATORS["abs"], angle)
    result = result_tile(angle.shape, dtype, dt.float32)
    quarter = full((angle.shape[0], 1), pi / 2, dt.float32)
    activation(result, OPERATORS["sin"], magnitude, bias=quarter, scale=-1.0)
    return result


@language_function
def sin(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the sine of finite ``x`` of any size, like ``torch.sin``.

    The operator ``nl.sin`` is accurate on [-pi, pi] only.
    """
    tile = as_tile("x", x)
    return _sine(_reduced(tile), tile.dtype if dtype is None else dtype)


@language_function
def cos(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the cosine of finite ``x`` of any size, like ``torch.cos``."""
    tile = as_tile("x", x)
    return _cosine(_reduced(tile), tile.dtype if dtype is None else dtype)


@language_function
def tan(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the tangent of finite ``x`` of any size, like ``torch.tan``: the sine divided by the cosine."""
    tile = as_tile("x", x)
    angle = _reduced(tile)
    slope = reciprocal(_cosine(angle, dt.float32))
    return binary("multiply", _sine(angle, dt.float32), slope, tile.dtype if dtype is None else dtype)
