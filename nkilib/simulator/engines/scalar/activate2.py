# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``activate2``: the activation instruction of trn3, with two configurable steps before the function."""

from __future__ import annotations

from typing import Any

from ...isa.checks import same_tile_size
from ...isa.operand import Operand, output, vector
from ...isa.operators import BYPASS, operator_key
from ...machine.call import Call
from ...machine.issue import instruction
from ...numerics.activations import PARAMETRIC
from ...tensors.tensor import NkiTensor
from ...terms.enums import Engine, nc_version, reduce_cmd
from ...terms.errors import NkiValidationError
from ...timing import costs
from .activation import ACTIVATION_ENGINES, activation_engine_rule, activation_key
from .formula import Step, activate
from .registers import ScalarAccumulation

# The documented combinations of op0 and op1.
_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", BYPASS),
    ("add", BYPASS),
    ("subtract", BYPASS),
    (BYPASS, BYPASS),
)
_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        vector("imm0", "data", accepts_scalar=True),
        vector("imm1", "data", accepts_scalar=True),
        vector("relu_param", "data", accepts_scalar=True),
        vector("reduce_res", "data", is_output=True, is_optional=True),
    ),
    on=ACTIVATION_ENGINES,
    since=nc_version.gen4,
    engine_rule=activation_engine_rule,
    cost=costs.activated,
)
def activate2(
    call: Call,
    dst: NkiTensor,
    op: Any,
    data: NkiTensor,
    imm0: Any,
    imm1: Any,
    op0: Any,
    op1: Any,
    relu_param: Any = 0.0,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_op: Any = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    engine: Engine = Engine.scalar,
) -> None:
    """Compute ``op((data <op0> imm0) <op1> imm1)`` in float32, and optionally reduce it over the free dimensions.

    ``imm0``, ``imm1`` and ``relu_param``, the slope of ``nl.prelu``, are numbers or one element a partition. A step
    whose operator is ``nl.bypass`` is left out; a reversed step computes ``imm <op> data``. The registers, their
    commands and ``reduce_res`` work as in :func:`nisa.activation`; a reset sets the identity of ``reduce_op``. The
    instruction needs trn3 or newer. It also runs on GpSimd, without the reduction.
    """
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    key = activation_key(op)
    steps = _steps(("0", op0, imm0, reverse0), ("1", op1, imm1, reverse1))
    if key not in PARAMETRIC and (isinstance(relu_param, NkiTensor) or relu_param != 0.0):
        raise NkiValidationError(f"op={op!r} has no parameter: relu_param must be 0.0, got {relu_param!r}")
    accumulation = ScalarAccumulation(call.core, data, reduce_op, reduce_cmd, _REDUCTIONS, reduce_res)
    activate(call.core, dst, key, data, steps, accumulation, relu_param)


def _steps(*arguments: tuple[str, Any, Any, bool]) -> list[Step]:
    """Return the steps before the function, each from its number, operator, immediate and whether it is reversed."""
    keys = tuple(operator_key(f"op{number}", op) for number, op, _, _ in arguments)
    if keys not in _PAIRS:
        allowed = ", ".join(f"(nl.{first}, nl.{second})" for first, second in _PAIRS)
        got = ", ".join(f"nl.{key}" for key in keys)
        raise NkiValidationError(f"(op0, op1) must be one of {allowed}; got ({got})")
    first, second = (imm for _, _, imm, _ in arguments)
    if isinstance(first, NkiTensor) and isinstance(second, NkiTensor) and first.dtype != second.dtype:
        raise NkiValidationError(f"tensors imm0 and imm1 must have the same type, got {first} and {second}")
    steps = []
    for key, (number, op, imm, is_reversed) in zip(keys, arguments, strict=True):
        if key != BYPASS:
            steps.append(Step(key, imm, is_reversed))
        elif is_reversed:
            raise NkiValidationError(f"reverse{number}=True needs an operator to reverse, got op{number}={op!r}")
    return steps
