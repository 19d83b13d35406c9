# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nc_matmul`` and ``nc_transpose``: instructions of the Tensor engine.

Sources: docstrings of ``nc_matmul`` and ``nc_transpose``; ``nki/guides/architecture/trainium2_arch.rst``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES, Generation
from ...isa.definition import PSUM, SBUF, Operand, output
from ...machine.core import Core
from ...machine.issue import Call, instruction
from ...machine.overlapping_copies import check_copy
from ...numerics.casts import FLOAT32, to_float32
from ...numerics.copies import transposed
from ...numerics.products import transposed_product
from ...tensors.tensor import NkiTensor
from ...tensors.view import partition_elements
from ...terms import dtypes as dt
from ...terms.enums import Engine, MemoryRegion, matmul_perf_mode, nc_version
from ...terms.errors import NkiValidationError
from ...terms.layout import Layout, extent
from ...timing import costs
from ..actions import act
from .accumulation import accumulate_in_psum, defer_product

_FP8 = frozenset({dt.float8_e4m3, dt.float8_e5m2, dt.float8_e4m3fn})
_WIDE = frozenset({dt.float32, dt.tfloat32})
_INPUTS = _FP8 | _WIDE | {dt.bfloat16, dt.float16}
_MOVING_MAX = 512
_ROW_PAIR = 2
_VECTOR_TRANSPOSE_MAX = 32

# Members of an Enum are looked up by a Python function before 3.12; these are asked for in every transpose.
_TENSOR, _SBUF, _PSUM = Engine.tensor, MemoryRegion.sbuf, MemoryRegion.psum
_TRN1, _TRN3 = nc_version.gen2.value, nc_version.gen4.value


def _as_perf_mode(perf_mode: matmul_perf_mode | str) -> matmul_perf_mode:
    # Published kernels also pass the value of a member.
    if isinstance(perf_mode, matmul_perf_mode):
        return perf_mode
    for member in matmul_perf_mode:
        if perf_mode == member.value:
            return member
    raise NkiValidationError(f"perf_mode must be a member of nki.isa.matmul_perf_mode, got {perf_mode!r}")


def _tile(core: Core, position: tuple[int, ...], size: tuple[int, ...], perf_mode: matmul_perf_mode) -> tuple[int, int]:
    """Return the rows and columns of the systolic array that a call uses, after checking ``tile_position`` and
    ``tile_size``.
    """
    if bool(position) != bool(size):
        raise NkiValidationError(f"tile_position and tile_size must both be set, got {position!r} and {size!r}")
    if not size:
        return PARTITIONS, PARTITIONS
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in (position, size)):
        raise NkiValidationError(f"tile_position and tile_size are pairs (row, column), got {position!r} and {size!r}")
    smallest = 64 if core.generation.version is nc_version.gen2 else 32
    allowed = [tile for tile in (32, 64, PARTITIONS) if tile >= smallest]
    for start, length in zip(position, size, strict=True):
        if length not in allowed or start % length or not 0 <= start <= PARTITIONS - length:
            raise NkiValidationError(
                f"tile_size must be of {allowed} and tile_position a multiple of it inside {PARTITIONS}, got "
                f"tile_position={position}, tile_size={size}"
            )
    if perf_mode is matmul_perf_mode.double_row and size[1] != PARTITIONS:
        raise NkiValidationError("perf_mode=double_row cannot be combined with column tiling")
    return size[0], size[1]


def _check_types(
    core: Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_transpose: bool,
    perf_mode: matmul_perf_mode,
) -> None:
    version = core.generation.version
    pair = {stationary.dtype, moving.dtype}
    if dt.float8_e4m3fn in pair and (version is not nc_version.gen4 or dt.float8_e4m3 in pair):
        raise NkiValidationError("float8_e4m3fn needs trn3, and cannot be mixed with float8_e4m3")
    if len(pair & _WIDE) and not pair <= _WIDE:
        raise NkiValidationError(
            f"if one of 'stationary' and 'moving' is float32 or tfloat32, both are; got {stationary} and {moving}"
        )
    if perf_mode is matmul_perf_mode.double_row and (version is nc_version.gen2 or not pair <= _FP8):
        raise NkiValidationError(f"perf_mode=double_row needs trn2 or newer and float8 operands, got {sorted(pair)}")
    if is_transpose and version is not nc_version.gen2:
        if dst.dtype != stationary.dtype or stationary.dtype in _FP8:
            raise NkiValidationError(
                f"is_transpose=True needs 'dst' of the type of 'stationary', two or four bytes wide; got {dst} and "
                f"{stationary}"
            )
        return
    allowed = {dt.float32, dt.bfloat16} if version is nc_version.gen4 else {dt.float32}
    if dst.dtype not in allowed:
        raise NkiValidationError(
            f"operand 'dst' must be {' or '.join(sorted(allowed))} on {core.generation.name}, got {dst}"
        )


