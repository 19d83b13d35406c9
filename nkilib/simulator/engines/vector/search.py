# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Vector engine that search for eight values in each partition.

They are :func:`max8`, :func:`nc_find_index8` and :func:`nc_match_replace8`.

Elements are compared in float32. A NaN is equal to no element and larger than every number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import same_partitions, same_tile_size
from ...isa.definition import Operand, output
from ...machine.issue import Call, instruction
from ...numerics.casts import store_float
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import uint16, uint32
from ...terms.enums import Engine, nc_version
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..actions import act, stored_type
from ..rowwise import blocks_of_destination, float32_rows, reduce_rows

_VALUES = 8
_SEARCHED_MAX = 16384
_DIMENSIONS_MAX = 3
_INDEX_TYPES = frozenset({uint16, uint32})
# Stored into an unsigned type: all bits one.
_ABSENT = -1

Elements = npt.NDArray[Any]
Float32s = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]


def _check_dimensions(name: str, tensor: NkiTensor) -> None:
    if tensor.ndim > _DIMENSIONS_MAX:
        raise NkiValidationError(
            f"operand {name!r} must have at most {_DIMENSIONS_MAX} dimensions, the partitions included, got {tensor}"
        )


def _check_searched(name: str, tensor: NkiTensor, least: int) -> None:
    if not least <= tensor.free_size <= _SEARCHED_MAX:
        raise NkiValidationError(
            f"operand {name!r} must have {least} to {_SEARCHED_MAX} elements per partition, got {tensor}"
        )


def _check_row_of_eight(name: str, tensor: NkiTensor) -> None:
    if tensor.shape != (tensor.shape[0], _VALUES):
        raise NkiValidationError(f"operand {name!r} must have shape (partitions, {_VALUES}), got {tensor}")


def _take_largest(values: Float32s, results: Float32s) -> None:
    largest = np.partition(values, -_VALUES, axis=1)[:, -_VALUES:]
    largest.sort(axis=1)
    results[...] = largest[:, ::-1]


@instruction(
    operands=(output("dst"), Operand("src")),
    on=(Engine.vector,),
    cost=costs.streamed("src"),
)
def max8(call: Call, dst: NkiTensor, src: NkiTensor) -> None:
    """Store the 8 largest elements of each partition of ``src`` in ``dst``, the largest first.

    Equal elements count separately. ``src`` has up to 3 dimensions and 8 to 16384 elements per partition, ``dst`` shape
    (partitions, 8).
    """
    same_partitions({"dst": dst, "src": src}, "src", "dst")
    _check_dimensions("src", src)
    _check_searched("src", src, _VALUES)
    _check_row_of_eight("dst", dst)
    reduce_rows(call.core, dst, src, _take_largest)


def _check_eight(name: str, tensor: NkiTensor) -> None:
    if tensor.free_size != _VALUES:
        raise NkiValidationError(f"operand {name!r} must have {_VALUES} elements per partition, got {tensor}")


def _match(values: Float32s, wanted: Float32s, order: Any) -> tuple[Positions, npt.NDArray[np.bool_]]:
    """Pair the ``wanted`` values of each row with equal elements of ``values``.

    A wanted value is paired with the first equal element that is not paired yet; ``order`` is the order of the columns
    of ``wanted``.

    Returns:
        The position of the element that is paired with each wanted value, or ``_ABSENT``; and a mask of the elements
        that stay unpaired.
    """
    lanes = np.arange(values.shape[0])
    positions = np.full(wanted.shape, _ABSENT, np.int64)
    is_free = np.ones(values.shape, np.bool_)
    for slot in order:
        candidates = values == wanted[:, slot : slot + 1]
        candidates &= is_free
        first = candidates.argmax(axis=1)
        is_match = candidates[lanes, first]
        positions[is_match, slot] = first[is_match]
        is_free[lanes[is_match], first[is_match]] = False
    return positions, is_free


def _store_positions(into: Elements, positions: Positions) -> None:
    np.copyto(into, positions.reshape(into.shape), casting="unsafe")


