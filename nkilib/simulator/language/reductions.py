# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reductions over the last free dimensions of a tile, by ``nisa.tensor_reduce`` on the Vector engine in float32.

- :func:`sum_over`, :func:`max_over`, :func:`min_over`, :func:`prod_over`, :func:`all_over`: ``nl.sum``, ``nl.max`` and
  so on, whose names in ``nki.language`` hide builtins.
- :func:`mean`, :func:`var`: scaled sums.
- :func:`softmax`, :func:`rms_norm`: reductions with a few other instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..engines.scalar import activation, activation_reduce
from ..engines.vector.arithmetic import tensor_reduce, tensor_scalar
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError
from .creation import new_tile
from .elementwise import activated, binary, reciprocal
from .language_function import language_function
from .operands import as_tile, is_number

# An axis or several, counted from the end where negative.
Axes = int | Sequence[int]


def _first_reduced(x: NkiTensor, axis: Any) -> int:
    """Return the first dimension that ``axis`` names; a reduction is over this dimension and all later ones.

    Raises:
        NkiValidationError: ``axis`` does not name the last free dimensions, in any order.
    """
    listed = axis if isinstance(axis, tuple | list) else [axis]
    dimensions = range(x.ndim)  # which counts negative indices from the end
    try:
        axes = sorted(dimensions[item] for item in listed)
    except (TypeError, IndexError):
        axes = []
    if not axes or axes != list(range(x.ndim - len(axes), x.ndim)) or axes[0] < 1:
        raise NkiValidationError(
            f"axis must be the last free dimension {x.ndim - 1} of {x}, or several up to it, and not the partition "
            f"dimension 0; got {axis!r}"
        )
    return axes[0]


