# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The element-wise functions that are one operator: tables of their documentation, and the functions made from them.

Most are also what instructions take as ``op``: ``functions.py`` binds them to the operators of their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..engines.scalar.activation import activation
from ..engines.vector.arithmetic import reciprocal as reciprocal_elements
from ..engines.vector.arithmetic import tensor_scalar
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms.dtypes import bool_
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .binary import binary
from .located import language_function
from .tiles import TileOrNumber, as_tile, result_tile

_BINARY_RULES = """

    Either operand may be a number, but not both; dimensions of size 1 are broadcast. The result is a new tile in SBUF
    of type ``dtype``: {default}. {arithmetic}
    """
_FLOAT = "Computed in float32, but exactly where both operands and the result are tiles of 32-bit integers."
_BITS = "Nothing is cast on the way."
_PROMOTED = "by default the narrower type is promoted to the wider one, and an integer to float32 by a float"
_OF_TILE = "by default that of the tile, so that ``dtype=nl.uint8`` gives a smaller truth tile"
_OF_BITS = "by default that of the tiles, which are integers of one width"

_ARITHMETIC = {
    "add": "``x + y``, as ``torch.add``.",
    "subtract": "``x - y``, as ``torch.sub``.",
    "multiply": "``x * y``, as ``torch.mul``.",
    "maximum": "The larger one of ``x`` and ``y``, as ``torch.maximum``: NaN if one of them is NaN.",
    "minimum": "The smaller one of ``x`` and ``y``, as ``torch.minimum``: NaN if one of them is NaN.",
    "abs_max": "``x`` where ``|x| > |y|``, else ``y``; the sign stays. Needs trn3.",
    "abs_min": "``x`` where ``|x| < |y|``, else ``y``; the sign stays. Needs trn3.",
    "power": "``x`` to the power of ``y``, as ``torch.pow``; of two tiles on the GpSimd engine.",
}

_TRUTHS = {
    "logical_and": "1 where neither ``x`` nor ``y`` is 0, else 0, as ``torch.logical_and``.",
    "logical_or": "1 where ``x`` or ``y`` is not 0, else 0, as ``torch.logical_or``.",
    "logical_xor": "1 where exactly one of ``x`` and ``y`` is not 0, else 0, as ``torch.logical_xor``.",
    "equal": "1 where ``x == y``, else 0, as ``torch.eq``.",
    "not_equal": "1 where ``x != y``, else 0, as ``torch.ne``.",
    "less": "1 where ``x < y``, else 0, as ``torch.lt``.",
    "less_equal": "1 where ``x <= y``, else 0, as ``torch.le``.",
    "greater": "1 where ``x > y``, else 0, as ``torch.gt``.",
    "greater_equal": "1 where ``x >= y``, else 0, as ``torch.ge``.",
}

_BITWISE = {
    "bitwise_and": "Bits that are set in both ``x`` and ``y``, as ``torch.bitwise_and``.",
    "bitwise_or": "Bits that are set in ``x`` or ``y``, as ``torch.bitwise_or``.",
    "bitwise_xor": "Bits in which ``x`` and ``y`` differ, as ``torch.bitwise_xor``.",
    "left_shift": "The bits of ``x`` moved left by ``y`` places; zeros come in.",
    "right_shift": "The bits of ``x`` moved right by ``y`` places; zeros come in, also for a negative ``x``.",
}

_UNARY_RULES = """

    One activation of the Scalar engine, in float32. The result is a new tile in SBUF of type ``dtype``, by default that
    of ``x``.
    """

