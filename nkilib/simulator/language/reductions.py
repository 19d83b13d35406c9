# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Reductions over the last free dimensions of a tile, by ``nisa.tensor_reduce`` on the Vector engine in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..engines.scalar.activation import activation
from ..engines.vector.arithmetic import tensor_reduce
from ..isa.operators import OPERATORS
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError
from .binary import binary
from .located import language_function
from .tiles import as_tile, new_tile

# An axis or several, counted from the end where negative.
Axes = int | Sequence[int]


def first_reduced(x: NkiTensor, axis: Any) -> int:
    """Return the first dimension of ``x`` that is reduced; all dimensions after it are reduced as well.

    Raises:
        NkiValidationError: unless ``axis`` names the last free dimensions, in any order.
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


def reduced_shape(x: NkiTensor, first: int, keepdims: bool) -> tuple[int, ...]:
    """Return the shape of a tile after a reduction over the dimensions from ``first`` on.

    With ``keepdims`` these have size 1; else they are removed, except one of size 1 if no free dimension is left.
    """
    kept = x.shape[:first]
    if keepdims:
        return kept + (1,) * (x.ndim - first)
    return kept if len(kept) > 1 else (*kept, 1)


def reduced(
    name: str, x: NkiTensor, axis: Any, dtype: Any, keepdims: bool, default: DType, negate: bool = False
) -> NkiTensor:
    """Return a new tile with ``x`` reduced over ``axis`` by the operator ``name``, and negated with ``negate``.

    Its type is ``dtype``, or ``default`` if that is None.
    """
    first = first_reduced(x, axis)
    result = new_tile(reduced_shape(x, first, keepdims), default if dtype is None else as_dtype(dtype))
    tensor_reduce(result, OPERATORS[name], x, tuple(range(first, x.ndim)), negate=negate)
    return result


def _over(operator: str, name: str, summary: str) -> Callable[..., NkiTensor]:
    def function(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
        tile = as_tile("x", x)
        return reduced(operator, tile, axis, dtype, keepdims, tile.dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"""{summary}

    ``axis`` is the last free dimension or several up to it, the partition dimension excluded. These dimensions are
    removed, or of size 1 with ``keepdims``; if no free dimension would be left, the result is (P, 1). Its type is
    ``dtype``, by default the type of ``x``.
    """
    return language_function(function)


# The names in this module differ from the names of nki.language, which hide builtins.
sum_over = _over("add", "sum", "Return the sum over ``axis``, like ``torch.sum``.")
max_over = _over("maximum", "max", "Return the largest element over ``axis``, like ``torch.amax``.")
min_over = _over("minimum", "min", "Return the smallest element over ``axis``, like ``torch.amin``.")
prod_over = _over("multiply", "prod", "Return the product over ``axis``, like ``torch.prod``.")


@language_function
def mean(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the mean over ``axis``, like ``torch.mean``: the float32 sum, scaled.

    The other arguments are the same as in ``sum``.
    """
    tile = as_tile("x", x)
    return _scaled_sum(tile, axis, tile.dtype if dtype is None else dtype, keepdims)


def _scaled_sum(x: NkiTensor, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    count = prod(x.shape[first_reduced(x, axis) :])
    total = reduced("add", x, axis, dt.float32, keepdims, dt.float32)
    return binary("multiply", total, 1.0 / count, dtype)


@language_function
def var(x: NkiTensor, axis: Axes, dtype: Any = None, keepdims: bool = False) -> NkiTensor:
    """Return the mean over ``axis`` of the squared distance from the mean, like ``torch.var(..., correction=0)``.

    The reduced dimensions always stay, at size 1: ``keepdims`` is ignored, according to the documentation. The mean
    and then the distances from it are computed in float32.
    """
    tile = as_tile("x", x)
    center = _scaled_sum(tile, axis, dt.float32, True)
    distance = binary("subtract", tile, center, dt.float32)
    activation(distance, OPERATORS["square"], distance)
    return _scaled_sum(distance, axis, tile.dtype if dtype is None else dtype, True)


@language_function
def all_over(x: NkiTensor, axis: Axes, dtype: Any = None) -> NkiTensor:
    """Return 1 where no element over ``axis`` is 0, else 0, like ``torch.all``.

    The other arguments are the same as in ``sum``.
    """
    tile = as_tile("x", x)
    return reduced("logical_and", tile, axis, dtype, False, tile.dtype)


all_over.__name__ = all_over.__qualname__ = "all"
