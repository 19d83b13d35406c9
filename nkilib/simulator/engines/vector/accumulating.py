"""Instructions of the Vector engine that also reduce into its accumulator registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...isa.checks import not_both_in_psum, same_tile_size
from ...isa.operand import Operand, output, vector
from ...isa.operators import OPERATORS, operator_key
from ...machine.call import Call
from ...machine.issue import instruction
from ...tensors.tensor import NkiTensor
from ...terms import dtypes as dt
from ...terms.enums import Engine, nc_version
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..accumulators import read_accumulators
from ..blocks import ResultRows, SourceRows, column, row_blocks
from .elementwise import ScalarOperator
from .registers import RegisterReduction

_EXPONENTIAL_SOURCES = frozenset(
    {dt.float8_e4m3, dt.float8_e5m2, dt.float16, dt.bfloat16, dt.float32}
    | {dt.int8, dt.int16, dt.int32, dt.uint8, dt.uint16, dt.uint32}
)
_EXPONENTIAL_RESULTS = (_EXPONENTIAL_SOURCES | {dt.tfloat32}) - {dt.uint32}
_EXPONENTIAL_SUMS = frozenset({dt.float8_e4m3, dt.float8_e5m2, dt.float16, dt.bfloat16, dt.float32, dt.tfloat32})

# The silicon of trn3 that has the instruction; see target/trn3.py.
_REVISION_OF_EXPONENTIAL = 1


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
    """``data <op0> operand0`` in float32, and its reduction over all free dimensions by add, multiply, max or min."""
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    if reverse0:
        raise NkiValidationError("reverse0=True is not supported by NKI 0.6 (docstring of tensor_scalar_reduce)")
    step = ScalarOperator("0", op0, operand0, False)
    step.require_arithmetic()
    step.require_float32_operand("operand0")
    key = operator_key("reduce_op", reduce_op)
    if key not in ("add", "multiply", "maximum", "minimum"):
        raise NkiValidationError(f"reduce_op must be nl.add, nl.multiply, nl.max or nl.min, got {reduce_op!r}")
    allowed = (commands.reset_reduce, commands.reduce, commands.load_reduce)
    reduction = RegisterReduction(call.core, data, reduce_cmd, key, allowed, reduce_init)
    if (reduce_init is not None) != (reduce_cmd is commands.load_reduce):
        raise NkiValidationError("reduce_init belongs to reduce_cmd=load_reduce, which needs it")
    source, result = SourceRows(call.core, "source", data), ResultRows(call.core, "result", dst)
    for rows in row_blocks(dst, dst.free_size, data, operand0):
        values = result.open(rows)
        step.apply_float(source.load(rows), step.load(rows), values)
        reduction.add_rows(rows, values)
        result.store(rows, values)
    reduction.finish()
    read_accumulators(call.core, call.core.vector_accumulators, data, reduce_res, negate=reduce_res_negate)


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
    """``where(predicate, on_true, on_false)``, and optionally its maximum over the free dimensions."""
    tiles = {"dst": dst, "predicate": predicate, "on_true": on_true}
    same_tile_size(tiles, "on_true", "dst", "predicate")
    for name in ("dst", "predicate"):
        if tiles[name].shape != on_true.shape:
            raise NkiValidationError(
                f"operand {name!r} must have the shape of 'on_true', got {tiles[name]} and {on_true}"
            )
    not_both_in_psum(tiles, "on_true", "predicate")
    if operator_key("reduce_op", reduce_op) != "maximum":
        raise NkiValidationError(f"reduce_op must be nl.maximum, got {reduce_op!r}")
    reduction = RegisterReduction(
        call.core, on_true, reduce_cmd, "maximum", (commands.idle, commands.reset_reduce, commands.reduce)
    )
    if reduce_res is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    source, result = SourceRows(call.core, "source", on_true), ResultRows(call.core, "result", dst)
    for rows in row_blocks(dst, dst.free_size, predicate, on_true, on_false):
        chosen = ((predicate.array[rows] != 0) != bool(reverse_pred)).reshape(rows.stop - rows.start, dst.free_size)
        picked = np.where(chosen, source.load(rows), column(on_false, rows)).astype(np.float32, copy=False)
        values = result.open(rows)
        np.copyto(values, picked)
        reduction.add_rows(rows, values)
        result.store(rows, values)
    reduction.finish()
    read_accumulators(call.core, call.core.vector_accumulators, on_true, reduce_res)


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
    """``exp(src - max_value)`` in float32, and optionally its sum over the free dimensions. trn3 and newer."""
    if call.core.generation.revision < _REVISION_OF_EXPONENTIAL:
        raise NkiValidationError(
            f"needs the second silicon of trn3 (nisa.get_nc_sub_version() of 1); the target is "
            f"{call.core.generation.name}: use nisa.activation(op=nl.exp)"
        )
    same_tile_size({"dst": dst, "src": src}, "dst", "src")
    allowed = (commands.idle, commands.reset_reduce, commands.reduce, commands.load_reduce)
    reduction = RegisterReduction(call.core, src, reduce_cmd, "add", allowed, reduce_init)
    is_initial = isinstance(reduce_init, NkiTensor) or reduce_init != 0.0
    if is_initial and reduce_cmd is not commands.load_reduce:
        raise NkiValidationError("reduce_init must be 0.0 unless reduce_cmd is load_reduce")
    if reduce_res is not None and not reduction.is_active:
        raise NkiValidationError("reduce_res needs a reduce_cmd other than idle, which leaves nothing to read")
    source, result = SourceRows(call.core, "source", src), ResultRows(call.core, "result", dst)
    for rows in row_blocks(dst, dst.free_size, src, max_value):
        values = result.open(rows)
        np.subtract(source.load(rows), column(max_value, rows), out=values)
        np.exp(values, out=values)
        reduction.add_rows(rows, values)
        result.store(rows, values)
    reduction.finish()
    read_accumulators(call.core, call.core.vector_accumulators, src, reduce_res)
