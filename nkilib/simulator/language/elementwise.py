# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Element-wise functions of ``nki.language`` that run one operator on one or two operands.

- :data:`FUNCTIONS`: the functions by name; most are made from tables of docstrings.
- :func:`reciprocal`, :func:`rsqrt`, :func:`invert`, :func:`logical_not`, :func:`negative`: functions with code of their
  own.
- :func:`binary`, :func:`activated`: run the operator that the caller names; other modules of this package use them.
  :func:`result_type`: the default type of a result.

Instructions accept most of these functions as ``op`` too: ``api/language.py`` binds them to the operators of the same
names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engines.scalar import activation
from ..engines.vector.arithmetic import reciprocal as reciprocal_elements
from ..engines.vector.arithmetic import tensor_scalar, tensor_tensor
from ..isa.operators import OPERATORS, Operator
from ..numerics.operators import is_bitwise
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import DType, as_dtype, bool_, float32
from ..terms.enums import MemoryRegion
from ..terms.errors import NkiValidationError
from .creation import new_tile
from .language_function import language_function
from .operands import (
    TileOrNumber,
    as_tile,
    common_shape,
    free_view,
    in_sbuf,
    in_type,
    is_column,
    is_number,
    promoted,
    promoted_with_number,
    result_tile,
    spread,
)

# Comparisons "default to the input tile dtype", so with any number (docstrings of nl.equal and its relatives); logical
# operators, whose docstrings leave it open, do as well.
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_TYPE_OF_TILE = _COMPARISONS | {"logical_and", "logical_or", "logical_xor"}


def _require_integers(*operands: NkiTensor | int | float) -> None:
    for operand in operands:
        is_integer = operand.dtype.is_integer if isinstance(operand, NkiTensor) else float(operand).is_integer()
        if not is_integer:
            raise NkiValidationError(f"bit-wise operators take integers, got {operand!r}")


def _tile_with_number(operator: Operator, data: NkiTensor, number: Any, is_reversed: bool, dtype: Any) -> NkiTensor:
    if is_bitwise(operator.key):
        _require_integers(data, number)
        bits = new_tile(data.shape, data.dtype)
        tensor_scalar(bits, data, operator, number, is_reversed)
        return in_type(bits, dtype)
    default = data.dtype if operator.key in _TYPE_OF_TILE else promoted_with_number(data.dtype, number)
    result = new_tile(data.shape, default if dtype is None else as_dtype(dtype))
    tensor_scalar(result, data, operator, number, is_reversed)
    return result


def _is_vector(tile: NkiTensor) -> bool:
    """Return whether a tile has one float32 element per partition, so that ``tensor_scalar`` accepts it as an
    operand.
    """
    return is_column(tile) and tile.dtype == float32


def _sources(operator: Operator, x: NkiTensor, y: NkiTensor, shape: tuple[int, ...]) -> tuple[NkiTensor, NkiTensor]:
    """Return both operands in the shape of the result, copied to SBUF where ``tensor_tensor`` cannot read them in
    place.
    """
    if operator.key == "power":
        # It runs on GpSimd, which has no access to PSUM.
        x, y = in_sbuf(x), in_sbuf(y)
    elif x.buffer is MemoryRegion.psum and y.buffer is MemoryRegion.psum:
        y = in_sbuf(y)
    return free_view(x, shape), free_view(y, shape)


def _tile_with_tile(operator: Operator, x: NkiTensor, y: NkiTensor, dtype: Any) -> NkiTensor:
    shape = common_shape(x, y)
    is_bits = is_bitwise(operator.key)
    if is_bits:
        _require_integers(x, y)
    wanted = promoted(x.dtype, y.dtype) if dtype is None or is_bits else as_dtype(dtype)
    result = new_tile(shape, wanted)
    partitions = shape[0]
    x, y = (tile if tile.shape[0] == partitions else spread(tile, partitions) for tile in (x, y))
    if not is_bits and _is_vector(y):
        tensor_scalar(result, x, operator, y)
    elif not is_bits and _is_vector(x):
        tensor_scalar(result, y, operator, x, reverse0=True)
    else:
        tensor_tensor(result, *_sources(operator, x, y, shape), operator)
    return in_type(result, dtype)


def binary(name: str, x: Any, y: Any, dtype: Any = None) -> NkiTensor:
    """Return the result of the operator ``name`` on ``x`` and ``y`` as a new tile of type ``dtype``.

    For a tile and a number, or a tile and a float32 tile of one element per partition, ``nisa.tensor_scalar`` computes
    the result on the Vector engine in float32 (integers are exact up to 2^24). For two other tiles, dimensions
    of size 1 are broadcast, and ``nisa.tensor_tensor`` computes the result on the Vector engine. Two cases run on
    GpSimd: ``power``, and operands and result of 32-bit integers, whose arithmetic is exact.

    Raises:
        NkiValidationError: neither operand is a tile, an operand is in HBM, or the shapes do not broadcast.
    """
    operator = OPERATORS[name]
    if is_number(x) and is_number(y):
        raise NkiValidationError(f"x or y must be a tile, got {x!r} and {y!r}")
    if is_number(y):
        result = _tile_with_number(operator, as_tile("x", x), y, False, dtype)
    elif is_number(x):
        result = _tile_with_number(operator, as_tile("y", y), x, True, dtype)
    else:
        result = _tile_with_tile(operator, as_tile("x", x), as_tile("y", y), dtype)
    if name in _COMPARISONS:
        result.mark_comparison()
    return result


