"""Instructions of the Scalar engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import dtypes as dt
from ..activations import ACTIVATIONS, NEEDS_PARAMETER
from ..blocks import ResultRows, SourceRows, column, free_size, row_blocks
from ..core import Core
from ..enums import engine as engines
from ..enums import nc_version, reduce_cmd
from ..errors import NkiValidationError, UninitializedReadError
from ..instruction import Call, instruction
from ..operands import Operand, output, same_tile_size, vector
from ..operators import operator_key
from ..tensor import NkiTensor
from .accumulate import lanes_of, read_accumulators

_COMMANDS = (reduce_cmd.idle, reduce_cmd.reset, reduce_cmd.reduce, reduce_cmd.reset_reduce)
_RESETTING = (reduce_cmd.reset, reduce_cmd.reset_reduce)
_REDUCING = (reduce_cmd.reduce, reduce_cmd.reset_reduce)

_OPERANDS = (
    output("dst"),
    Operand("data"),
    vector(
        "bias",
        "data",
        accepts_scalar=True,
        is_optional=True,
        dtypes=frozenset(dt.ALL_DTYPES) - {dt.tfloat32},
    ),
    vector("scale", "data", accepts_scalar=True, dtypes=frozenset({dt.float32})),
    vector("reduce_res", "data", is_output=True, is_optional=True),
)


@instruction(operands=_OPERANDS, on=(engines.scalar,))
def activation(
    call: Call,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any = None,
    scale: Any = 1.0,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
) -> None:
    """``op(data * scale + bias)`` in float32, and optionally its sum over the free dimensions.

    The sum goes into the engine's registers as ``reduce_cmd`` says: ``reset_reduce`` puts it there, ``reduce`` adds it
    to what they hold (the prose of the documentation; its pseudo-code would add the old value twice), ``reset`` only
    sets them to 0, ``idle`` leaves them. ``reduce_res`` receives the registers afterwards.
    """
    _activate(call.core, dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


@instruction(operands=_OPERANDS, on=(engines.scalar,))
def activation_reduce(
    call: Call,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    bias: Any = None,
    scale: Any = 1.0,
) -> None:
    """:func:`activation` with ``reduce_cmd=reset_reduce``."""
    _activate(call.core, dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd.reset_reduce)


def _activate(
    core: Core,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    bias: Any,
    scale: Any,
    reduce_op: Any,
    reduce_res: NkiTensor | None,
    command: reduce_cmd,
) -> None:
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    key = _check_function(core, op, bias)
    _check_reduction(reduce_op, command)
    function = ACTIVATIONS[key]
    sums = np.empty(data.shape[0], np.float32)
    source, result = SourceRows(core, "source", data), ResultRows(core, "result", dst)
    is_apart = result.is_apart_from(data)
    for rows in row_blocks(dst, free_size(dst), data, bias, scale):
        values = result.open(rows)
        # Read before the data lands in dst, whose tile may hold them.
        factor, summand = _column_unless(1.0, scale, rows), _column_unless(0.0, bias, rows)
        loaded = source.load(rows, values if is_apart else None)
        function(_scaled(loaded, factor, summand, values), values)
        if command in _REDUCING:
            np.add.reduce(values, axis=1, out=sums[rows])
        result.store(rows, values)
    _accumulate(core, data, sums, command)
    read_accumulators(core, core.scalar_accumulators, data, reduce_res)


def _column_unless(neutral: float, operand: Any, rows: slice) -> Any:
    """The scale or bias of some rows, or None where it is absent or the number that changes nothing."""
    if operand is None or (not isinstance(operand, NkiTensor) and operand == neutral):
        return None
    return column(operand, rows)


def _scaled(
    source: npt.NDArray[np.float32], factor: Any, summand: Any, out: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """``source * factor + summand``, each step rounded to float32; a step that is None is left out."""
    if factor is not None:
        source = np.multiply(source, factor, out=out)
    if summand is not None:
        source = np.add(source, summand, out=out)
    return source


def _check_function(core: Core, op: Any, bias: Any) -> str:
    key = operator_key("op", op)
    if key in NEEDS_PARAMETER:
        raise NotImplementedError(
            f"nisa.activation: op={op!r} takes its slope from nisa.activate2, not implemented yet"
        )
    if key not in ACTIVATIONS:
        raise NkiValidationError(f"op={op!r} is no activation function of the Scalar engine")
    if core.generation.version is nc_version.gen2 and bias is not None:
        if not isinstance(bias, NkiTensor):
            raise NkiValidationError(f"bias must be a (P, 1) tensor on trn1, got {bias!r}")
        if key == "reciprocal":
            raise NkiValidationError("op=nl.reciprocal takes no bias on trn1")
    return key


def _check_reduction(reduce_op: Any, command: reduce_cmd) -> None:
    if command not in _COMMANDS:
        raise NkiValidationError(f"reduce_cmd must be idle, reset, reduce or reset_reduce, got {command!r}")
    wants = command in _REDUCING
    if reduce_op is not None and operator_key("reduce_op", reduce_op) != "add":
        raise NkiValidationError(f"reduce_op must be nl.add, got {reduce_op!r}")
    if wants and reduce_op is None:
        raise NkiValidationError(f"reduce_cmd={command.name} needs reduce_op=nl.add")


def _accumulate(core: Core, data: NkiTensor, sums: npt.NDArray[np.float32], command: reduce_cmd) -> None:
    registers = core.scalar_accumulators
    lanes = lanes_of(data)
    if command in _RESETTING:
        registers.set(lanes, np.float32(0.0))
    if command in _REDUCING:
        if core.options.uninitialized == "error" and not registers.known[lanes].all():
            raise UninitializedReadError(
                "reduce_cmd=reduce adds to accumulator registers that hold no defined value; start with reset_reduce"
            )
        registers.set(lanes, registers.values[lanes] + sums)
