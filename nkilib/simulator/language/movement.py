# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions that move elements between HBM and SBUF, or from tile to tile.

- :func:`load`, :func:`store`, :func:`load_transpose2d`: between HBM and SBUF;
- :func:`copy`, :func:`expand_dims`, :func:`broadcast_to`: copies and repetitions of a tile;
- :func:`gather_flattened`, :func:`where`: elements selected by indices or by a condition.

These functions run instructions that a kernel could issue itself; the instructions are checked and recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..engines.dma_instructions import dma_copy, dma_transpose
from ..engines.gpsimd.gather import nc_n_gather
from ..engines.vector.arithmetic import tensor_copy
from ..engines.vector.selection import tensor_copy_predicated
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.argument_checks import as_integers
from ..terms.descriptions import describe_foreign_value
from ..terms.dtypes import DType, as_dtype, int32, uint32
from ..terms.enums import HBM, MemoryRegion
from ..terms.errors import NkiValidationError
from .creation import full, new_tile
from .elementwise import binary, result_type
from .language_function import language_function
from .operands import (
    TileOrNumber,
    as_tile,
    broadcast,
    cast_copy,
    common_shape,
    in_sbuf,
    in_type,
    is_number,
    result_tile,
)

_MATRIX = 2
# The types of a predicate that an instruction takes.
_PREDICATES = frozenset({dt.uint8, dt.uint16, dt.uint32})


def _check_source(src: Any) -> None:
    if not isinstance(src, NkiTensor) or src.buffer not in HBM:
        remedy = "; to copy a tile, use nl.copy" if isinstance(src, NkiTensor) else ""
        raise NkiValidationError(f"src must be a tensor in HBM, got {describe_foreign_value(src)}{remedy}")


@language_function
def load(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile in SBUF with the values of ``src``, a tensor in HBM, cast to ``dtype`` if one is given.

    Dimension 0 of ``src`` becomes the partition dimension. The function runs one ``nisa.dma_copy``.
    """
    _check_source(src)
    if src.ndim < _MATRIX:
        raise NkiValidationError(
            f"src must have a dimension of partitions and at least one more, got {src}; reshape it"
        )
    tile = result_tile(src.shape, dtype, src.dtype)
    dma_copy(tile, src)
    return tile


@language_function
def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Write ``value``, a tile in SBUF, to ``dst``, a tensor in HBM with as many elements, cast to the type of ``dst``.

    The function runs one ``nisa.dma_copy``.
    """
    if not isinstance(dst, NkiTensor) or dst.buffer not in HBM:
        raise NkiValidationError(f"dst must be a tensor in HBM, got {describe_foreign_value(dst)}")
    if not isinstance(value, NkiTensor) or value.buffer is not MemoryRegion.sbuf:
        remedy = "; bring it there with nl.copy or nl.load" if isinstance(value, NkiTensor) else ""
        raise NkiValidationError(f"value must be a tile in sbuf, got {describe_foreign_value(value)}{remedy}")
    dma_copy(dst, value)


@language_function
def load_transpose2d(src: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a new tile [M, N] in SBUF with the transpose of ``src`` [N, M] in HBM, cast to ``dtype`` if one is given.

    The function runs one ``nisa.dma_transpose``, and one ``nisa.tensor_copy`` for the cast.
    """
    _check_source(src)
    if src.ndim != _MATRIX:
        raise NkiValidationError(f"src must have two dimensions, got {src}")
    tile = new_tile((src.shape[1], src.shape[0]), src.dtype)
    dma_transpose(tile, src)
    return in_type(tile, dtype)


@language_function
def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Return ``result[p, k] = data[p, indices[p, k]]`` for all k, with the free dimensions of ``data`` flattened.

    The result has the shape of ``indices``, which are integers. The function converts ``indices`` to uint32 if needed,
    runs one ``nisa.nc_n_gather``, and casts the result to ``dtype`` if given.

    Raises:
        NotImplementedError: ``axis`` is not 0; the documentation does not define other values.
    """
    if axis != 0:
        raise NotImplementedError(
            f"nl.gather_flattened: axis={axis!r} is not implemented in the simulator, only axis=0"
        )
    source, wanted = in_sbuf(as_tile("data", data)), in_sbuf(as_tile("indices", indices))
    if not wanted.dtype.is_integer:
        raise NkiValidationError(f"indices must be integers, got {indices}")
    if wanted.dtype != uint32:
        # By way of int32 bits a negative index stays out of range, where a cast to uint32 would make 0 of it.
        wanted = in_type(wanted, int32).view(uint32)
    gathered = new_tile(wanted.shape, source.dtype)
    nc_n_gather(gathered, source, wanted)
    return in_type(gathered, dtype)


@language_function
def copy(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return a copy of the tile ``x`` in a new tile in SBUF of type ``dtype``, by default the type of ``x``.

    For instance, it copies the result of a matmul from PSUM to SBUF.
    """
    tile = as_tile("x", x)
    return cast_copy(tile, tile.dtype if dtype is None else as_dtype(dtype))


@language_function
def expand_dims(x: NkiTensor, axis: int) -> NkiTensor:
    """Return a view of ``x`` with a dimension of size 1 at position ``axis``, like ``torch.unsqueeze``.

    The result is ``x.expand_dim(axis)``. On chip, position 0 is the partition dimension.
    """
    if not isinstance(x, NkiTensor):
        raise NkiValidationError(f"x must be a tile, got {describe_foreign_value(x)}")
    return x.expand_dim(axis)


@language_function
def broadcast_to(x: NkiTensor, shape: Sequence[int], dtype: Any = None) -> NkiTensor:
    """Return ``x`` with its dimensions of size 1 repeated to ``shape``, like ``torch.broadcast_to`` for equal ranks.

    The result is ``x`` itself if shape and type are unchanged, else a new tile in SBUF. Repeating a single partition
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


def _filled(value: TileOrNumber, shape: Sequence[int], dtype: DType) -> NkiTensor:
    if not isinstance(value, NkiTensor):
        return full(shape, value, dtype)
    result = new_tile(shape, dtype)
    tensor_copy(result, broadcast(value, shape))
    return result


@language_function
def where(condition: NkiTensor, x: TileOrNumber, y: TileOrNumber, dtype: Any = None) -> NkiTensor:
    """Return ``x`` where ``condition`` is not 0, else ``y``, like ``torch.where``.

    ``x`` and ``y`` may be numbers; dimensions of size 1 are broadcast. The result is a new tile in SBUF of type
    ``dtype``, by default the type that holds the values of ``x`` and ``y`` (float32 for two numbers).
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
        source: Any = broadcast(in_type(x, wanted), shape)
    else:  # an instruction takes a number of the kind that dst is
        source = round(float(x)) if wanted.is_integer and math.isfinite(x) else float(x)
    tensor_copy_predicated(result, source, broadcast(in_sbuf(predicate), shape))
    return result
