"""Copies of the Vector engine that write only where a predicate says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import not_both_in_psum, same_tile_size
from ...isa.fill import cast_number
from ...isa.operand import Operand, output
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import uint8, uint16, uint32
from ...terms.enums import Engine
from ...terms.errors import NkiValidationError
from ...terms.regions import MemoryRegion
from ...timing import costs


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

    The other elements of ``dst`` stay as they are, unwritten ones included. A tile ``src`` has the type of ``dst`` and
    is copied bit by bit; a number is taken as float32 and cast.
    """
    same_tile_size({"dst": dst, "predicate": predicate}, "dst", "predicate")
    if isinstance(src, NkiTensor):
        tiles = {"dst": dst, "src": src, "predicate": predicate}
        same_tile_size(tiles, "dst", "src")
        not_both_in_psum(tiles, "src", "predicate")
        if src.dtype != dst.dtype:
            raise NkiValidationError(
                f"operands 'dst' and 'src' must have one type, got {dst} and {src}; cast with nisa.tensor_copy first"
            )
        values = src.array.reshape(dst.shape)
    else:
        values = cast_number(src, dst)
    chosen = ((predicate.array == 0) if reverse_pred else (predicate.array != 0)).reshape(dst.shape)
    np.copyto(dst.array, values, casting="unsafe", where=chosen)
    _mark(dst, chosen)


def _mark(dst: NkiTensor, chosen: npt.NDArray[np.bool_]) -> None:
    """Record which elements have a value, and that those in PSUM are no matmul results."""
    storage, width = dst.storage, dst.array.itemsize
    storage.written.mark_where(dst.layout, width, chosen)
    if dst.buffer is MemoryRegion.psum:
        storage.accumulated.clear_where(dst.layout, width, chosen)
