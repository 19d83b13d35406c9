# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Matrices in the MX formats, from trn3 on: ``quantize_mx`` makes such a matrix, and ``nc_matmul_mx`` multiplies two.

In the MX formats, a *block* of 32 elements of 8 or 4 bits shares a *scale*, a power of two. A *word* of a packed type
holds four elements; a block is the words of 8 partitions in one column. :func:`quantize` converts float32 values to
words and scales, :func:`dequantize` words and scales to float64. The scales of 32 partitions (a quadrant) are in 4
partitions of the same quadrant, so that a tile of scales has gaps, which may hold other scales. In shapes, K is the
number of rows, and N the number of columns of words.

Sources: "OCP Microscaling Formats (MX) Specification" 1.0; the docstring of ``quantize_mx`` (the choice of the scale)
and the docstring of ``nc_matmul_mx``; ``nki/deep-dives/mxfp-matmul.rst`` (layout of scales);
``nki/guides/architecture/trainium3_arch.rst``.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ...hardware.generations import PARTITIONS, PSUM_PARTITION_BYTES
from ...isa.checks import check_consecutive_partitions, check_engine_access, check_free_pattern
from ...isa.definition import PSUM, SBUF, Operand, output
from ...machine.issue import Call, check_written, instruction
from ...numerics.casts import values_of_bits
from ...numerics.products import transposed_product
from ...tensors.tensor import NkiTensor
from ...tensors.view import partition_in_storage, placed_partition
from ...terms import dtypes as dt
from ...terms.dtypes import DType, float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout
from ...timing import costs
from ..actions import act
from .accumulation import accumulate_in_psum

# A block of an MX format is a piece of a matrix with so many rows and columns; the elements of one of its rows form one
# word of a packed type, with the first element in the lowest bits.
BLOCK_ROWS = 8
BLOCK_COLUMNS = 4

_SCALE_BIAS = 127
_NAN_SCALE = 255
_FP4_BITS = 4

# The element types into which quantize_mx can write, and the exponents of their largest numbers.
_FP8_TYPES = {float8_e5m2_x4: (ml_dtypes.float8_e5m2, 15), float8_e4m3fn_x4: (ml_dtypes.float8_e4m3fn, 8)}


def quantize(values: npt.NDArray[np.float32], dtype: DType) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    """Convert ``values`` (K, 4 N) to words (K, N) of type ``dtype`` and scales (K / 8, N), as E8M0 bits.

    The scale is ``2**(floor(log2(largest magnitude)) - (largest exponent of the element type - 1))``, and at least
    ``2**-127``: all elements are then in the range of their type, so that no element saturates. Elements round to
    nearest even. If a block contains a NaN or an infinity, its scale and its elements become NaN.
    """
    element_type, largest_exponent = _FP8_TYPES[dtype]
    rows, columns = values.shape
    blocks = values.reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns // BLOCK_COLUMNS, BLOCK_COLUMNS)
    largest = np.abs(blocks).max(axis=(1, 3))
    # frexp gives a mantissa in [0.5, 1): one more than floor(log2), exactly, for subnormal numbers too.
    exponent = np.frexp(largest)[1] - 1 - (largest_exponent - 1)
    exponent = np.where(largest == 0, -_SCALE_BIAS, np.maximum(exponent, -_SCALE_BIAS))
    is_finite = np.isfinite(largest)
    inverse = np.where(is_finite, np.ldexp(np.float32(1), -exponent), np.float32(np.nan))
    elements = (blocks * inverse[:, None, :, None]).astype(element_type)
    scales = np.where(is_finite, exponent + _SCALE_BIAS, _NAN_SCALE).astype(np.uint8)
    return elements.reshape(rows, columns).view(dtype.numpy), scales


# The values of all bit patterns of an element, and of a scale.
_MX_VALUES = {
    float8_e5m2_x4: values_of_bits(256, ml_dtypes.float8_e5m2),
    float8_e4m3fn_x4: values_of_bits(256, ml_dtypes.float8_e4m3fn),
    float4_e2m1fn_x4: values_of_bits(16, ml_dtypes.float4_e2m1fn),
}
_MX_SCALES = values_of_bits(256, ml_dtypes.float8_e8m0fnu)


