# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions that write selected elements of a tile.

- :func:`affine_select`, :func:`range_select`: elements are selected by position; a constant is written to the others.
- :func:`tensor_copy_predicated`: elements are selected by a predicate tile; the others keep their values.
- :func:`affine_values`: the numbers, one for each position, by which ``affine_select`` selects.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.generations import FREE_DIMENSIONS_MAX
from ...isa.checks import at_most_rank, not_both_in_psum, same_tile_size
from ...isa.definition import SBUF, Operand, output, vector
from ...isa.operators import OPERATORS, operator_key
from ...machine.core import Core
from ...machine.issue import Call, instruction
from ...numerics.casts import store_float
from ...numerics.operators import ARITHMETIC, Binary
from ...tensors.device_integers import DeviceInteger, int32_of
from ...tensors.tensor import NkiTensor
from ...terms import dtypes as dt
from ...terms.argument_checks import division_remedy
from ...terms.dtypes import uint8, uint16, uint32
from ...terms.enums import Engine, MemoryRegion, nc_version
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ...terms.spec import DataNeeded
from ...timing import costs
from ..accumulators import VectorAccumulation
from ..actions import act, cast_number, copy_elements, require_number, stored_type
from ..rowwise import Float32s, compute

_INT32 = np.iinfo(np.int32)


def affine_values(
    dst: NkiTensor, pattern: Sequence[Sequence[int]], offset: Any, channel_multiplier: Any
) -> npt.NDArray[np.int32]:
    """Return ``offset + partition * channel_multiplier + sum(step_k * i_k)`` for the elements of ``dst``.

    The values are wrapped to 32 bits. An element has the indices i_0, i_1, ... in the free dimensions of ``pattern``.

    Args:
        dst: the tile with the elements; partitions are counted from the first partition of the tile.
        pattern: ``[[step, num], ...]``, up to four pairs; the index of the last pair changes fastest; the steps are
            int32.
        offset: an int32, as an integer, or in a register or scalar, which this function reads.
        channel_multiplier: an int32.

    Returns:
        An array (partitions, elements per partition).

    Raises:
        NkiValidationError: the pattern has another form or size, or a number is no int32.
    """
    try:
        steps = [index(step) for step, _ in pattern]
        counts = [index(count) for _, count in pattern]
    except (TypeError, ValueError):
        raise NkiValidationError(
            f"pattern must be [[step, num], ...] of integers, got {pattern!r}{division_remedy(pattern)}"
        ) from None
    if not 1 <= len(counts) <= FREE_DIMENSIONS_MAX or min(counts) < 1 or prod(counts) != dst.free_size:
        raise NkiValidationError(
            f"pattern must have 1 to {FREE_DIMENSIONS_MAX} pairs [step, num] whose numbers multiply to the "
            f"{dst.free_size} elements per partition of {dst}, got {pattern!r}"
        )
    if isinstance(offset, DeviceInteger):
        offset = int32_of("offset", offset)
    numbers = [("offset", offset), ("channel_multiplier", channel_multiplier), *(("a step", step) for step in steps)]
    for name, value in numbers:
        if not isinstance(value, int | np.integer) or not _INT32.min <= value <= _INT32.max:
            may_be = ", a register or a scalar" if name == "offset" else ""
            remedy = "; nisa.scalar_load reads a scalar from it" if may_be and isinstance(value, NkiTensor) else ""
            raise NkiValidationError(f"{name} must be an int32{may_be}, got {value!r}{remedy}")
    if dst.storage.is_abstract:
        raise DataNeeded(repr(dst), dst.storage.origin)
    values = np.full((1,), offset, np.int64)
    for step, count in zip(steps, counts, strict=True):
        values = (values[:, None] + step * np.arange(count, dtype=np.int64)[None, :]).reshape(-1)
    partitions = np.arange(dst.shape[0], dtype=np.int64) * channel_multiplier
    return partitions.astype(np.int32)[:, None] + values.astype(np.int32)[None, :]


_RANGE_COMPARISONS = ("equal", "less", "less_equal", "greater", "greater_equal")
_COMPARISONS = ("equal", "not_equal", *_RANGE_COMPARISONS[1:])
_FLOAT32_MIN = float(np.finfo(np.float32).min)
# Integers up to here are exact in float32.
_INDEX_MAX = 2**24


def _comparison(parameter: str, op: Any, allowed: tuple[str, ...]) -> Binary:
    key = operator_key(parameter, op)
    if key not in allowed:
        names = ", ".join(f"nl.{name}" for name in allowed)
        raise NkiValidationError(f"{parameter} must be one of {names}, got {op!r}")
    return ARITHMETIC[key]


