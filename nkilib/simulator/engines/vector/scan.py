# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Instructions of the Vector engine in which every element of a partition depends on the previous element.

They are :func:`tensor_tensor_scan` and :func:`tensor_scalar_cumulative`. Both compute in float32 on a transposed copy
of their inputs, so that a step processes one element of all partitions.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...isa.checks import not_both_in_psum, same_tile_size
from ...isa.definition import Operand, output, vector
from ...isa.operators import operator_key
from ...machine.issue import Call, instruction
from ...numerics.casts import store_float
from ...numerics.operators import ARITHMETIC, Binary
from ...tensors.tensor import NkiTensor
from ...terms import dtypes as dt
from ...terms.enums import Engine
from ...terms.enums import reduce_cmd as commands
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..accumulators import VectorAccumulation
from ..actions import act

Elements = npt.NDArray[Any]
Float32s = npt.NDArray[np.float32]

_FLOAT32 = frozenset({dt.float32})
# BF16, FP16, FP32, FP8, UINT8, UINT16, INT8, INT16.
_CUMULATIVE = (dt.FLOATS - {dt.tfloat32}) | {dt.uint8, dt.uint16, dt.int8, dt.int16}
_CUMULATIVE_OPERATORS = ("add", "subtract", "multiply", "maximum", "minimum")


def _binary(parameter: str, op: Any, is_reversed: bool) -> Binary:
    key = operator_key(parameter, op)
    if key not in ARITHMETIC:
        raise NkiValidationError(f"{parameter} must be a binary arithmetic operator such as nl.add, got {op!r}")
    function = ARITHMETIC[key]
    return (lambda x, y, out: function(y, x, out)) if is_reversed else function


def _vector(operand: Any) -> Float32s:
    values: Float32s = np.array(operand, np.float32).reshape(-1)
    return values


def _steps(elements: Elements) -> Float32s:
    """Return a transposed float32 copy of a tile's elements: row i has element i of each partition."""
    rows = elements if elements.ndim == 2 else elements.reshape(elements.shape[0], prod(elements.shape[1:]))
    return rows.T.astype(np.float32, order="C")


@instruction(
    operands=(output("dst"), Operand("data0"), Operand("data1"), vector("initial", "data0", accepts_scalar=True)),
    on=(Engine.vector,),
    cost=costs.streamed("data0", cycles=2.0),
)
def tensor_tensor_scan(
    call: Call,
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: Any,
    op0: Any,
    op1: Any,
    reverse0: bool = False,
    reverse1: bool = False,
) -> None:
    """Compute ``result[i] = (data0[i] <op0> result[i - 1]) <op1> data1[i]`` along each partition.

    ``initial``, a number or a (P, 1) tile, is ``result[-1]``. Results are float32, and are cast only when they are
    stored in ``dst``. ``reverse0`` and ``reverse1`` exchange the operands of an operator.
    """
    tiles = {"dst": dst, "data0": data0, "data1": data1}
    same_tile_size(tiles, "dst", "data0", "data1")
    not_both_in_psum(tiles, "data0", "data1")
    first, second = _binary("op0", op0, reverse0), _binary("op1", op1, reverse1)
    start = None if isinstance(initial, NkiTensor) else _vector(initial)
    dtype = dst.dtype

    def scan(into: Elements, elements: Elements, operands: Elements, *starts: Elements) -> None:
        left, right = _steps(elements), _steps(operands)
        state = _vector(starts[0]) if start is None else start
        for values, others in zip(left, right, strict=True):
            first(values, state, values)
            second(values, others, values)
            state = values
        store_float(into, left.T, dtype)

    act(call.core, scan, writes=(dst,), reads=(data0, data1, initial) if start is None else (data0, data1))


@instruction(
    operands=(
        output("dst", dtypes=_CUMULATIVE),
        Operand("src", dtypes=_CUMULATIVE),
        vector("imm0", "src", accepts_scalar=True, dtypes=_FLOAT32),
        vector("imm1", "src", accepts_scalar=True, is_optional=True, dtypes=_FLOAT32),
    ),
    on=(Engine.vector,),
    cost=costs.assumed("src"),
)
def tensor_scalar_cumulative(
    call: Call,
    dst: NkiTensor,
    src: NkiTensor,
    op0: Any,
    op1: Any,
    imm0: Any,
    imm1: Any = None,
    reduce_cmd: commands = commands.reset_reduce,
) -> None:
    """Compute ``result[i] = (src[i] <op0> imm0) <op1> result[i - 1]`` along each partition, in float32.

    ``reduce_cmd`` selects the initial value ``result[-1]``: the identity of ``op1`` (0 for subtract) with
    ``reset_reduce``, the accumulator registers with ``reduce``, and ``imm1`` with ``load_reduce``. The registers hold
    the last result afterwards.
    """
    same_tile_size({"dst": dst, "src": src}, "dst", "src")
    first = _binary("op0", op0, False)
    key = operator_key("op1", op1)
    if key not in _CUMULATIVE_OPERATORS:
        raise NkiValidationError(f"op1 must be nl.add, nl.subtract, nl.multiply, nl.max or nl.min, got {op1!r}")
    allowed = (commands.reset_reduce, commands.reduce, commands.load_reduce)
    reduction = VectorAccumulation(call.core, src, reduce_cmd, key, allowed, imm1)
    if imm1 is None and reduce_cmd is commands.load_reduce:
        raise NkiValidationError("reduce_cmd=load_reduce needs imm1, with which the accumulation starts")
    if dst.storage.is_abstract:
        reduction.pass_over(slice(0, src.shape[0]))
        return
    steps = _steps(src.array)
    first(steps, _vector(imm0.array if isinstance(imm0, NkiTensor) else imm0), steps)
    reduction.begin()
    state = reduction.start(slice(0, src.shape[0]))
    for values in steps:
        ARITHMETIC[key](values, state, values)
        state = values
    reduction.leave(state)
    store_float(dst.array, steps.T, dst.dtype)