def result_type(x: Any, y: Any) -> DType:
    """Return the default type of an arithmetic result of ``x`` and ``y``, which are two tiles, or a tile and a
    number.
    """
    if is_number(y):
        return promoted_with_number(x.dtype, y)
    if is_number(x):
        return promoted_with_number(y.dtype, x)
    return promoted(x.dtype, y.dtype)


_BINARY_RULES = """

    Either operand may be a number, but not both; dimensions of size 1 are broadcast. The result is a new tile in SBUF
    of type ``dtype``: {default}. {arithmetic}
    """
_FLOAT = "The arithmetic is float32, and exact if both operands and the result are tiles of 32-bit integers."
_BITS = "Nothing is cast on the way."
_PROMOTED = "by default the narrower type is promoted to the wider one, and an integer to float32 by a float"
_OF_TILE = "by default the type of the tile, so that ``dtype=nl.uint8`` gives a smaller tile of 0 and 1"
_OF_BITS = "by default the type of the tiles, which are integers of one width"

_ARITHMETIC = {
    "add": "Return ``x + y``, like ``torch.add``.",
    "subtract": "Return ``x - y``, like ``torch.sub``.",
    "multiply": "Return ``x * y``, like ``torch.mul``.",
    "maximum": "Return the larger of ``x`` and ``y``, like ``torch.maximum``: NaN if one of them is NaN.",
    "minimum": "Return the smaller of ``x`` and ``y``, like ``torch.minimum``: NaN if one of them is NaN.",
    "abs_max": "Return ``x`` where ``|x| > |y|``, else ``y``; the sign stays. It needs trn3.",
    "abs_min": "Return ``x`` where ``|x| < |y|``, else ``y``; the sign stays. It needs trn3.",
    "power": "Return ``x`` to the power of ``y``, like ``torch.pow``; for two tiles on the GpSimd engine.",
}

_PREDICATES = {
    "logical_and": "Return 1 where neither ``x`` nor ``y`` is 0, else 0, like ``torch.logical_and``.",
    "logical_or": "Return 1 where ``x`` or ``y`` is not 0, else 0, like ``torch.logical_or``.",
    "logical_xor": "Return 1 where exactly one of ``x`` and ``y`` is not 0, else 0, like ``torch.logical_xor``.",
    "equal": "Return 1 where ``x == y``, else 0, like ``torch.eq``.",
    "not_equal": "Return 1 where ``x != y``, else 0, like ``torch.ne``.",
    "less": "Return 1 where ``x < y``, else 0, like ``torch.lt``.",
    "less_equal": "Return 1 where ``x <= y``, else 0, like ``torch.le``.",
    "greater": "Return 1 where ``x > y``, else 0, like ``torch.gt``.",
    "greater_equal": "Return 1 where ``x >= y``, else 0, like ``torch.ge``.",
}

_BITWISE = {
    "bitwise_and": "Return the bits that are set in both ``x`` and ``y``, like ``torch.bitwise_and``.",
    "bitwise_or": "Return the bits that are set in ``x`` or ``y``, like ``torch.bitwise_or``.",
    "bitwise_xor": "Return the bits in which ``x`` and ``y`` differ, like ``torch.bitwise_xor``.",
    "left_shift": "Return the bits of ``x`` moved left by ``y`` places, with zeros shifted in.",
    "right_shift": "Return the bits of ``x`` moved right by ``y`` places; zeros come in, also for a negative ``x``.",
}

_UNARY_RULES = """

    It is one activation of the Scalar engine, in float32. The result is a new tile in SBUF of type ``dtype``, by
    default the type of ``x``.
    """