def _reduced_shape(x: NkiTensor, first: int, keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a tile after a reduction over the dimensions from ``first`` on.

    With ``keepdims`` the reduced dimensions have size 1. Otherwise they are removed; if no free dimension is left, one
    of size 1 stays.
    """
    kept = x.shape[:first]
    if keepdims:
        return kept + (1,) * (x.ndim - first)
    return kept if len(kept) > 1 else (*kept, 1)


def _reduced(
    name: str, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool, default: DType, negate: bool = False
) -> NkiTensor:
    """Return a new tile with ``x`` reduced over ``axis`` by the operator ``name``, times -1 if ``negate``.

    The type of the tile is ``dtype``, or ``default`` if ``dtype`` is None.
    """
    first = _first_reduced(x, axis)
    result = new_tile(_reduced_shape(x, first, keepdims), default if dtype is None else as_dtype(dtype))
    tensor_reduce(result, OPERATORS[name], x, tuple(range(first, x.ndim)), negate=negate)
    return result


def _over(operator: str, name: str, summary: str) -> Callable[..., NkiTensor]:
    """Return the function ``nl.<name>``, which reduces a tile by ``operator``; its docstring begins with
    ``summary``.
    """

    def function(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        tile = as_tile("x", x)
        return _reduced(operator, tile, axis, dtype, keepdims, tile.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{summary}

    ``axis`` is the last free dimension or several up to it, the partition dimension excluded. These dimensions are
    removed, or of size 1 with ``keepdims``; if no free dimension would be left, the result is (P, 1). Its type is
    ``dtype``, by default the type of ``x``.
    """
    return language_function(function)


sum_over = _over("add", "sum", "Return the sum over ``axis``, like ``torch.sum``.")
max_over = _over("maximum", "max", "Return the largest element over ``axis``, like ``torch.amax``.")
min_over = _over("minimum", "min", "Return the smallest element over ``axis``, like ``torch.amin``.")
prod_over = _over("multiply", "prod", "Return the product over ``axis``, like ``torch.prod``.")


def _scaled_sum(x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    count = prod(x.shape[_first_reduced(x, axis) :])
    total = _reduced("add", x, axis, dt.float32, keepdims, dt.float32)
    return binary("multiply", total, 1.0 / count, dtype)


@language_function
def mean(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the mean over ``axis``, like ``torch.mean``, as the scaled float32 sum.

    The other arguments are the same as in ``sum``.
    """
    tile = as_tile("x", x)
    return _scaled_sum(tile, axis, tile.dtype if dtype is None else dtype, keepdims)


@language_function
def var(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the mean over ``axis`` of the squared distance from the mean, like ``torch.var(..., correction=0)``.

    The result keeps the reduced dimensions with size 1: ``keepdims`` is ignored, as the documentation says. The mean
    and the distances from the mean are computed in float32.
    """
    tile = as_tile("x", x)
    center = _scaled_sum(tile, axis, dt.float32, True)
    distance = binary("subtract", tile, center, dt.float32)
    activation(distance, OPERATORS["square"], distance)
    return _scaled_sum(distance, axis, tile.dtype if dtype is None else dtype, True)


@language_function
def all_over(x: NkiTensor, axis: Axes, dtype: Any = None) -> NkiTensor:
    """Return 1 where all elements over ``axis`` differ from 0, else 0, like ``torch.all``.

    The other arguments are the same as in ``sum``.
    """
    tile = as_tile("x", x)
    return _reduced("logical_and", tile, axis, dtype, False, tile.dtype)


all_over.__name__ = all_over.__qualname__ = "all"


@language_function
def softmax(x: NkiTensor, axis: Axes = -1, dtype: Any = None) -> NkiTensor:
    """Return ``exp(x - max) / sum(exp(x - max))`` over ``axis``, like ``torch.softmax``.

    ``axis`` is the last free dimension, or several adjacent ones that end with it. The computation is in float32; the
    result is a new tile in SBUF of type ``dtype``, by default the type of ``x``.
    """
    tile = as_tile("x", x)
    wanted = tile.dtype if dtype is None else as_dtype(dtype)
    powers = new_tile(tile.shape, dt.float32)
    if _first_reduced(tile, axis) > 1:
        highest = _reduced("maximum", tile, axis, dt.float32, True, dt.float32)
        activation(powers, OPERATORS["exp"], binary("subtract", tile, highest, dt.float32))
        total = _reduced("add", powers, axis, dt.float32, True, dt.float32)
        return binary("multiply", powers, reciprocal(total), wanted)
    # One row a partition: the activation subtracts the maximum and sums by itself.
    negated_highest = _reduced("maximum", tile, axis, dt.float32, False, dt.float32, negate=True)
    total = new_tile((tile.shape[0], 1), dt.float32)
    activation_reduce(powers, OPERATORS["exp"], tile, OPERATORS["add"], total, bias=negated_highest)
    result = powers if wanted == dt.float32 else new_tile(tile.shape, wanted)
    tensor_scalar(result, powers, OPERATORS["multiply"], reciprocal(total))
    return result


@language_function
def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Axes,
    n: int,
    epsilon: float = 1e-06,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """Return ``x / sqrt(sum(x * x, axis) / n + epsilon) * w``, like ``torch.nn.functional.rms_norm``.

    ``w`` is a tile whose shape broadcasts to that of ``x``. ``compute_dtype`` is the type of the intermediate tiles, by
    default float32; every instruction computes in float32. The result is a new tile in SBUF of type ``dtype``, by
    default the type of ``x``.
    """
    tile, weight = as_tile("x", x), as_tile("w", w)
    if not is_number(n) or n <= 0:
        raise NkiValidationError(f"n, the number of values of the mean, must be a positive number, got {n!r}")
    between = dt.float32 if compute_dtype is None else as_dtype(compute_dtype)
    total = _reduced("add", activated("square", tile, between), axis, between, True, between)
    mean_square = new_tile(total.shape, between)
    tensor_scalar(mean_square, total, OPERATORS["multiply"], 1.0 / n, op1=OPERATORS["add"], operand1=epsilon)
    normalized = binary("multiply", tile, activated("rsqrt", mean_square), between)
    return binary("multiply", normalized, weight, tile.dtype if dtype is None else dtype)