@instruction(
    operands=(output("dst", regions=SBUF), Operand("on_true_tile", regions=SBUF)),
    on=(Engine.gpsimd,),
    cost=costs.assumed("dst"),
)
def affine_select(
    call: Call,
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: Any,
    cmp_op: Any = OPERATORS["equal"],
    offset: int | DeviceInteger = 0,
) -> None:
    """Copy ``on_true_tile`` to ``dst`` where ``affine <cmp_op> 0``, and write ``on_false_value`` elsewhere.

    ``affine`` is the sequence that ``iota`` generates: ``offset + partition * channel_multiplier + sum(step_k * i_k)``
    in 32-bit integers, with partitions counted from the first partition of ``dst``. Elements of ``on_true_tile`` are
    copied bit by bit if ``dst`` has the same type, else cast through float32; ``on_false_value`` is a float32, cast to
    the type of ``dst``. ``offset`` may be a register or an ``NkiScalar`` of int32.
    """
    same_tile_size({"dst": dst, "on_true_tile": on_true_tile}, "dst", "on_true_tile")
    require_number("on_false_value", on_false_value)
    compare = _comparison("cmp_op", cmp_op, _COMPARISONS)
    affine = affine_values(dst, pattern, offset, channel_multiplier)
    chosen = np.empty(affine.shape, np.bool_)
    compare(affine, np.int32(0), chosen)
    is_rejected = ~chosen.reshape(dst.shape)
    number, dtype, is_cast = cast_number(on_false_value, dst), dst.dtype, on_true_tile.dtype != dst.dtype

    def select(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
        if is_cast:
            store_float(into, elements.astype(np.float32), dtype)
        else:
            copy_elements(into, elements)
        np.copyto(into, number, where=is_rejected)

    act(call.core, select, writes=(dst,), reads=(on_true_tile,))


def _positions(start: Any, count: int) -> Any:
    if not isinstance(start, int | np.integer):
        raise NkiValidationError(f"range_start must be a compile-time integer, got {start!r}")
    if start < -_INDEX_MAX or start + count - 1 > _INDEX_MAX:
        raise NkiValidationError(
            f"range_start plus the index of an element must be within 2^24, where float32 is exact, got {start} to "
            f"{start + count - 1}"
        )
    return np.arange(start, start + count).astype(np.float32)


@instruction(
    operands=(
        output("dst"),
        Operand("on_true_tile", dtypes=dt.FLOATS),
        vector("bound0", "on_true_tile", dtypes=frozenset({dt.float32})),
        vector("bound1", "on_true_tile", dtypes=frozenset({dt.float32})),
        vector("reduce_res", "on_true_tile", is_output=True, is_optional=True),
    ),
    on=(Engine.vector,),
    since=nc_version.gen3,
    cost=costs.streamed("on_true_tile"),
)
def range_select(
    call: Call,
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Any,
    comp_op1: Any,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: commands = commands.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Any = OPERATORS["maximum"],
    range_start: int = 0,
    on_false_value: Any = _FLOAT32_MIN,
) -> None:
    """Copy ``on_true_tile`` where ``k <comp_op0> bound0`` and ``k <comp_op1> bound1``, and compute the maximum.

    ``k`` is ``range_start`` plus the element's index within its partition, compared in float32: it must stay within
    2^24. Other elements become ``on_false_value``, which must be the lowest float32. ``reduce_res`` receives the
    maximum of the float32 values, before the cast to the type of ``dst``; in narrower types this cast turns the lowest
    float32 into -inf. The instruction needs trn2 or newer.
    """
    same_tile_size({"dst": dst, "on_true_tile": on_true_tile}, "dst", "on_true_tile")
    compare0 = _comparison("comp_op0", comp_op0, _RANGE_COMPARISONS)
    compare1 = _comparison("comp_op1", comp_op1, _RANGE_COMPARISONS)
    require_number("on_false_value", on_false_value)
    if np.float32(on_false_value) != np.float32(_FLOAT32_MIN):
        raise NkiValidationError(f"on_false_value must be the lowest float32, -3.4028235e+38, got {on_false_value!r}")
    if operator_key("reduce_op", reduce_op) != "maximum":
        raise NkiValidationError(f"reduce_op must be nl.maximum, got {reduce_op!r}")
    allowed = (commands.idle, commands.reset_reduce, commands.reduce)
    reduction = VectorAccumulation(call.core, on_true_tile, reduce_cmd, "maximum", allowed, destination=reduce_res)
    if reduce_res is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    positions = _positions(range_start, on_true_tile.free_size)

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        chosen = np.empty((2, *values.shape), np.bool_)
        compare0(positions, scalars[0], chosen[0])
        compare1(positions, scalars[1], chosen[1])
        np.copyto(values, tiles[0])
        np.copyto(values, np.float32(_FLOAT32_MIN), where=~(chosen[0] & chosen[1]))

    compute(call.core, dst, (on_true_tile,), apply, reduction, (bound0, bound1))


_PREDICATED_RANK_MAX = 4


def _immediate(number: Any, dst: NkiTensor) -> npt.NDArray[Any]:
    """Return the number ``src`` of ``tensor_copy_predicated`` as an element of ``dst``, in an array of size 1.

    Raises:
        NkiValidationError: the number is a float and the type of ``dst`` an integer type, or the reverse.
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
    """Return whether a write to ``dst`` changes no marks: all of its elements are marked as written already, and none
    as a matmul result.
    """
    storage = dst.storage
    is_written = storage.written.is_written(dst.layout, storage.width_of(dst.dtype))
    return is_written and (dst.buffer is not MemoryRegion.psum or storage.accumulated.is_untouched)


def _mark(dst: NkiTensor, chosen: npt.NDArray[np.bool_]) -> None:
    storage, width = dst.storage, dst.storage.width_of(dst.dtype)
    storage.written.mark_where(dst.layout, width, chosen)
    if dst.buffer is MemoryRegion.psum:
        storage.accumulated.clear_where(dst.layout, width, chosen)


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

    The other elements of ``dst`` stay unchanged. If ``src`` is a tile, it has the type of ``dst`` and is copied bit by
    bit; ``reverse_pred`` is then not allowed. If ``src`` is a float, ``dst`` has a float type, to which ``src`` is cast
    through float32; if ``src`` is an integer, ``dst`` has an integer type, in which ``src`` saturates. The tiles have
    at most three free dimensions.
    """
    tiles = {"dst": dst, "src": src, "predicate": predicate}
    at_most_rank(tiles, _PREDICATED_RANK_MAX, "dst", "predicate")
    same_tile_size(tiles, "dst", "predicate")
    if isinstance(src, NkiTensor):
        at_most_rank(tiles, _PREDICATED_RANK_MAX, "src")
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
