"""Copies of the Vector engine that write only where a predicate says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import at_most_rank, not_both_in_psum, same_tile_size
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

    The other elements of ``dst`` stay as they are, unwritten ones included. A tile ``src`` has the type of ``dst`` and
    is copied bit by bit, without ``reverse_pred``. A float is taken as float32 and cast to the float type of ``dst``;
    an integer goes into an integer type of any width, where it saturates. At most three free dimensions.
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
        values = src.array.reshape(dst.shape)
    else:
        values = _immediate(src, dst)
    chosen = ((predicate.array == 0) if reverse_pred else (predicate.array != 0)).reshape(dst.shape)
    np.copyto(dst.array, values, casting="unsafe", where=chosen)
    _mark(dst, chosen)


def _immediate(number: Any, dst: NkiTensor) -> npt.NDArray[Any]:
    """A number as an element of ``dst``, in an array of size 1.

    Raises:
        NkiValidationError: if one of the two is a float, and the other one an integer.
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
    return np.full(1, min(max(int(number), limits.min), limits.max), dst.array.dtype)


def _mark(dst: NkiTensor, chosen: npt.NDArray[np.bool_]) -> None:
    """Record which elements have a value, and that those in PSUM are no matmul results."""
    storage, width = dst.storage, dst.array.itemsize
    storage.written.mark_where(dst.layout, width, chosen)
    if dst.buffer is MemoryRegion.psum:
        storage.accumulated.clear_where(dst.layout, width, chosen)
