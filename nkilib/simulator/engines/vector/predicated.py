# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``tensor_copy_predicated``: a copy on the Vector engine that writes only the elements that a predicate selects."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import at_most_rank, not_both_in_psum, same_tile_size
from ...isa.fill import cast_number, stored_type
from ...isa.operand import Operand, output
from ...machine.call import Call
from ...machine.core import Core
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import uint8, uint16, uint32
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from ...timing import costs
from ..actions import act

_RANK_MAX = 4


@instruction(
    operands=(
        output("dst", marks_itself=True, may_leave=True),
        Operand("src", accepts_scalar=True),
        Operand("predicate", dtypes=frozenset({uint8, uint16, uint32})),
    ),
    on=(Engine.vector,),
    cost=costs.assumed("dst"),
)
def tensor_copy_predicated(
    call: Call, dst: NkiTensor, src: Any, predicate: NkiTensor, reverse_pred: bool = False
) -> None:
    """Copy ``src`` to ``dst`` where ``predicate`` is not 0, or where it is 0 with ``reverse_pred``.

    The other elements of ``dst`` stay unchanged; unwritten ones stay unwritten. A tile ``src`` has the type of ``dst``
    and is copied bit by bit; it excludes ``reverse_pred``. A number ``src`` that is a float is rounded to float32 and
    cast to the float type of ``dst``; an integer goes into an integer type of any width, where it saturates. There are
    at most three free dimensions.
    """
    tiles = {"dst": dst, "src": src, "predicate": predicate}
    at_most_rank(tiles, _RANK_MAX, "dst", "predicate")
    same_tile_size(tiles, "dst", "predicate")
    if isinstance(src, NkiTensor):
        at_most_rank(tiles, _RANK_MAX, "src")
        if reverse_pred:
            raise NkiValidationError(
                f"reverse_pred=True is for a number as 'src', got {src}; invert the predicate, for instance with "
                "nisa.tensor_scalar and op0=nl.equal, operand0=0"
            )
        same_tile_size(tiles, "dst", "src")
        not_both_in_psum(tiles, "src", "predicate")
        if src.dtype != dst.dtype:
            raise NkiValidationError(
                f"operands 'dst' and 'src' must have one type, got {dst} and {src}; cast with nisa.tensor_copy first"
            )
    _copy_where_chosen(call.core, dst, src, predicate, reverse_pred)


def _copy_where_chosen(core: Core, dst: NkiTensor, src: Any, predicate: NkiTensor, is_reversed: bool) -> None:
    shape = dst.shape
    is_tile = isinstance(src, NkiTensor)
    number: Any = None if is_tile else _immediate(src, dst)

    def choose(predicates: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        return ((predicates == 0) if is_reversed else (predicates != 0)).reshape(shape)

    def copy(into: npt.NDArray[Any], *elements: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        *tiles, predicates = elements
        chosen = choose(predicates)
        np.copyto(into, tiles[0].reshape(shape) if is_tile else number, casting="unsafe", where=chosen)
        return chosen

    tiles = (src, predicate) if is_tile else (predicate,)
    if _is_marked(dst):
        act(core, copy, updates=(dst,), reads=tiles)
    elif dst.storage.is_abstract:
        predicate.storage.need_values(predicate)
        _mark(dst, choose(predicate.array))
    else:
        _mark(dst, copy(dst.array, *[tile.array for tile in tiles]))


def _immediate(number: Any, dst: NkiTensor) -> npt.NDArray[Any]:
    """Return ``number`` as an element of ``dst``, in an array of size 1.

    Raises:
        NkiValidationError: if the number is a float and the type of ``dst`` an integer type, or the reverse.
    """
    is_integer = isinstance(number, int | np.integer)
    if is_integer != dst.dtype.is_integer:
        kind, fitting = ("an integer", f"{float(number)!r}") if is_integer else ("a float", "an integer")
        raise NkiValidationError(
            f"operand 'src': {kind} needs {'an integer' if is_integer else 'a float'} type of 'dst', got "
            f"{number!r} for {dst}; pass {fitting}"
        )
    if not is_integer:
        return cast_number(number, dst)
    limits = np.iinfo(dst.dtype.numpy)
    return np.full(1, min(max(int(number), limits.min), limits.max), stored_type(dst))


def _is_marked(dst: NkiTensor) -> bool:
    """Return whether ``dst`` is all marked as written, and not as matmul results, so that a write changes no mark."""
    storage = dst.storage
    is_written = storage.written.is_written(dst.layout, storage.width_of(dst.dtype))
    return is_written and (dst.buffer is not MemoryRegion.psum or storage.accumulated.is_untouched)


def _mark(dst: NkiTensor, chosen: npt.NDArray[np.bool_]) -> None:
    """Mark the chosen elements as written, and in PSUM as no longer matmul results."""
    storage, width = dst.storage, dst.storage.width_of(dst.dtype)
    storage.written.mark_where(dst.layout, width, chosen)
    if dst.buffer is MemoryRegion.psum:
        storage.accumulated.clear_where(dst.layout, width, chosen)