_ACTIVATIONS = {
    "abs": "``|x|``, as ``torch.abs``.",
    "square": "``x * x``, as ``torch.square``.",
    "exp": "``e ** x``, as ``torch.exp``.",
    "log": "The natural logarithm of ``x``, as ``torch.log``; the hardware knows it on [2^-64, 2^64].",
    "sqrt": "The square root of ``x``, as ``torch.sqrt``; the hardware knows it on [2^-116, 2^118].",
    "sign": "-1, 0 or 1 as ``x`` is negative, 0 or positive, as ``torch.sign``.",
    "tanh": "The hyperbolic tangent of ``x``, as ``torch.tanh``.",
    "arctan": "The inverse tangent of ``x``, as ``torch.atan``; the hardware knows it on [-pi/2, pi/2].",
    "sigmoid": "``1 / (1 + exp(-x))``, as ``torch.sigmoid``.",
    "relu": "``max(x, 0)``, as ``torch.relu``.",
    "gelu": "``x * Phi(x)`` with the normal distribution function Phi, as ``torch.nn.functional.gelu``.",
    "gelu_dx": "The derivative of :func:`gelu`: ``Phi(x) + x * phi(x)`` with the normal density phi.",
    "gelu_apprx_tanh": "``gelu(x, approximate='tanh')`` of ``torch.nn.functional``.",
    "gelu_apprx_sigmoid": "``x * sigmoid(1.702 * x)``, an approximation of :func:`gelu`.",
    "gelu_apprx_sigmoid_dx": "The derivative of ``x * sigmoid(1.702 * x)``.",
    "silu": "``x * sigmoid(x)``, as ``torch.nn.functional.silu``.",
    "silu_dx": "The derivative of :func:`silu`: ``s + x * s * (1 - s)`` with ``s = sigmoid(x)``.",
    "softplus": "``log(1 + exp(x))``, as ``torch.nn.functional.softplus``.",
    "mish": "``x * tanh(softplus(x))``, as ``torch.nn.functional.mish``.",
    "erf": "The error function of ``x``, as ``torch.erf``.",
    "erf_dx": "The derivative of :func:`erf`: ``2 / sqrt(pi) * exp(-x * x)``.",
}


def _named(function: Callable[..., NkiTensor], name: str, documentation: str) -> Callable[..., NkiTensor]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = documentation
    return language_function(function)


def _binary_function(name: str, summary: str, default: str, arithmetic: str = _FLOAT) -> Callable[..., NkiTensor]:
    def function(x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
        return binary(name, x, y, dtype)

    return _named(function, name, summary + _BINARY_RULES.format(default=default, arithmetic=arithmetic))


def _activation_function(name: str, summary: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, dtype: Any = None) -> NkiTensor:
        return activated(name, x, dtype)

    return _named(function, name, summary + _UNARY_RULES)


def activated(name: str, x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """A new tile with an activation function of ``x``."""
    tile = as_tile("x", x)
    result = result_tile(tile.shape, dtype, tile.dtype)
    activation(result, OPERATORS[name], tile)
    return result


@language_function
def reciprocal(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """``1 / x``, as ``torch.reciprocal``; on the Vector engine, which is more precise than the Scalar engine."""
    tile = as_tile("x", x)
    result = result_tile(tile.shape, dtype, tile.dtype)
    reciprocal_elements(result, tile)
    return result


@language_function
def rsqrt(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """``1 / sqrt(x)`` of a tile in SBUF, as ``torch.rsqrt``; on the GpSimd engine, more precise than the Scalar one."""
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
    """Every bit of the integer ``x`` flipped, as ``torch.bitwise_not``: exclusive-or with ones; a bool has one bit."""
    tile = as_tile("x", x)
    return binary("bitwise_xor", tile, 1 if tile.dtype == bool_ else -1, dtype)


@language_function
def logical_not(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """1 where ``x`` is 0, and 0 where it is 1: exclusive-or with 1, which is no negation of other values.

    For those, ``nl.equal(x, 0)``.
    """
    tile = as_tile("x", x)
    return binary("bitwise_xor" if tile.dtype.is_integer else "logical_xor", tile, 1, dtype)


@language_function
def negative(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """``-x``, as ``torch.neg``; in float32 on the Vector engine."""
    tile = as_tile("x", x)
    return binary("multiply", tile, -1, dtype)


# What the operators of these names do when they are called.
FUNCTIONS: dict[str, Callable[..., NkiTensor]] = {
    **{name: _binary_function(name, summary, _PROMOTED) for name, summary in _ARITHMETIC.items()},
    **{name: _binary_function(name, summary, _OF_TILE) for name, summary in _TRUTHS.items()},
    **{name: _binary_function(name, summary, _OF_BITS, _BITS) for name, summary in _BITWISE.items()},
    **{name: _activation_function(name, summary) for name, summary in _ACTIVATIONS.items()},
    "reciprocal": reciprocal,
    "rsqrt": rsqrt,
    "invert": invert,
}
