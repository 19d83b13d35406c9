# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Operands and results of the functions on tiles: their checks, the types of results, and broadcasting.

- :func:`as_tile`, :func:`in_sbuf`, :func:`in_type`, :func:`is_number`, :func:`is_column`: operands;
- :func:`result_tile`, :func:`cast_copy`: results;
- :func:`promoted`, :func:`promoted_with_number`: types of results;
- :func:`common_shape`, :func:`broadcast`, with :func:`free_view` and :func:`spread`: broadcasting.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ..engines.tensor.matmul import nc_matmul
from ..engines.vector.arithmetic import tensor_copy
from ..hardware.current import TileSize
from ..tensors.tensor import NkiTensor
from ..tensors.view import partition_in_storage
from ..terms import dtypes as dt
from ..terms.descriptions import describe_foreign_value
from ..terms.dtypes import DType, as_dtype
from ..terms.enums import MemoryRegion
from ..terms.errors import NkiValidationError
from ..terms.layout import Layout
from .creation import full, ndarray, new_tile

# An element-wise operand: a tile, or a number that stands for a tile of it.
TileOrNumber = NkiTensor | int | float

_SIGNED = {1: dt.int8, 2: dt.int16, 4: dt.int32}
# Types that the Tensor engine multiplies by one without changing them; the others take a detour.
_MATMUL_TYPES = frozenset({dt.float32, dt.tfloat32, dt.bfloat16, dt.float16})


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, np.ndarray) and value.shape == ())


def result_tile(shape: Sequence[int], dtype: Any, default: DType) -> NkiTensor:
    """Return a new unwritten tile of type ``dtype``, or of type ``default`` if ``dtype`` is None."""
    return new_tile(shape, default if dtype is None else as_dtype(dtype))


def cast_copy(x: NkiTensor, dtype: DType) -> NkiTensor:
    """Return a new SBUF tile of type ``dtype`` with the elements of ``x``."""
    result = new_tile(x.shape, dtype)
    tensor_copy(result, x)
    return result


def as_tile(name: str, value: Any) -> NkiTensor:
    """Return ``value`` as a tile with a static address; a view with a dynamic address is copied to a new tile.

    Raises:
        NkiValidationError: ``value`` is not a tensor in SBUF or PSUM; ``name`` is its name in the message.
    """
    if not isinstance(value, NkiTensor):
        raise NkiValidationError(f"{name} must be a tile, got {describe_foreign_value(value)}")
    if not value.is_on_chip():
        raise NkiValidationError(f"{name} must be a tile in sbuf or psum, got {value}: load it first, with nl.load")
    return cast_copy(value, value.dtype) if value.is_indirect() else value


def in_type(x: NkiTensor, dtype: Any) -> NkiTensor:
    """Return ``x``, copied to a new SBUF tile if ``dtype`` is another type; None keeps the type."""
    wanted = x.dtype if dtype is None else as_dtype(dtype)
    return x if wanted == x.dtype else cast_copy(x, wanted)


def in_sbuf(x: NkiTensor) -> NkiTensor:
    """Return ``x`` if it is in SBUF, else a copy of it in SBUF."""
    return cast_copy(x, x.dtype) if x.buffer is MemoryRegion.psum else x


def is_column(x: NkiTensor) -> bool:
    """Return whether ``x`` has exactly one element in each partition."""
    return prod(x.shape[1:]) == 1


def _wider_float(first: DType, second: DType) -> DType:
    narrow, wide = sorted((first, second), key=lambda dtype: dtype.itemsize)
    if wide.itemsize == dt.float32.itemsize:
        return dt.float32
    if narrow.itemsize < wide.itemsize:
        return wide
    return dt.float32 if wide.itemsize > 1 else dt.bfloat16


def _wider_integer(first: DType, second: DType) -> DType:
    narrow, wide = sorted((first, second), key=lambda dtype: dtype.itemsize)
    is_signed = {dtype.kind == "int" for dtype in (narrow, wide)}
    if len(is_signed) == 1:
        return wide
    if narrow.itemsize < wide.itemsize and wide.kind == "int":
        return wide
    size = 2 * wide.itemsize
    if size not in _SIGNED:
        raise NkiValidationError(f"no type holds the values of both {first} and {second}: say which one with dtype=")
    return _SIGNED[size]


