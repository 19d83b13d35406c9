# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Copies, views and selections of tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..engines.vector.arithmetic import tensor_copy
from ..engines.vector.predicated import tensor_copy_predicated
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.description import describe_foreign_value
from ..terms.dtypes import DType, as_dtype
from ..terms.errors import NkiValidationError
from ..terms.integers import as_integers
from .binary import binary, result_type
from .broadcasting import broadcast, common_shape
from .creation import full
from .located import language_function
from .tiles import TileOrNumber, as_tile, cast_copy, in_sbuf, is_number, new_tile

_PREDICATES = frozenset({dt.uint8, dt.uint16, dt.uint32})


@language_function
def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return ``x`` in a new tile in SBUF, by default of the type of ``x``; it brings a matmul's result out of PSUM."""
    tile = as_tile("x", x)
    return cast_copy(tile, tile.dtype if dtype is None else as_dtype(dtype))


@language_function
def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """Return a view of ``x`` with a dimension of size 1 at position ``axis``, like ``torch.unsqueeze``.

    It is ``x.expand_dim(axis)``. On chip, position 0 is the partition dimension.
    """
    if not isinstance(x, NkiTensor):
        raise NkiValidationError(f"x must be a tile, got {describe_foreign_value(x)}")
    return x.expand_dim(axis)


@language_function
def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """Return ``x`` with its dimensions of size 1 repeated to ``shape``, like ``torch.broadcast_to`` for equal ranks.

    It is ``x`` itself if shape and type are unchanged, else a new tile in SBUF. Going from one partition to many
    takes a matmul with ones, which copies floats exactly and integers in pieces.
    """
    tile, sizes = as_tile("x", x), as_integers("shape", shape)
    wanted = tile.dtype if dtype is None else as_dtype(dtype)
    if tile.shape == sizes and tile.dtype == wanted:
        return tile
    sizes_match = len(sizes) == tile.ndim and all(old in (1, new) for old, new in zip(tile.shape, sizes, strict=True))
    if not sizes_match:
        raise NkiValidationError(
            f"shape must have the {tile.ndim} dimensions of {tile}, each of the same size or where that is 1, got "
            f"{list(sizes)}"
        )
    repeated = broadcast(tile, sizes)
    # From one partition to many it is a new tile already, unless free dimensions repeat as well.
    is_new = tile.shape[0] != sizes[0] and tile.shape[1:] == sizes[1:]
    return repeated if is_new and tile.dtype == wanted else cast_copy(repeated, wanted)


@language_function
def where(condition: NkiTensor, x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
    """Return ``x`` where ``condition`` is not 0, else ``y``, like ``torch.where``.

    ``x`` and ``y`` may be numbers; dimensions of size 1 are broadcast. The result is a new tile in SBUF of type
    ``dtype``, by default the type that holds the values of both (float32 for two numbers).
    """
    predicate = as_tile("condition", condition)
    x, y = (value if is_number(value) else as_tile(name, value) for name, value in (("x", x), ("y", y)))
    tiles = [value for value in (x, y) if isinstance(value, NkiTensor)]
    shape = common_shape(predicate, *tiles)
    default = result_type(x, y) if tiles else dt.float32
    wanted = default if dtype is None else as_dtype(dtype)
    if predicate.dtype not in _PREDICATES:
        predicate = binary("not_equal", predicate, 0, dt.uint8)
    result = _filled(y, shape, wanted)
    if isinstance(x, NkiTensor):
        source: Any = broadcast(x if x.dtype == wanted else cast_copy(x, wanted), shape)
    else:  # an instruction takes a number of the kind that dst is
        source = round(float(x)) if wanted.is_integer and math.isfinite(x) else float(x)
    tensor_copy_predicated(result, source, broadcast(in_sbuf(predicate), shape))
    return result


def _filled(value: TileOrNumber, shape: Sequence[int], dtype: DType) -> NkiTensor:
    """Return a new tile of the given shape that repeats the elements of a tile, or holds a number everywhere."""
    if not isinstance(value, NkiTensor):
        return full(shape, value, dtype)
    result = new_tile(shape, dtype)
    tensor_copy(result, broadcast(value, shape))
    return result
