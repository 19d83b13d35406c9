# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions that choose between a tile and a constant by the position of an element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import same_tile_size
from ...isa.fill import cast_number, require_number
from ...isa.operand import SBUF, Operand, output, vector
from ...isa.operators import OPERATORS, operator_key
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.casts import store_float
from ...numerics.operators import ARITHMETIC, Binary
from ...tensors.scalars import DeviceInteger
from ...tensors.tensor import NkiTensor
from ...terms import dtypes as dt
from ...terms.enums import Engine, nc_version
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..actions import act, copy_elements
from ..results import Float32s, compute
from .affine import affine_values
from .registers import RegisterReduction

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
    """Copy ``on_true_tile`` where ``affine <cmp_op> 0``, and fill in ``on_false_value`` elsewhere.

    ``affine`` is the sequence that ``iota`` generates: ``offset + partition * channel_multiplier + sum(step_k *
    i_k)`` in 32-bit integers, with partitions counted from the first one of ``dst``. Elements of ``on_true_tile`` are
    copied bit by bit if ``dst`` has their type, else cast through float32; ``on_false_value`` is a float32, cast to
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
    """Copy ``on_true_tile`` where ``k <comp_op0> bound0`` and ``k <comp_op1> bound1``, and reduce to the maximum.

    ``k`` is ``range_start`` plus the element's index within its partition, compared in float32: it must stay within
    2^24. Other elements become ``on_false_value``, which can be the lowest float32 only. ``reduce_res`` receives the
    maximum of the float32 values, before their cast to ``dst``, which turns the lowest float32 into -inf in narrower
    types. The instruction needs trn2 or newer.
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
    reduction = RegisterReduction(call.core, on_true_tile, reduce_cmd, "maximum", allowed, destination=reduce_res)
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


def _positions(start: Any, count: int) -> Any:
    """Return ``start``, ``start + 1``, ... , ``count`` numbers as float32."""
    if not isinstance(start, int | np.integer):
        raise NkiValidationError(f"range_start must be a compile-time integer, got {start!r}")
    if start < -_INDEX_MAX or start + count - 1 > _INDEX_MAX:
        raise NkiValidationError(
            f"range_start plus the index of an element must be within 2^24, where float32 is exact, got {start} to "
            f"{start + count - 1}"
        )
    return np.arange(start, start + count).astype(np.float32)