def promoted(first: DType, second: DType) -> DType:
    """Return the narrowest type for values of both types, as PyTorch and earlier releases of NKI do.

    The documentation defines the type of a result of one tile, the tile's type, and leaves tiles of two types open. A
    float and an integer give the float type. Two floats give the wider type, or the next wider type if neither holds
    the values of the other: float32 for bfloat16 and float16, bfloat16 for two 8-bit floats. A signed and an unsigned
    integer give a signed type that holds both.

    Raises:
        NkiValidationError: the types are int32 and uint32, for which there is no such type.
    """
    if first == second:
        return first
    if first.is_float != second.is_float:
        return first if first.is_float else second
    if first.is_float:
        return _wider_float(first, second)
    return _wider_integer(first, second)


def promoted_with_number(dtype: DType, number: Any) -> DType:
    """Return the type of a result of a tile and a number.

    The type is float32 if the tile has an integer type and the number is a float, otherwise ``dtype``, the type of the
    tile.
    """
    is_float = isinstance(number, float | np.floating) or getattr(number, "dtype", np.dtype(int)).kind == "f"
    return dt.float32 if is_float and not dtype.is_float else dtype


def common_shape(*tiles: NkiTensor) -> tuple[int, ...]:
    """Return the shape to which tiles broadcast: the size of a dimension is the one that is not 1, or 1 if all are 1.

    Raises:
        NkiValidationError: a dimension has several sizes other than 1, or the numbers of dimensions differ.
    """
    sizes = [set(dimension) - {1} for dimension in zip(*(tile.shape for tile in tiles), strict=False)]
    if len({tile.ndim for tile in tiles}) > 1 or any(len(others) > 1 for others in sizes):
        raise NkiValidationError(
            "tiles must have equal numbers of dimensions, each of the same size or of size 1, got "
            + " and ".join(map(repr, tiles))
        )
    return tuple(others.pop() if others else 1 for others in sizes)


def free_view(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return a view of ``x`` in which free dimensions of size 1 are repeated, by a stride of 0, to the sizes in
    ``shape``.
    """
    if x.shape[1:] == tuple(shape[1:]):
        return x
    strides = [0 if old != new else stride for old, new, stride in zip(x.shape, shape, x.strides, strict=True)]
    return x.with_layout(Layout((x.shape[0], *shape[1:]), (x.strides[0], *strides[1:]), x.offset))


def _flat(x: NkiTensor) -> NkiTensor:
    return x.reshape((x.shape[0], prod(x.shape[1:])))


def spread(x: NkiTensor, partitions: int) -> NkiTensor:
    """Return a new tile of ``partitions`` partitions; every partition is a copy of the only partition of ``x``.

    A matmul with ones computes the tile (trainium_inferentia2_arch.rst, alternative use of the Tensor engine). Every
    sum has one term, so that floats are unchanged. Integers go through float32, 32-bit integers in halves of 16 bits.
    """
    is_ready = x.buffer is MemoryRegion.sbuf and x.is_contiguous() and partition_in_storage(x) == 0
    row = x if is_ready else cast_copy(x, x.dtype)
    result = new_tile((partitions, *x.shape[1:]), x.dtype)
    source, target = _flat(row), _flat(result)
    if x.dtype.is_integer and x.dtype.itemsize == dt.int32.itemsize:
        source, target = source.view(dt.uint16), target.view(dt.uint16)
    if source.dtype not in _MATMUL_TYPES:
        source = cast_copy(source, dt.float32)
    ones = full((1, partitions), 1.0, source.dtype)
    width = TileSize.gemm_moving_fmax
    for start in range(0, source.shape[1], width):
        columns = slice(start, min(start + width, source.shape[1]))
        product = ndarray((partitions, columns.stop - start), dt.float32, MemoryRegion.psum)
        nc_matmul(product, ones, source[:, columns], is_stationary_onezero=True, accumulate=False)
        tensor_copy(target[:, columns], product)
    return result


def broadcast(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return ``x`` in the given shape: free dimensions repeat by a stride of 0, partitions by :func:`spread`.

    If ``x`` has as many partitions as the shape, the result is ``x`` or a view of ``x``, else a view of a new tile.
    """
    if x.shape[0] != shape[0]:
        x = spread(x, shape[0])
    return free_view(x, shape)
