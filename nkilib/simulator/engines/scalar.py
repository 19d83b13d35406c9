# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The activation instructions of the Scalar engine: ``activation``, ``activation_reduce`` and, on trn3, ``activate2``.

All three apply *steps* (binary operations with an operand, such as scale and bias) to the data, then an activation
function, and can reduce the results. ``activate2`` has two steps that the caller chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..hardware.generations import Generation
from ..isa.checks import same_tile_size
from ..isa.definition import Operand, output, vector
from ..isa.operators import BYPASS, operator_key
from ..machine.core import Core
from ..machine.issue import Call, instruction
from ..numerics.activations import ACTIVATIONS, PARAMETRIC
from ..numerics.operators import ARITHMETIC
from ..tensors.tensor import NkiTensor
from ..terms import dtypes as dt
from ..terms.enums import Engine, nc_version, reduce_cmd
from ..terms.errors import NkiValidationError
from ..timing import costs
from .accumulators import ScalarAccumulation
from .rowwise import Float32s, compute


class _Step(NamedTuple):
    """A binary operation before the activation function: ``data <key> operand``, or ``operand <key> data`` if reversed.

    Attributes:
        key: the name of the operator in ``ARITHMETIC``.
        operand: a number, or a tensor with one element per partition.
        is_reversed: whether the operand comes first.
    """

    key: str
    operand: Any
    is_reversed: bool = False


def _apply_function(
    core: Core,
    dst: NkiTensor,
    key: str,
    data: NkiTensor,
    steps: Sequence[_Step],
    accumulation: ScalarAccumulation,
    parameter: Any = 0.0,
) -> None:
    """Apply ``steps`` to ``data`` in float32, then the activation function ``key``, and store the results in ``dst``.

    ``accumulation`` reduces the results into the accumulator registers. ``parameter`` is passed to a function that has
    a parameter.
    """
    functions = [(ARITHMETIC[step.key], step.is_reversed) for step in steps]
    columns = [step.operand for step in steps]
    if key in PARAMETRIC:
        columns.append(parameter)

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        (loaded,) = tiles
        for (function, is_reversed), scalar in zip(functions, scalars, strict=False):  # the parameter is left over
            left, right = (scalar, loaded) if is_reversed else (loaded, scalar)
            function(left, right, values)
            loaded = values
        if key in PARAMETRIC:
            PARAMETRIC[key](loaded, scalars[-1], values)
        else:
            ACTIVATIONS[key](loaded, values)

    compute(core, dst, (data,), apply, accumulation, columns)


# The first one is the default.
_ACTIVATION_ENGINES = (Engine.scalar, Engine.gpsimd)

_OPERANDS = (
    output("dst"),
    Operand("data"),
    vector(
        "bias",
        "data",
        accepts_scalar=True,
        is_optional=True,
        dtypes=dt.COMPUTABLE - {dt.tfloat32},
    ),
    vector("scale", "data", accepts_scalar=True, dtypes=frozenset({dt.float32})),
    vector("reduce_res", "data", is_output=True, is_optional=True),
)


def _activation_engine_rule(engine: Engine, generation: Generation, values: Mapping[str, Any]) -> None:
    """Check that ``engine`` can compute activation functions, and the reduction of results if the call has one.

    Raises:
        NkiValidationError: the engine is GpSimd on trn1 or trn2, or GpSimd with a reduction: only the Scalar engine has
            the registers.
    """
    if engine is Engine.scalar:
        return
    if generation.version is not nc_version.gen4:
        raise NkiValidationError(
            f"engine=nki.isa.engine.{engine.name} needs trn3 (NeuronCore-v4); the target is {generation.name}"
        )
    command, reduce_res = values["reduce_cmd"], values["reduce_res"]
    if command is not reduce_cmd.idle or reduce_res is not None:
        raise NkiValidationError(
            f"engine=nki.isa.engine.{engine.name} has no accumulator registers: reduce_cmd must be idle and "
            f"reduce_res None, got {command!r} and {reduce_res!r}; the Scalar engine reduces"
        )


def _activation_key(op: Any) -> str:
    """Return the name of the activation function ``op``.

    Raises:
        NkiValidationError: ``op`` is not an activation function.
    """
    key = operator_key("op", op)
    if key not in ACTIVATIONS and key not in PARAMETRIC:
        raise NkiValidationError(f"op={op!r} is no activation function of the Scalar engine")
    return key


def _check_bias(core: Core, key: str, bias: Any) -> None:
    if core.generation.version is nc_version.gen2 and bias is not None:
        if not isinstance(bias, NkiTensor):
            raise NkiValidationError(f"bias must be a (P, 1) tensor on trn1, got {bias!r}")
        if key == "reciprocal":
            raise NkiValidationError("op=nl.reciprocal takes no bias on trn1")


