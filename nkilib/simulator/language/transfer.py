# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that move tensors between HBM and SBUF, or gather within SBUF, such as ``nl.load`` and ``nl.store``.

Each runs instructions that a kernel could have issued itself, so that these are checked and recorded.
"""

from __future__ import annotations

from typing import Any

from ..engines.dma.copy import dma_copy
from ..engines.dma.transpose import dma_transpose
from ..engines.gpsimd.gather import nc_n_gather
from ..tensors.tensor import NkiTensor
from ..terms.description import describe_foreign_value
from ..terms.dtypes import as_dtype, int32, uint32
from ..terms.errors import NkiValidationError
from ..terms.regions import HBM, MemoryRegion
from .located import language_function
from .tiles import as_tile, cast_copy, in_sbuf, new_tile, result_tile

_MATRIX = 2


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
    """Write ``value``, a tile in SBUF, to ``dst``, a tensor of equally many elements in HBM, cast to its type.

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
    wanted = src.dtype if dtype is None else as_dtype(dtype)
    return tile if wanted == tile.dtype else cast_copy(tile, wanted)


@language_function
def gather_flattened(data: NkiTensor, indices: NkiTensor, axis: int = 0, dtype: Any = None) -> NkiTensor:
    """Return ``result[p, k] = data[p, indices[p, k]]`` for all k, the free dimensions of ``data`` flattened.

    The result has the shape of ``indices``, which hold integers; they are looked up within the partition. The
    function runs one ``nisa.nc_n_gather``, after converting ``indices`` to uint32 if needed, and before a cast to
    ``dtype``.

    Raises:
        NotImplementedError: for another axis than 0, to which the documentation gives no meaning.
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
        wanted = (wanted if wanted.dtype == int32 else cast_copy(wanted, int32)).view(uint32)
    gathered = new_tile(wanted.shape, source.dtype)
    nc_n_gather(gathered, source, wanted)
    result_type = source.dtype if dtype is None else as_dtype(dtype)
    return gathered if result_type == gathered.dtype else cast_copy(gathered, result_type)


def _check_source(src: Any) -> None:
    if not isinstance(src, NkiTensor) or src.buffer not in HBM:
        remedy = "; to copy a tile, use nl.copy" if isinstance(src, NkiTensor) else ""
        raise NkiValidationError(f"src must be a tensor in HBM, got {describe_foreign_value(src)}{remedy}")