def dequantize(words: npt.NDArray[Any], dtype: DType, scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return the exact values (K, N, 4) of words (K, N) of type ``dtype`` and scales (K / 8, N) as E8M0 bits."""
    rows, columns = words.shape
    if dtype == float4_e2m1fn_x4:
        shifts = np.arange(BLOCK_COLUMNS, dtype=words.dtype) * _FP4_BITS
        bits = words[:, :, None] >> shifts & 0xF
    else:
        bits = np.ascontiguousarray(words).view(np.uint8)
    blocks = _MX_VALUES[dtype][bits].reshape(rows // BLOCK_ROWS, BLOCK_ROWS, columns, BLOCK_COLUMNS)
    return (blocks * _MX_SCALES[scales][:, None, :, None]).reshape(rows, columns, BLOCK_COLUMNS)


_QUADRANT = 32
_QUADRANT_SCALES = _QUADRANT // BLOCK_ROWS
_SCALE_STARTS = (0, 4, 8, 12)
_ROW_TILES = (32, 64, PARTITIONS)

_MXFP8 = frozenset({dt.float8_e5m2_x4, dt.float8_e4m3fn_x4})
_MX = _MXFP8 | {dt.float4_e2m1fn_x4}
_SCALE_TYPES = frozenset({dt.float8_e8m0fnu, dt.uint8})


def _scale(name: str) -> Operand:
    """Return the requirements on an input operand that is a tile of scales.

    The core does not check that its elements were written: :func:`_written_scales` checks the rows that are read.
    """
    return Operand(name, regions=SBUF, dtypes=_SCALE_TYPES, is_accessed=False)


def _check_partitions(name: str, tile: NkiTensor) -> None:
    if tile.shape[0] % _QUADRANT:
        raise NkiValidationError(f"operand {name!r} must have a multiple of {_QUADRANT} partitions, got {tile}")


def _place(tile: NkiTensor) -> int | None:
    """Return the partition of SBUF in which a tile starts; None if the compiler chooses it."""
    if tile.storage.shape[0] == PARTITIONS:
        return partition_in_storage(tile)
    return placed_partition(tile)


def _scale_rows(name: str, scale: NkiTensor, data_name: str, data: NkiTensor, columns: int) -> NkiTensor:
    """Return the view (quadrants, 4, free dimensions) of the partitions of ``scale`` that hold the scales of ``data``.

    Check the tile ``scale`` first: its size, and the partition at which it starts.
    """
    check_free_pattern(name, scale)
    check_consecutive_partitions(name, scale)
    quadrants = data.shape[0] // _QUADRANT
    partitions = (quadrants - 1) * _QUADRANT + _QUADRANT_SCALES
    if scale.shape[0] < partitions or scale.free_size != columns:
        raise NkiValidationError(
            f"operand {name!r} must have {columns} elements in a partition, and at least {partitions} partitions for "
            f"the {data.shape[0]} of {data_name!r}: {_QUADRANT_SCALES} scales for each {_QUADRANT} partitions, where "
            f"these start; got {scale}"
        )
    start = partition_in_storage(scale)
    if start % _QUADRANT not in _SCALE_STARTS:
        raise NkiValidationError(
            f"operand {name!r} must start at partition {', '.join(map(str, _SCALE_STARTS[:-1]))} or "
            f"{_SCALE_STARTS[-1]} of {_QUADRANT}, got a start at {start} of {scale}"
        )
    places = _place(scale), _place(data)
    if places[0] is not None and places[1] is not None and places[0] // _QUADRANT != places[1] // _QUADRANT:
        raise NkiValidationError(
            f"operand {name!r} must start in the same {_QUADRANT} partitions as {data_name!r}, got a start at "
            f"{places[0]} of {scale} for one at {places[1]} of {data}"
        )
    row = scale.strides[0]
    shape = (quadrants, _QUADRANT_SCALES, *scale.shape[1:])
    return scale.with_layout(Layout(shape, (_QUADRANT * row, row, *scale.strides[1:]), scale.offset))


@instruction(
    operands=(
        output("dst", regions=SBUF, dtypes=_MXFP8),
        Operand("src", regions=SBUF, dtypes=frozenset({dt.float16, dt.bfloat16})),
        output("dst_scale", regions=SBUF, dtypes=_SCALE_TYPES, marks_itself=True, may_leave=True),
    ),
    on=(Engine.vector,),
    since=nc_version.gen4,
    is_lane_bound=False,  # not for the scales; the other tiles are checked here
    cost=costs.assumed("src"),
)
def quantize_mx(call: Call, dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor) -> None:
    """Convert ``src`` to an MXFP8 format: store packed elements in ``dst``, and a scale for each block in
    ``dst_scale``.

    A block is 8 partitions x 4 elements. Its scale ``X`` is ``2**(floor(log2(max |src|)) - (E - 1))`` with ``E`` the
    exponent of the largest number of the element type, 8 (e4m3) or 15 (e5m2), and its elements are ``src / X``, rounded
    to nearest even. A block of zeros has the scale ``2**-127``, and a block with a NaN or an infinity becomes NaN.

    Shapes: ``src`` (P, 4 F), ``dst`` (P, F); ``dst_scale`` has F elements in a partition, and rows ``32 q + b`` for
    block b = 0..3 of the 32 partitions from ``32 q``. All other rows keep their values.
    """
    for name, tile in (("dst", dst), ("src", src)):
        check_engine_access(name, tile)
    _check_partitions("src", src)
    partitions, columns = src.shape[0], src.free_size
    if columns % BLOCK_COLUMNS:
        raise NkiValidationError(
            f"operand 'src' must have a multiple of {BLOCK_COLUMNS} elements in a partition, got {src}"
        )
    if dst.shape[0] != partitions or dst.free_size * BLOCK_COLUMNS != columns:
        raise NkiValidationError(
            f"operand 'dst' must be of shape ({partitions}, {columns // BLOCK_COLUMNS}), four elements of 'src' in "
            f"each, got {dst}"
        )
    scale_rows = _scale_rows("dst_scale", dst_scale, "src", src, columns // BLOCK_COLUMNS)
    dtype = dst.dtype

    def put_quantized(into: npt.NDArray[Any], into_scales: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        words, scales = quantize(elements.reshape(partitions, columns).astype(np.float32), dtype)
        into[...] = words.reshape(into.shape)
        into_scales.view(np.uint8)[...] = scales.reshape(into_scales.shape)

    act(call.core, put_quantized, writes=(dst, scale_rows), reads=(src,))
    scale_rows.mark_written()


def _check_sizes(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, rows: int) -> None:
    _check_partitions("stationary", stationary)
    if stationary.shape[0] != moving.shape[0]:
        raise NkiValidationError(
            f"operands 'stationary' and 'moving' must have the same partition dimension, got {stationary.shape[0]} and "
            f"{moving.shape[0]}"
        )
    columns, moving_columns = stationary.free_size, moving.free_size
    if stationary.shape[0] > rows or columns > PARTITIONS:
        raise NkiValidationError(
            f"operand 'stationary' must fit a tile of {rows} rows and {PARTITIONS} columns, got {stationary}"
        )
    if columns % 2:
        raise NkiValidationError(f"operand 'stationary' must have an even number of free elements, got {stationary}")
    most = PSUM_PARTITION_BYTES // dst.dtype.itemsize
    if moving_columns > most:
        raise NkiValidationError(
            f"operand 'moving' must have at most {most} free elements for 'dst' of {dst.dtype}, got {moving}"
        )
    if dst.shape[0] != columns or dst.free_size != moving_columns:
        raise NkiValidationError(f"operand 'dst' must be of shape ({columns}, {moving_columns}), got {dst}")


def _row_tile(position: Any, size: Any) -> int:
    """Check ``tile_position`` and ``tile_size``, and return the number of rows of the systolic array that the call
    uses.
    """
    if bool(position) != bool(size):
        raise NkiValidationError(f"tile_position and tile_size must both be set, got {position!r} and {size!r}")
    if not size:
        return PARTITIONS
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in (position, size)):
        raise NkiValidationError(f"tile_position and tile_size are pairs (row, column), got {position!r} and {size!r}")
    (start, start_column), (rows, columns) = position, size
    if (start_column, columns) != (0, PARTITIONS):
        raise NkiValidationError(
            f"nc_matmul_mx has row tiles only: tile_position=(row, 0) and tile_size=(rows, {PARTITIONS}), got "
            f"tile_position={position}, tile_size={size}"
        )
    if rows not in _ROW_TILES or start % rows or not 0 <= start <= PARTITIONS - rows:
        raise NkiValidationError(
            f"a row tile has {', '.join(map(str, _ROW_TILES[:-1]))} or {_ROW_TILES[-1]} rows and starts at a multiple "
            f"of them inside {PARTITIONS}, got tile_position={position}, tile_size={size}"
        )
    return int(rows)


class _Matrix:
    """The shape and type of an MX matrix; :meth:`values` converts its words and scales to values."""

    def __init__(self, tile: NkiTensor) -> None:
        self._partitions, self._columns, self._dtype = tile.shape[0], tile.free_size, tile.dtype

    def values(self, words: npt.NDArray[Any], scales: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the values (4 * partitions, columns): a partition of words gives a row for each element of a word."""
        blocks = scales.view(np.uint8).reshape(self._partitions // BLOCK_ROWS, self._columns)
        values = dequantize(words.reshape(self._partitions, self._columns), self._dtype, blocks)
        return values.swapaxes(1, 2).reshape(-1, self._columns)


def _written_scales(call: Call, name: str, tile: NkiTensor, scale: NkiTensor) -> NkiTensor:
    rows = _scale_rows(f"{name}_scale", scale, name, tile, tile.free_size)
    check_written(call.core, f"{name}_scale", rows)
    return rows


@instruction(
    operands=(
        output("dst", regions=PSUM, dtypes=frozenset({dt.float32, dt.bfloat16})),
        Operand("stationary", regions=SBUF, dtypes=_MX),
        Operand("moving", regions=SBUF, dtypes=_MX),
        _scale("stationary_scale"),
        _scale("moving_scale"),
    ),
    on=(Engine.tensor,),
    since=nc_version.gen4,
    is_lane_bound=False,  # not for the scales; the other tiles are checked here
    is_matmul=True,
    cost=costs.multiplied,
)
def nc_matmul_mx(
    call: Call,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: tuple[int, int] | None = None,
    tile_size: tuple[int, int] | None = None,
    accumulate: bool | None = None,
) -> None:
    """Compute ``dst = stationary.T @ moving`` for MX matrices; the value of an element is the element times its scale.

    The contraction runs over the partitions and the four elements of a word. The scales are in the rows to which
    ``quantize_mx`` writes scales. The two matrices may have different types. ``accumulate`` works as in ``nc_matmul``.
    """
    for name, tile in (("dst", dst), ("stationary", stationary), ("moving", moving)):
        check_engine_access(name, tile)
    _check_sizes(dst, stationary, moving, _row_tile(tile_position, tile_size))
    left, right = _Matrix(stationary), _Matrix(moving)
    left_scale = _written_scales(call, "stationary", stationary, stationary_scale)
    right_scale = _written_scales(call, "moving", moving, moving_scale)

    def product(*elements: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        words, other_words, scales, other_scales = elements
        # In float64, because a value of large scale may leave the range of float32 where its product does not.
        return transposed_product(left.values(words, scales), right.values(other_words, other_scales)).astype(
            np.float32
        )

    accumulate_in_psum(call.core, dst, product, (stationary, moving, left_scale, right_scale), accumulate)
