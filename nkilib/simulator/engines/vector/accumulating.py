# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions of the Vector engine that also reduce their results into the engine's accumulator registers.

They are :func:`tensor_scalar_reduce`, :func:`scalar_tensor_tensor`, :func:`select_reduce` and :func:`exponential`;
``range_select`` in selection.py and ``tensor_scalar_cumulative`` in scan.py use the registers, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...isa.checks import at_most_rank, not_both_in_psum, same_tile_size
from ...isa.definition import Operand, output, vector
from ...isa.operators import OPERATORS, operator_key
from ...machine.issue import Call, instruction
from ...numerics.operators import ARITHMETIC
from ...tensors.tensor import NkiTensor
from ...terms import dtypes as dt
from ...terms.enums import Engine, nc_version
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..accumulators import VectorAccumulation, lanes_of
from ..rowwise import Float32s, compute
from .scalar_operand import ScalarOperator

# Members of an Enum are looked up by a Python function before 3.12; this one is asked for in every call.
_RESET_REDUCE = commands.reset_reduce

# Of ``tensor_scalar_reduce`` and ``exponential``.
_RANK_MAX = 4

_EXPONENTIAL_SOURCES = frozenset(
    {dt.float8_e4m3, dt.float8_e5m2, dt.float16, dt.bfloat16, dt.float32}
    | {dt.int8, dt.int16, dt.int32, dt.uint8, dt.uint16, dt.uint32}
)
_EXPONENTIAL_RESULTS = (_EXPONENTIAL_SOURCES | {dt.tfloat32}) - {dt.uint32}
_EXPONENTIAL_SUMS = frozenset({dt.float8_e4m3, dt.float8_e5m2, dt.float16, dt.bfloat16, dt.float32, dt.tfloat32})

# The silicon of trn3 that has the instruction; see hardware/generations.py.
_REVISION_OF_EXPONENTIAL = 1


def _reduce_key(op: Any) -> str:
    """Return the name of the operator of a reduction into the registers.

    Raises:
        NkiValidationError: the Vector engine cannot reduce with this operator.
    """
    key = operator_key("reduce_op", op)
    if key not in ("add", "multiply", "maximum", "minimum"):
        raise NkiValidationError(f"reduce_op must be nl.add, nl.multiply, nl.max or nl.min, got {op!r}")
    return key


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        vector("operand0", "data", accepts_scalar=True, is_optional=True),
        vector("reduce_res", "data", is_output=True, is_optional=True),
        vector("reduce_init", "data", accepts_scalar=True, is_optional=True, dtypes=frozenset({dt.float32})),
    ),
    on=(Engine.vector,),
    cost=costs.streamed("data", extra=64.0),
)
def tensor_scalar_reduce(
    call: Call,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: commands = commands.reset_reduce,
    reduce_init: Any = None,
    reduce_res_negate: bool = False,
) -> None:
    """Compute ``dst = data <op0> operand0`` in float32, and reduce the result over all free dimensions.

    ``reduce_op`` is add, multiply, max or min. The accumulator registers and ``reduce_res`` receive the reduction.
    """
    tiles = {"dst": dst, "data": data}
    same_tile_size(tiles, "dst", "data")
    at_most_rank(tiles, _RANK_MAX, *tiles)
    if reverse0:
        raise NkiValidationError("reverse0=True is not supported by NKI (docstring of tensor_scalar_reduce)")
    step = ScalarOperator("0", op0, operand0, False)
    step.require_arithmetic()
    step.require_float32_operand("operand0")
    allowed = (commands.reset_reduce, commands.reduce, commands.load_reduce)
    reduction = VectorAccumulation(
        *(call.core, data, reduce_cmd, _reduce_key(reduce_op), allowed, reduce_init, reduce_res),
        negate=reduce_res_negate,
    )
    if (reduce_init is not None) != (reduce_cmd is commands.load_reduce):
        raise NkiValidationError("reduce_init belongs to reduce_cmd=load_reduce, which needs it")

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        step.apply_float(tiles[0], scalars[0], values)

    compute(call.core, dst, (data,), apply, reduction, (step.scalar,))


