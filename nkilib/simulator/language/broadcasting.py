# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Broadcasting: along free dimensions by views with stride 0, from one partition to many by the Tensor engine."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..engines.tensor.matmul import nc_matmul
from ..engines.vector.arithmetic import tensor_copy
from ..hardware.tile_size import TileSize
from ..tensors.partitions import start_partition
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.errors import NkiValidationError
from ..terms.layout import Layout
from ..terms.regions import MemoryRegion
from .creation import full, ndarray
from .tiles import cast_copy, new_tile

# Types that the Tensor engine multiplies by one without changing them; the others take a detour.
_MATMUL_TYPES = frozenset({dt.float32, dt.tfloat32, dt.bfloat16, dt.float16})


def common_shape(*tiles: NkiTensor) -> tuple[int, ...]:
    """Return the shape to which tiles broadcast: in each dimension the one size that is not 1, or 1 if all are 1.

    Raises:
        NkiValidationError: if a dimension has several such sizes, or the numbers of dimensions differ.
    """
    sizes = [set(dimension) - {1} for dimension in zip(*(tile.shape for tile in tiles), strict=False)]
    if len({tile.ndim for tile in tiles}) > 1 or any(len(others) > 1 for others in sizes):
        raise NkiValidationError(
            "tiles must have equal numbers of dimensions, each of the same size or of size 1, got "
            + " and ".join(map(repr, tiles))
        )
    return tuple(others.pop() if others else 1 for others in sizes)


def free_view(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return a view of ``x`` with its free dimensions of size 1 repeated to the sizes in ``shape``."""
    if x.shape[1:] == tuple(shape[1:]):
        return x
    strides = [0 if old != new else stride for old, new, stride in zip(x.shape, shape, x.strides, strict=True)]
    return x.with_layout(Layout((x.shape[0], *shape[1:]), (x.strides[0], *strides[1:]), x.offset))


def spread(x: NkiTensor, partitions: int) -> NkiTensor:
    """Return a new tile of ``partitions`` partitions, each a copy of the only partition of ``x``.

    A matmul with ones computes it (trainium_inferentia2_arch.rst, alternative use of the Tensor engine). Each sum
    has one term, so that floats are unchanged. Integers go through float32, 32-bit integers in halves of 16 bits.
    """
    is_ready = x.buffer is MemoryRegion.sbuf and x.is_contiguous() and start_partition(x) == 0
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


def _flat(x: NkiTensor) -> NkiTensor:
    return x.reshape((x.shape[0], prod(x.shape[1:])))


def broadcast(x: NkiTensor, shape: Sequence[int]) -> NkiTensor:
    """Return ``x`` in the given shape.

    If ``x`` has as many partitions as the shape, the result is ``x`` or a view of it, else a view of a new tile.
    """
    if x.shape[0] != shape[0]:
        x = spread(x, shape[0])
    return free_view(x, shape)