def _scaled_activation(
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
    key = _activation_key(op)
    if key in PARAMETRIC:
        raise NkiValidationError(f"op={op!r} has a parameter, which nisa.activate2 (trn3) takes as relu_param")
    _check_bias(core, key, bias)
    accumulation = ScalarAccumulation(core, data, reduce_op, command, ("add",), reduce_res)
    steps = []
    if isinstance(scale, NkiTensor) or scale != 1.0:
        steps.append(_Step("multiply", scale))
    if isinstance(bias, NkiTensor) or bias not in (None, 0.0):
        steps.append(_Step("add", bias))
    _apply_function(core, dst, key, data, steps, accumulation)


@instruction(
    operands=_OPERANDS,
    on=_ACTIVATION_ENGINES,
    engine_rule=_activation_engine_rule,
    cost=costs.activated,
)
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
    engine: Engine = Engine.scalar,
) -> None:
    """Compute ``op(data * scale + bias)`` in float32, and optionally its sum over the free dimensions.

    ``reduce_cmd`` says what happens to the engine's accumulator registers: ``reset_reduce`` sets them to the sum,
    ``reduce`` adds the sum to them (as the prose of the documentation says; its pseudo-code would add the old value
    twice), ``reset`` sets them to 0, and ``idle`` leaves them unchanged. ``reduce_res`` receives the registers
    afterwards. From trn3 on the instruction also runs on the GpSimd engine, without the sum.
    """
    _scaled_activation(call.core, dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


@instruction(
    operands=_OPERANDS,
    on=(Engine.scalar,),
    cost=costs.activated,
)
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
    """Apply an activation function, and sum its results over the free dimensions of each partition.

    In float32, with one sum for each partition::

        output = op(data * scale + bias)
        dst = output, cast to the type of dst
        reduce_res = sum of output over all free dimensions

    The sum is of the float32 results, before the cast to the type of ``dst``. It starts from 0 in each call: the
    instruction adds nothing to the previous contents of ``reduce_res``, and overwrites the registers of the engine. To
    continue a sum over several tiles, call :func:`activation` with ``reduce_cmd=reset_reduce`` for the first tile and
    with ``reduce_cmd=reduce`` for the others. ``activation_reduce`` is :func:`activation` with
    ``reduce_cmd=reset_reduce``.

    Args:
        dst: the tile that receives the activated data, with the size of ``data``.
        op: an activation function, such as ``nl.exp``.
        data: the input tile, of shape (P, ...).
        reduce_op: the operator of the reduction, ``nl.add``.
        reduce_res: the tile of shape (P, 1) that receives the sums; None leaves them in the registers.
        bias: a number (not on trn1) or a (P, 1) tile.
        scale: a number or a (P, 1) float32 tile.
    """
    _scaled_activation(call.core, dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd.reset_reduce)


# The documented combinations of op0 and op1 of ``activate2``.
_STEP_PAIRS = (
    ("multiply", "add"),
    ("multiply", "subtract"),
    ("multiply", BYPASS),
    ("add", BYPASS),
    ("subtract", BYPASS),
    (BYPASS, BYPASS),
)
_REDUCTIONS = ("add", "maximum", "minimum", "abs_max", "abs_min")


def _steps(*arguments: tuple[str, Any, Any, bool]) -> list[_Step]:
    """Return the steps of ``activate2``, without those whose operator is ``nl.bypass``.

    Each argument describes a step: its number (0 or 1), operator, operand, and whether the operands are exchanged.
    """
    keys = tuple(operator_key(f"op{number}", op) for number, op, _, _ in arguments)
    if keys not in _STEP_PAIRS:
        allowed = ", ".join(f"(nl.{first}, nl.{second})" for first, second in _STEP_PAIRS)
        got = ", ".join(f"nl.{key}" for key in keys)
        raise NkiValidationError(f"(op0, op1) must be one of {allowed}; got ({got})")
    first, second = (imm for _, _, imm, _ in arguments)
    if isinstance(first, NkiTensor) and isinstance(second, NkiTensor) and first.dtype != second.dtype:
        raise NkiValidationError(f"tensors imm0 and imm1 must have the same type, got {first} and {second}")
    steps = []
    for key, (number, op, imm, is_reversed) in zip(keys, arguments, strict=True):
        if key != BYPASS:
            steps.append(_Step(key, imm, is_reversed))
        elif is_reversed:
            raise NkiValidationError(f"reverse{number}=True needs an operator to reverse, got op{number}={op!r}")
    return steps


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        vector("imm0", "data", accepts_scalar=True),
        vector("imm1", "data", accepts_scalar=True),
        vector("relu_param", "data", accepts_scalar=True),
        vector("reduce_res", "data", is_output=True, is_optional=True),
    ),
    on=_ACTIVATION_ENGINES,
    since=nc_version.gen4,
    engine_rule=_activation_engine_rule,
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

    ``imm0``, ``imm1`` and ``relu_param``, the slope of ``nl.prelu``, are numbers or (P, 1) tiles. The operator
    ``nl.bypass`` leaves the data unchanged; with ``reverse0`` or ``reverse1`` the operands are exchanged, ``imm <op>
    data``. ``reduce_cmd`` and ``reduce_res`` work as in :func:`nisa.activation`; a reset sets the registers to the
    identity of ``reduce_op``. The instruction needs trn3 or newer. It also runs on GpSimd, without the reduction.
    """
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    key = _activation_key(op)
    steps = _steps(("0", op0, imm0, reverse0), ("1", op1, imm1, reverse1))
    if key not in PARAMETRIC and (isinstance(relu_param, NkiTensor) or relu_param != 0.0):
        raise NkiValidationError(f"op={op!r} has no parameter: relu_param must be 0.0, got {relu_param!r}")
    accumulation = ScalarAccumulation(call.core, data, reduce_op, reduce_cmd, _REDUCTIONS, reduce_res)
    _apply_function(call.core, dst, key, data, steps, accumulation, relu_param)