def _check_row_pairs(stationary: NkiTensor, moving: NkiTensor) -> None:
    for name, tile in (("stationary", stationary), ("moving", moving)):
        if len(tile.shape) < 3 or tile.shape[1] != _ROW_PAIR:
            raise NkiValidationError(f"perf_mode=double_row needs {name!r} of shape [K, 2, free], got {tile}")


def _check_bank(dst: NkiTensor) -> None:
    """Check that a matmul writes into one PSUM bank (trainium_inferentia2_arch.rst).

    A tensor larger than a bank starts at the beginning of a bank.
    """
    if dst.storage.partition_bytes <= PSUM_BANK_BYTES:  # most are
        return
    low, high = extent(Layout(dst.shape[1:], dst.strides[1:], dst.offset % partition_elements(dst)))
    first, last = (element * dst.dtype.itemsize // PSUM_BANK_BYTES for element in (low, high))
    if low <= high and first != last:
        raise NkiValidationError(
            f"operand 'dst' must lie in one PSUM bank of {PSUM_BANK_BYTES} bytes in a partition, got elements {low} to "
            f"{high} of the partitions of {dst}, in banks {first} and {last} of the tensor"
        )


def _check_sizes(
    core: Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    left: tuple[int, ...],
    right: tuple[int, ...],
    rows: int,
    columns: int,
) -> None:
    if left[0] != right[0]:
        raise NkiValidationError(
            f"operands 'stationary' and 'moving' must have the same partition dimension, got {left[0]} and {right[0]}"
        )
    if stationary.shape[0] > rows or left[1] > columns:
        raise NkiValidationError(
            f"operand 'stationary' must fit a tile of {rows} rows and {columns} columns, got {stationary}"
        )
    on_trn3 = core.generation.version is nc_version.gen4
    most = PSUM_PARTITION_BYTES // dst.dtype.itemsize if on_trn3 else _MOVING_MAX
    if right[1] > most:
        raise NkiValidationError(f"operand 'moving' must have at most {most} free elements, got {right[1]}")
    if dst.shape[0] != left[1] or dst.free_size != right[1]:
        raise NkiValidationError(f"operand 'dst' must be of shape ({left[1]}, {right[1]}), got {dst}")
    if not on_trn3:
        _check_bank(dst)


def _matrix_shape(tile: NkiTensor, pairs: int) -> tuple[int, int]:
    """Return the shape (contraction, free) of a tile as a matrix; each partition holds ``pairs`` rows of the matrix."""
    return tile.shape[0] * pairs, tile.free_size // pairs


def _check_onezero(core: Core, name: str, is_onezero: bool, tile: NkiTensor) -> None:
    """Check that an operand holds only 0 and 1, if the kernel declares so with ``is_onezero``.

    With other values the product on the device would be wrong. The declaration has an effect on float32 only (docstring
    of ``nc_matmul``).
    """

    def check(elements: npt.NDArray[Any]) -> None:
        if not np.isin(elements, (0, 1)).all():
            raise NkiValidationError(f"is_{name}_onezero=True, but operand {name!r} holds values other than 0 and 1")

    if is_onezero and tile.dtype == dt.float32 and not tile.storage.is_abstract:
        act(core, check, reads=(tile,), may_refuse=True)


def _transpose_by_matmul(core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, pairs: int) -> None:
    left_shape, right_shape = _matrix_shape(stationary, pairs), _matrix_shape(moving, pairs)
    identity = np.eye(*right_shape)

    def require_identity(right: npt.NDArray[Any]) -> None:
        matrix = right.reshape(right_shape).astype(np.float64)
        if right_shape[0] != right_shape[1] or not np.array_equal(matrix, identity):
            raise NkiValidationError("is_transpose=True needs an identity matrix as 'moving'")

    def transpose(into: npt.NDArray[Any], left: npt.NDArray[Any], right: npt.NDArray[Any]) -> None:
        require_identity(right)
        into[...] = left.reshape(left_shape).T.reshape(into.shape)

    if dst.storage.is_abstract:
        moving.storage.need_values(moving)
        require_identity(moving.array)
    act(core, transpose, writes=(dst,), reads=(stationary, moving), may_refuse=True)
    # Moved bits are no sum to which a later matmul adds, here as with nc_transpose.
    dst.storage.accumulated.clear(dst.layout, dst.storage.width_of(dst.dtype))


def _as_float32(matrix: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    # BLAS can read float32 with dense rows in place.
    is_ready = matrix.dtype == FLOAT32 and matrix.strides[-1] == matrix.itemsize
    return matrix if is_ready else to_float32(matrix)


def _multiply(
    core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, pairs: int, accumulate: bool | None
) -> None:
    left_shape, right_shape = _matrix_shape(stationary, pairs), _matrix_shape(moving, pairs)

    def product(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return transposed_product(_as_float32(left.reshape(left_shape)), _as_float32(right.reshape(right_shape)))

    accumulate_in_psum(core, dst, product, (stationary, moving), accumulate)


@instruction(
    operands=(
        output("dst", regions=PSUM),
        Operand("stationary", regions=SBUF, dtypes=_INPUTS),
        Operand("moving", regions=SBUF, dtypes=_INPUTS),
    ),
    on=(Engine.tensor,),
    is_matmul=True,
    cost=costs.multiplied,
)
def nc_matmul(
    call: Call,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, int] | tuple[()] = (),
    tile_size: tuple[int, int] | tuple[()] = (),
    perf_mode: matmul_perf_mode | str = matmul_perf_mode.none,
) -> None:
    """Compute ``dst = stationary.T @ moving`` in float32; the contraction runs over the partitions of both operands.

    ``accumulate=False`` overwrites ``dst``, ``True`` adds to the results of earlier matmuls, ``None`` overwrites
    elements that no matmul has written yet and adds to the other elements. With ``is_transpose`` (trn2 and newer)
    ``moving`` is an identity matrix and bits are moved unchanged.
    """
    core = call.core
    perf_mode = _as_perf_mode(perf_mode)
    rows, columns = _tile(core, tile_position, tile_size, perf_mode)
    _check_types(core, dst, stationary, moving, is_transpose, perf_mode)
    pairs = _ROW_PAIR if perf_mode is matmul_perf_mode.double_row else 1
    if pairs > 1:
        _check_row_pairs(stationary, moving)
    _check_sizes(core, dst, stationary, _matrix_shape(stationary, pairs), _matrix_shape(moving, pairs), rows, columns)
    if is_stationary_onezero or is_moving_onezero:
        _check_onezero(core, "stationary", is_stationary_onezero, stationary)
        _check_onezero(core, "moving", is_moving_onezero, moving)
    if is_transpose and core.generation.version is not nc_version.gen2:
        if accumulate:
            raise NkiValidationError("is_transpose=True moves bits and cannot accumulate, got accumulate=True")
        _transpose_by_matmul(core, dst, stationary, moving, pairs)
    elif pairs > 1 or not defer_product(core, dst, stationary, moving, accumulate):
        _multiply(core, dst, stationary, moving, pairs, accumulate)


def _transpose_engine(values: dict[str, Any]) -> Engine:
    data, dst = values["data"], values["dst"]
    return _TENSOR if data.buffer is _SBUF and dst.buffer is _PSUM else Engine.vector


def _transpose_rule(engine: Engine, _: Generation, values: Mapping[str, Any]) -> None:
    data, dst = values["data"], values["dst"]
    most = PARTITIONS if engine is _TENSOR else _VECTOR_TRANSPOSE_MAX
    if data.shape[0] > most or data.free_size > most:
        raise NkiValidationError(
            f"operand 'data' must be at most [{most}, {most}] on the {engine.name} engine, got {data}"
        )
    if engine is _TENSOR and (data.buffer is not _SBUF or dst.buffer is not _PSUM):
        raise NkiValidationError(f"the Tensor engine transposes from sbuf to psum, got {data} and {dst}")


@instruction(
    operands=(output("dst", dtypes=dt.MOVABLE), Operand("data", dtypes=dt.MOVABLE)),
    on=(Engine.tensor, Engine.vector),
    choose_engine=_transpose_engine,
    engine_rule=_transpose_rule,
    cost=costs.transposed,
)
def nc_transpose(call: Call, dst: NkiTensor, data: NkiTensor, engine: Engine = Engine.unknown) -> None:
    """Compute ``dst = data.T``, with the free dimensions flattened to one.

    The instruction accepts every type, packed types included, and casts nothing. The Tensor engine transposes from SBUF
    to PSUM, up to 128 x 128; the Vector engine from SBUF or PSUM to SBUF or PSUM, up to 32 x 32. By default the Tensor
    engine is used if source and destination allow it.
    """
    rows, columns = data.shape[0], data.free_size
    is_on_tensor = call.engine is _TENSOR
    if dst.dtype != data.dtype:
        raise NkiValidationError(f"operand 'dst' must have the type of 'data', got {dst} and {data}")
    if (dst.shape[0], dst.free_size) != (columns, rows):
        raise NkiValidationError(f"operand 'dst' must be of shape ({columns}, {rows}), got {dst}")
    if dst.storage is data.storage and dst.size > 1:
        check_copy(call.core, dst, {"data": data}, None)
    version = call.core.version_number
    if is_on_tensor and version != _TRN3:
        _check_bank(dst)
    # Before trn2 it is an ordinary matmul: a NaN or an infinity spreads over its column of products.
    is_product = is_on_tensor and version == _TRN1 and data.dtype.is_float

    def transpose(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        matrix: npt.NDArray[Any] = elements.reshape(rows, columns)
        if is_product:
            matrix = transposed_product(np.eye(rows, dtype=np.float32), to_float32(matrix)).astype(matrix.dtype)
        into[...] = transposed(matrix).reshape(into.shape)

    act(call.core, transpose, writes=(dst,), reads=(data,))