def _reduction(
    call: Call, data: NkiTensor, command: commands, op: Any, destination: NkiTensor | None
) -> VectorAccumulation:
    """Return the reduction of a call of ``scalar_tensor_tensor``; it is inactive if the call has none."""
    key = "add" if op is ... else _reduce_key(op)
    allowed = (commands.idle, commands.reset_reduce, commands.reduce)
    reduction = VectorAccumulation(call.core, data, command, key, allowed, destination=destination)
    if destination is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    return reduction


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        vector("operand0", "data", accepts_scalar=True, is_optional=True),
        Operand("operand1"),
        vector("reduce_res", "data", is_output=True, is_optional=True),
    ),
    on=(Engine.vector,),
    cost=costs.scalar_and_tile,
)
def scalar_tensor_tensor(
    call: Call,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    op1: Any,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_cmd: commands = commands.reset_reduce,
    reduce_op: Any = ...,
    reduce_res: NkiTensor | None = None,
) -> None:
    """Compute ``(data <op0> operand0) <op1> operand1`` in float32, and optionally reduce the result over free
    dimensions.

    ``operand0`` is a number or a (P, 1) tile, ``operand1`` a tile of the size of ``data``. The float32 values are
    reduced as in :func:`tensor_scalar_reduce`. The documentation hides the default of ``reduce_op``; here it is add. A
    call without ``reduce_op`` and ``reduce_res`` reduces nothing, and leaves the registers without defined values.
    """
    tiles = {"dst": dst, "data": data, "operand1": operand1}
    same_tile_size(tiles, "dst", "data", "operand1")
    not_both_in_psum(tiles, "data", "operand1")
    first = ScalarOperator("0", op0, operand0, reverse0)
    first.require_arithmetic()
    key = operator_key("op1", op1)
    if key not in ARITHMETIC:
        raise NkiValidationError(f"op1={op1!r} must be a binary arithmetic operator")
    is_plain = reduce_op is ... and reduce_res is None and reduce_cmd is _RESET_REDUCE
    reduction = None if is_plain else _reduction(call, data, reduce_cmd, reduce_op, reduce_res)
    function = ARITHMETIC[key]

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        left, right = tiles
        # op0's result must not land in dst before operand1 is read from it.
        is_apart = not np.may_share_memory(values, right)
        middle = values if is_apart else call.core.scratch("middle", values.size).reshape(values.shape)
        first.apply_float(left, scalars[0], middle)
        function(*((right, middle) if reverse1 else (middle, right)), values)

    compute(call.core, dst, (data, operand1), apply, reduction, (first.scalar,))
    if reduction is None and not call.core.vector_accumulators.is_blank:
        call.core.vector_accumulators.forget(lanes_of(data))


@instruction(
    operands=(
        output("dst"),
        Operand("predicate", dtypes=frozenset({dt.int8, dt.uint8, dt.int16, dt.uint16})),
        Operand("on_true", dtypes=dt.COMPUTABLE - {dt.tfloat32, dt.int32, dt.uint32}),
        vector("on_false", "on_true", accepts_scalar=True),
        vector("reduce_res", "on_true", is_output=True, is_optional=True, dtypes=dt.FLOATS),
    ),
    on=(Engine.vector,),
    cost=costs.selected,
)
def select_reduce(
    call: Call,
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: Any,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: commands = commands.idle,
    reduce_op: Any = OPERATORS["maximum"],
    reverse_pred: bool = False,
) -> None:
    """Compute ``dst = where(predicate, on_true, on_false)``, and optionally its maximum over the free dimensions.

    The tiles have equal numbers of elements per partition, and may have different numbers of dimensions.
    """
    tiles = {"dst": dst, "predicate": predicate, "on_true": on_true}
    same_tile_size(tiles, "on_true", "dst", "predicate")
    not_both_in_psum(tiles, "on_true", "predicate")
    if operator_key("reduce_op", reduce_op) != "maximum":
        raise NkiValidationError(f"reduce_op must be nl.maximum, got {reduce_op!r}")
    reduction = VectorAccumulation(
        *(call.core, on_true, reduce_cmd, "maximum", (commands.idle, commands.reset_reduce, commands.reduce)),
        destination=reduce_res,
    )
    if reduce_res is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        data, predicates = tiles
        chosen = (predicates == 0) if reverse_pred else (predicates != 0)
        np.copyto(values, np.where(chosen, data, scalars[0]))

    compute(call.core, dst, (on_true, predicate), apply, reduction, (on_false,))


@instruction(
    operands=(
        output("dst", dtypes=_EXPONENTIAL_RESULTS),
        Operand("src", dtypes=_EXPONENTIAL_SOURCES),
        vector("max_value", "src", accepts_scalar=True, dtypes=frozenset({dt.float32})),
        vector("reduce_res", "src", is_output=True, is_optional=True, dtypes=_EXPONENTIAL_SUMS),
        vector("reduce_init", "src", accepts_scalar=True, dtypes=frozenset({dt.float32})),
    ),
    on=(Engine.vector,),
    since=nc_version.gen4,
    cost=costs.exponential,
)
def exponential(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: commands = commands.idle,
    reduce_init: Any = 0.0,
) -> None:
    """Compute ``dst = exp(src - max_value)`` in float32, and optionally its sum over the free dimensions.

    The instruction needs trn3 or newer.
    """
    if call.core.generation.revision < _REVISION_OF_EXPONENTIAL:
        raise NkiValidationError(
            f"needs the second silicon of trn3 (nisa.get_nc_sub_version() of 1); the target is "
            f"{call.core.generation.name}: use nisa.activation(op=nl.exp)"
        )
    tiles = {"dst": dst, "src": src}
    same_tile_size(tiles, "dst", "src")
    at_most_rank(tiles, _RANK_MAX, *tiles)
    allowed = (commands.idle, commands.reset_reduce, commands.reduce, commands.load_reduce)
    reduction = VectorAccumulation(call.core, src, reduce_cmd, "add", allowed, reduce_init, reduce_res)
    is_initial = isinstance(reduce_init, NkiTensor) or reduce_init != 0.0
    if is_initial and reduce_cmd is not commands.load_reduce:
        raise NkiValidationError("reduce_init must be 0.0 unless reduce_cmd is load_reduce")
    if reduce_res is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs a reduce_cmd other than idle, which leaves nothing to read")

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        np.subtract(tiles[0], scalars[0], out=values)
        np.exp(values, out=values)

    compute(call.core, dst, (src,), apply, reduction, (max_value,))