_ACTIVATIONS = {
    "abs": "Return ``|x|``, like ``torch.abs``.",
    "square": "Return ``x * x``, like ``torch.square``.",
    "exp": "Return ``e ** x``, like ``torch.exp``.",
    "log": "Return the natural logarithm of ``x``, like ``torch.log``; the hardware computes it on [2^-64, 2^64].",
    "sqrt": "Return the square root of ``x``, like ``torch.sqrt``; the hardware computes it on [2^-116, 2^118].",
    "sign": "Return -1, 0 or 1 for a negative, zero or positive ``x``, like ``torch.sign``.",
    "tanh": "Return the hyperbolic tangent of ``x``, like ``torch.tanh``.",
    "arctan": "Return the inverse tangent of ``x``, like ``torch.atan``; the hardware computes it on [-pi/2, pi/2].",
    "sigmoid": "Return ``1 / (1 + exp(-x))``, like ``torch.sigmoid``.",
    "relu": "Return ``max(x, 0)``, like ``torch.relu``.",
    "gelu": "Return ``x * Phi(x)`` with the normal distribution function Phi, like ``torch.nn.functional.gelu``.",
    "gelu_dx": "Return the derivative of :func:`gelu`: ``Phi(x) + x * phi(x)`` with the normal density phi.",
    "gelu_apprx_tanh": "Return ``gelu(x, approximate='tanh')`` of ``torch.nn.functional``.",
    "gelu_apprx_sigmoid": "Return ``x * sigmoid(1.702 * x)``, an approximation of :func:`gelu`.",
    "gelu_apprx_sigmoid_dx": "Return the derivative of ``x * sigmoid(1.702 * x)``.",
    "silu": "Return ``x * sigmoid(x)``, like ``torch.nn.functional.silu``.",
    "silu_dx": "Return the derivative of :func:`silu`: ``s + x * s * (1 - s)`` with ``s = sigmoid(x)``.",
    "softplus": "Return ``log(1 + exp(x))``, like ``torch.nn.functional.softplus``.",
    "mish": "Return ``x * tanh(softplus(x))``, like ``torch.nn.functional.mish``.",
    "erf": "Return the error function of ``x``, like ``torch.erf``.",
    "erf_dx": "Return the derivative of :func:`erf`: ``2 / sqrt(pi) * exp(-x * x)``.",
}


def _named(function: Callable[..., NkiTensor], name: str, documentation: str) -> Callable[..., NkiTensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = documentation
    return language_function(function)


def _binary_function(name: str, summary: str, default: str, arithmetic: str = _FLOAT) -> Callable[..., NkiTensor]:
    def function(x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
        return binary(name, x, y, dtype)

    return _named(function, name, summary + _BINARY_RULES.format(default=default, arithmetic=arithmetic))


def activated(name: str, x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile with the activation function ``name`` of ``x``; its type is ``dtype``, by default the type of
    ``x``.
    """
    tile = as_tile("x", x)
    result = result_tile(tile.shape, dtype, tile.dtype)
    activation(result, OPERATORS[name], tile)
    return result


def _activation_function(name: str, summary: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        return activated(name, x, dtype)

    return _named(function, name, summary + _UNARY_RULES)


@language_function
def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``1 / x``, like ``torch.reciprocal``.

    The Vector engine computes it, which is more precise than the Scalar engine.
    """
    tile = as_tile("x", x)
    result = result_tile(tile.shape, dtype, tile.dtype)
    reciprocal_elements(result, tile)
    return result


@language_function
def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``1 / sqrt(x)`` of a tile in SBUF, like ``torch.rsqrt``.

    The GpSimd engine computes it, which is more precise than the Scalar engine.
    """
    tile = as_tile("x", x)
    if tile.buffer is MemoryRegion.psum:
        raise NkiValidationError(
            f"x must be in sbuf, which the GpSimd engine can access, got {tile}: copy it there first, with nl.copy, or "
            f"use nisa.activation"
        )
    result = result_tile(tile.shape, dtype, tile.dtype)
    tensor_scalar(result, tile, OPERATORS["rsqrt"], 0.0)
    return result


@language_function
def invert(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the integer ``x`` with every bit flipped, like ``torch.bitwise_not``.

    The operation is an exclusive-or with ones; a bool has one bit.
    """
    tile = as_tile("x", x)
    return binary("bitwise_xor", tile, 1 if tile.dtype == bool_ else -1, dtype)


@language_function
def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return 1 where ``x`` is 0, and 0 where ``x`` is 1.

    The operation is an exclusive-or with 1, which does not negate other values; for other values, use ``nl.equal(x,
    0)``.
    """
    tile = as_tile("x", x)
    return binary("bitwise_xor" if tile.dtype.is_integer else "logical_xor", tile, 1, dtype)


@language_function
def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``-x``, like ``torch.neg``, in float32 on the Vector engine."""
    tile = as_tile("x", x)
    return binary("multiply", tile, -1, dtype)


# What the operators of these names do when they are called.
FUNCTIONS: dict[str, Callable[..., NkiTensor]] = {
    **{name: _binary_function(name, summary, _PROMOTED) for name, summary in _ARITHMETIC.items()},
    **{name: _binary_function(name, summary, _OF_TILE) for name, summary in _PREDICATES.items()},
    **{name: _binary_function(name, summary, _OF_BITS, _BITS) for name, summary in _BITWISE.items()},
    **{name: _activation_function(name, summary) for name, summary in _ACTIVATIONS.items()},
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "invert": invert,
}
