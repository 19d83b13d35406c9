# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``transpose`` and ``matmul`` on the Tensor engine, which both leave their result in PSUM."""

from __future__ import annotations

from typing import Any

from ..engines.tensor.matmul import nc_matmul, nc_transpose
from ..hardware.current import TileSize
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.dtypes import as_dtype
from ..terms.enums import Engine, MemoryRegion
from ..terms.errors import NkiValidationError
from .creation import ndarray
from .language_function import language_function
from .operands import as_tile, cast_copy, in_sbuf


def _matrix(name: str, value: Any) -> NkiTensor:
    tile = as_tile(name, value)
    if tile.ndim != 2:
        raise NkiValidationError(f"{name} must have 2 dimensions, got {tile}")
    return tile


def _check_size(name: str, tile: NkiTensor, columns: int) -> None:
    if tile.shape[1] > columns:
        raise NkiValidationError(f"{name} must have at most {columns} columns, got {tile}")


def _transposed(x: NkiTensor) -> NkiTensor:
    result = ndarray((x.shape[1], x.shape[0]), x.dtype, MemoryRegion.psum)
    nc_transpose(result, x, engine=Engine.tensor)
    return result


@language_function
def transpose(x: NkiTensor, dtype: Any = None) -> NkiTensor:
    """Return the transpose of a tile of up to 128 x 128 elements, like ``torch.t``, in a new tile in PSUM.

    ``nl.copy`` copies the result to SBUF. The type of the result is ``dtype``, by default the type of ``x``. If
    ``dtype`` is another type, ``x`` is cast before the transpose, which moves bits.
    """
    tile = _matrix("x", x)
    _check_size("x", tile, TileSize.pmax)
    wanted = tile.dtype if dtype is None else as_dtype(dtype)
    return _transposed(in_sbuf(tile) if wanted == tile.dtype else cast_copy(tile, wanted))


@language_function
def matmul(x: NkiTensor, y: NkiTensor, transpose_x: bool = False) -> NkiTensor:
    """Return ``x @ y``, or ``x.T @ y`` with ``transpose_x``, like ``torch.matmul``, in a new float32 tile in PSUM.

    Both operands are in SBUF, ``x`` of up to 128 x 128 and ``y`` of up to 128 x 512 elements. The Tensor engine
    contracts partitions. Without ``transpose_x``, two more instructions are therefore issued before the matmul: the
    first transposes ``x``, and the second copies the transpose to SBUF.
    """
    left, right = _matrix("x", x), _matrix("y", y)
    for name, tile in (("x", left), ("y", right)):
        if tile.buffer is not MemoryRegion.sbuf:
            raise NkiValidationError(f"{name} must be in sbuf, got {tile}: copy it there first, with nl.copy")
    _check_size("x", left, TileSize.gemm_stationary_fmax)
    _check_size("y", right, TileSize.gemm_moving_fmax)
    inner = 0 if transpose_x else 1
    if left.shape[inner] != right.shape[0]:
        raise NkiValidationError(
            f"dimension {inner} of x must be as large as dimension 0 of y"
            f"{' (transpose_x=True)' if transpose_x else ''}, got {left} and {right}"
        )
    if not transpose_x:
        psum = _transposed(left)
        left = cast_copy(psum, psum.dtype)
    product = ndarray((left.shape[1], right.shape[1]), dt.float32, MemoryRegion.psum)
    nc_matmul(product, left, right, accumulate=False)
    return product