@instruction(
    operands=(output("dst", dtypes=_INDEX_TYPES), Operand("data"), Operand("vals")),
    on=(Engine.vector,),
    cost=costs.streamed("data"),
)
def nc_find_index8(call: Call, dst: NkiTensor, data: NkiTensor, vals: NkiTensor) -> None:
    """Store, for each of the 8 ``vals`` of a partition, the index in ``data`` of the first element equal to it.

    If several ``vals`` are equal, the second of them gets the index of the second equal element, and so on. A value
    without such an element gets an index with all bits set. ``data`` has up to 3 dimensions and 8 to 16384 elements per
    partition, ``vals`` up to 3 dimensions and 8 elements per partition, ``dst`` shape (partitions, 8).
    """
    same_partitions({"dst": dst, "data": data, "vals": vals}, "data", "vals", "dst")
    _check_dimensions("data", data)
    _check_searched("data", data, _VALUES)
    _check_dimensions("vals", vals)
    _check_eight("vals", vals)
    _check_row_of_eight("dst", dst)
    width, blocks = data.free_size, blocks_of_destination(data, data.free_size)

    def find(into: Elements, elements: Elements, wanted: Elements) -> None:
        positions = np.empty((len(elements), _VALUES), np.int64)
        for rows in blocks:
            values = float32_rows(elements[rows], width)
            positions[rows], _ = _match(values, float32_rows(wanted[rows], _VALUES), range(_VALUES))
        _store_positions(into, positions)

    act(call.core, find, writes=(dst,), reads=(data, vals))


def _check_indices_of_replaced(call: Call, dst_idx: NkiTensor, data: NkiTensor) -> None:
    if call.core.generation.version is nc_version.gen2:
        raise NkiValidationError(
            "dst_idx needs trn2 or newer; the target is trn1: find the indices with nc_find_index8"
        )
    same_partitions({"data": data, "dst_idx": dst_idx}, "data", "dst_idx")
    _check_eight("dst_idx", dst_idx)


def _replacing(
    dst: NkiTensor, data: NkiTensor, imm: float
) -> Callable[[Elements, Elements, Float32s, npt.NDArray[np.bool_]], None]:
    """Return a function that stores rows of ``data`` in ``dst``, with ``imm`` in place of elements that are not kept.

    The arguments of the function are rows of ``dst``, the same rows of ``data``, the rows of ``data`` in float32, and a
    mask of the elements that are kept.
    """
    replacement, dtype, is_cast = np.full((), imm, np.float32), dst.dtype, dst.dtype != data.dtype
    cast = np.empty((), stored_type(dst))
    store_float(cast, replacement, dtype)

    def put(into: Elements, elements: Elements, values: Float32s, is_kept: npt.NDArray[np.bool_]) -> None:
        if is_cast:
            store_float(into, np.where(is_kept, values, replacement), dtype)
        else:
            into[...] = np.where(is_kept, elements.reshape(is_kept.shape), cast).reshape(into.shape)

    return put


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        Operand("vals"),
        output("dst_idx", is_optional=True, dtypes=_INDEX_TYPES),
    ),
    on=(Engine.vector,),
    cost=costs.streamed("data"),
)
def nc_match_replace8(
    call: Call, dst: NkiTensor, data: NkiTensor, vals: NkiTensor, imm: float, dst_idx: NkiTensor | None = None
) -> None:
    """Copy ``data`` with the first occurrence of each of the 8 ``vals`` of a partition replaced by ``imm``.

    ``dst_idx``, which trn1 does not have, receives the index of the occurrence, with all bits set for a value that does
    not occur. If several ``vals`` are equal, the last of them gets the first occurrence (in ``nc_find_index8``, the
    first of them). An element is replaced at most once, even if ``imm`` is one of ``vals``. The other elements are
    copied, bit by bit if the types are equal. ``data`` has up to 16384 elements per partition, ``vals`` and ``dst_idx``
    have 8.
    """
    tiles = {"dst": dst, "data": data, "vals": vals}
    same_tile_size(tiles, "data", "dst")
    same_partitions(tiles, "data", "vals")
    _check_searched("data", data, 1)
    _check_eight("vals", vals)
    if dst_idx is not None:
        _check_indices_of_replaced(call, dst_idx, data)
    if not isinstance(imm, int | float | np.integer | np.floating):
        raise NkiValidationError(f"imm must be a number, got {imm!r}")
    width, blocks = data.free_size, blocks_of_destination(dst, dst.free_size, data, vals)
    put_replaced = _replacing(dst, data, imm)
    results = (dst,) if dst_idx is None else (dst, dst_idx)

    def replace(into: Elements, *others: Elements) -> None:
        *places, elements, wanted = others
        positions = np.empty((len(elements), _VALUES), np.int64)
        for rows in blocks:
            values = float32_rows(elements[rows], width)
            order = reversed(range(_VALUES))
            positions[rows], is_kept = _match(values, float32_rows(wanted[rows], _VALUES), order)
            put_replaced(into[rows], elements[rows], values, is_kept)
        for into_places in places:
            _store_positions(into_places, positions)

    act(call.core, replace, writes=results, reads=(data, vals))
