# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions of the Vector engine for copies, constants, operators and reductions, without accumulator registers.

They are :func:`tensor_copy`, :func:`memset`, :func:`tensor_tensor`, :func:`tensor_scalar`, :func:`tensor_reduce` and
:func:`reciprocal`; some also run on the Scalar or GpSimd engine. Source: docstrings in ``nki/api/nki/isa/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...hardware.generations import Generation
from ...isa.checks import no_cast_of_packed, not_both_in_psum, same_partitions, same_tile_size
from ...isa.definition import Operand, output, vector
from ...isa.operators import operator_key
from ...machine.core import Core
from ...machine.issue import Call, instruction
from ...numerics.casts import FLOAT32, store_integer
from ...numerics.operators import ARITHMETIC, ARITHMETIC_REDUCTIONS, BITWISE, BITWISE_REDUCTIONS, is_bitwise, row_maxima
from ...tensors.tensor import NkiTensor
from ...terms.dtypes import MOVABLE, int32, uint32
from ...terms.enums import Engine, MemoryRegion, nc_version
from ...terms.errors import NkiValidationError
from ...timing import costs
from ..actions import act, copy_elements, fill
from ..rowwise import Float32s, Reduce, compute, reduce_rows
from .scalar_operand import ScalarOperator, require_bit_patterns


def _tensor_copy_rule(engine: Engine, generation: Generation, _: Mapping[str, Any]) -> None:
    if engine is Engine.scalar and generation.version is nc_version.gen2:
        raise NkiValidationError("the Scalar engine has no tensor_copy on trn1; use nisa.activation with op=nl.copy")


@instruction(
    operands=(output("dst", dtypes=MOVABLE), Operand("src", dtypes=MOVABLE)),
    on=(Engine.vector, Engine.scalar, Engine.gpsimd),
    engine_rule=_tensor_copy_rule,
    cost=costs.copied("dst", "src"),
)
def tensor_copy(call: Call, dst: NkiTensor, src: NkiTensor, engine: Engine = Engine.unknown) -> None:
    """Copy ``src`` to ``dst`` on chip.

    Equal types are copied bit by bit; different types are cast through float32. Packed types cannot be cast. The
    default engine is Vector. The Scalar engine has no ``tensor_copy`` on trn1; from trn2 on it copies bits like the
    other engines (trainium2_arch.rst, Scalar Engine).
    """
    same_tile_size({"dst": dst, "src": src}, "dst", "src")
    if dst.dtype == src.dtype:
        act(call.core, copy_elements, writes=(dst,), reads=(src,))
        return
    no_cast_of_packed(dst, src)
    compute(call.core, dst, (src,), lambda tiles, _, values: np.copyto(values, tiles[0]))


NkiTensor.assign_by(tensor_copy)


@instruction(
    operands=(output("dst", dtypes=MOVABLE),),
    on=(Engine.vector, Engine.gpsimd),
    cost=costs.filled,
)
def memset(call: Call, dst: NkiTensor, value: Any, engine: Engine = Engine.unknown) -> None:
    """Fill ``dst`` with the compile-time number ``value``, which must be 0 for a packed type."""
    fill(call.core, dst, value)


_INTEGER_TYPES = frozenset({int32, uint32})
# Operators whose 32-bit result is the wrapped wide result. A magnitude is not: the lowest int32 has one of 33 bits.
_CLOSED_OPERATORS = frozenset(ARITHMETIC) - {"power", "abs_max", "abs_min"}


def _are_integers(*tiles: NkiTensor) -> bool:
    # With these types GpSimd computes exactly.
    return _INTEGER_TYPES.issuperset([tile.dtype for tile in tiles])


def _compute_integers(core: Core, key: str, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor) -> None:
    # Exact, and wrapped to 32 bits.
    function, dtype = ARITHMETIC[key], dst.dtype
    is_closed = dtype == data1.dtype == data2.dtype and key in _CLOSED_OPERATORS

    def combine(into: npt.NDArray[Any], first: npt.NDArray[Any], second: npt.NDArray[Any]) -> None:
        left, right = first.reshape(into.shape), second.reshape(into.shape)
        if is_closed:
            function(left, right, into)
            return
        exact = np.empty(into.shape, np.int64)
        function(left.astype(np.int64), right.astype(np.int64), exact)
        store_integer(into, exact, dtype)

    act(core, combine, writes=(dst,), reads=(data1, data2))


def _tensor_tensor_engine(values: dict[str, Any]) -> Engine:
    tiles = [values[name] for name in ("dst", "data1", "data2")]
    key = operator_key("op", values["op"])
    if key == "power":
        return Engine.gpsimd
    is_native = _are_integers(*tiles) and all(tile.buffer is MemoryRegion.sbuf for tile in tiles)
    return Engine.gpsimd if is_native and key in ARITHMETIC else Engine.vector


def _tensor_tensor_rule(engine: Engine, _: Generation, values: Mapping[str, Any]) -> None:
    if engine is not Engine.gpsimd and operator_key("op", values["op"]) == "power":
        raise NkiValidationError(f"op=nl.power runs on the GpSimd engine, got engine=nki.isa.engine.{engine.name}")


@instruction(
    operands=(output("dst"), Operand("data1"), Operand("data2")),
    on=(Engine.vector, Engine.gpsimd),
    choose_engine=_tensor_tensor_engine,
    engine_rule=_tensor_tensor_rule,
    cost=costs.of_two_tiles("data1", "data2"),
)
def tensor_tensor(
    call: Call, dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Any, engine: Engine = Engine.unknown
) -> None:
    """Compute ``dst = data1 <op> data2``, element by element.

    Bit-wise operators work on integer bit patterns. Arithmetic is float32, with one exception: if all three tiles are
    int32 or uint32, GpSimd is the default engine and computes in exact 32-bit integer arithmetic.
    """
    tiles = {"dst": dst, "data1": data1, "data2": data2}
    same_tile_size(tiles, "dst", "data1", "data2")
    not_both_in_psum(tiles, "data1", "data2")
    key = operator_key("op", op)
    if key in BITWISE:
        require_bit_patterns(tiles)
        function = BITWISE[key]

        def combine(into: npt.NDArray[Any], first: npt.NDArray[Any], second: npt.NDArray[Any]) -> None:
            bits = np.empty(into.shape, first.dtype)
            function(first.reshape(into.shape), second.reshape(into.shape).astype(bits.dtype), bits)
            np.copyto(into, bits, casting="unsafe")

        act(call.core, combine, writes=(dst,), reads=(data1, data2))
        return
    if key not in ARITHMETIC:
        raise NkiValidationError(f"op={op!r} is no binary operator of tensor_tensor")
    if call.engine is Engine.gpsimd and _are_integers(dst, data1, data2):
        _compute_integers(call.core, key, dst, data1, data2)
        return
    arithmetic = ARITHMETIC[key]
    compute(call.core, dst, (data1, data2), lambda tiles, _, values: arithmetic(tiles[0], tiles[1], values))


def _tensor_scalar_engine(values: dict[str, Any]) -> Engine:
    keys = getattr(values["op0"], "key", None), getattr(values["op1"], "key", None)
    return Engine.gpsimd if "rsqrt" in keys else Engine.vector


_SCALAR_ENGINE_PAIRS = frozenset({("multiply", "add"), ("multiply", None), ("add", None)})


def _tensor_scalar_rule(engine: Engine, _: Generation, values: Mapping[str, Any]) -> None:
    op0, op1 = values["op0"], values["op1"]
    keys = operator_key("op0", op0), None if op1 is None else operator_key("op1", op1)
    if is_bitwise(keys[0]) and engine is not Engine.vector:
        raise NkiValidationError(
            f"bit-wise operators run on the Vector engine, got engine=nki.isa.engine.{engine.name}"
        )
    if engine is Engine.scalar and keys not in _SCALAR_ENGINE_PAIRS:
        got = f"op0=nl.{keys[0]}" + (f", op1=nl.{keys[1]}" if keys[1] else "")
        raise NkiValidationError(f"the Scalar engine runs multiply then add, multiply alone or add alone, got {got}")
    if engine is Engine.gpsimd and "rsqrt" not in keys:
        raise NkiValidationError("engine=nki.isa.engine.gpsimd is for op nl.rsqrt only")
    if engine is not Engine.gpsimd and "rsqrt" in keys:
        raise NkiValidationError(f"nl.rsqrt runs on the GpSimd engine, got engine=nki.isa.engine.{engine.name}")


def _tensor_scalar_bits(core: Core, dst: NkiTensor, data: NkiTensor, steps: list[ScalarOperator]) -> None:
    tiles = {"dst": dst, "data": data}
    operands = {f"operand{i}": step.operand for i, step in enumerate(steps) if isinstance(step.operand, NkiTensor)}
    require_bit_patterns(tiles | operands)
    for step in steps:
        step.check_number(data.dtype)

    def apply(into: npt.NDArray[Any], elements: npt.NDArray[Any], *columns: npt.NDArray[Any]) -> None:
        value, left = elements.reshape(into.shape), iter(columns)
        for step in steps:
            out = np.empty(into.shape, elements.dtype)
            step.apply_bits(value, next(left) if isinstance(step.operand, NkiTensor) else step.operand, out)
            value = out
        np.copyto(into, value, casting="unsafe")

    act(core, apply, writes=(dst,), reads=(data, *operands.values()))


@instruction(
    operands=(
        output("dst"),
        Operand("data"),
        vector("operand0", "data", accepts_scalar=True, is_optional=True),
        vector("operand1", "data", accepts_scalar=True, is_optional=True),
    ),
    on=(Engine.vector, Engine.scalar, Engine.gpsimd),
    choose_engine=_tensor_scalar_engine,
    engine_rule=_tensor_scalar_rule,
    cost=costs.copied("dst", "data"),
)
def tensor_scalar(
    call: Call,
    dst: NkiTensor,
    data: NkiTensor,
    op0: Any,
    operand0: Any,
    reverse0: bool = False,
    op1: Any = None,
    operand1: Any = None,
    reverse1: bool = False,
    engine: Engine = Engine.unknown,
) -> None:
    """Compute ``dst = (data <op0> operand0) <op1> operand1``, where the operands are numbers or (P, 1) tiles.

    Arithmetic is float32 with float32 operands; bit-wise operators work on integers, on the Vector engine. Both
    operators are arithmetic, or both bit-wise. The Scalar engine runs multiply-add, multiply and add only; GpSimd runs
    rsqrt only.
    """
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    steps = [ScalarOperator("0", op0, operand0, reverse0)]
    if op1 is not None:
        steps.append(ScalarOperator("1", op1, operand1, reverse1))
    elif operand1 is not None or reverse1:
        raise NkiValidationError("operand1 and reverse1 need op1")
    if steps[-1].is_bitwise != steps[0].is_bitwise:
        raise NkiValidationError(f"op0={op0!r} and op1={op1!r} must both be bit-wise or both be arithmetic")
    if steps[0].is_bitwise:
        _tensor_scalar_bits(call.core, dst, data, steps)
        return
    for number, step in enumerate(steps):
        step.require_float32_operand(f"operand{number}")

    def apply(tiles: list[Float32s], scalars: list[Any], values: Float32s) -> None:
        (loaded,) = tiles
        for step, scalar in zip(steps, scalars, strict=True):
            step.apply_float(loaded, scalar, values)
            loaded = values

    compute(call.core, dst, (data,), apply, columns=[step.scalar for step in steps])


def _first_reduced_axis(data: NkiTensor, axis: Any) -> int:
    if type(axis) is int and 1 <= axis == len(data.shape) - 1:  # most are
        return axis
    axes = list(axis) if isinstance(axis, tuple | list) else [axis]
    if not all(isinstance(item, int | np.integer) for item in axes):
        raise NkiValidationError(f"axis must be an integer or a tuple of integers, got {axis!r}")
    normal = sorted(item + data.ndim if item < 0 else item for item in axes)
    if not normal or normal != list(range(data.ndim - len(normal), data.ndim)) or normal[0] < 1:
        raise NkiValidationError(
            f"axis must name the last free dimensions of {data}, ending with {data.ndim - 1}, and not 0; got {axis!r}"
        )
    return normal[0]


def _check_reduced_shape(dst: NkiTensor, data: NkiTensor, kept: tuple[int, ...], keepdims: bool) -> None:
    expected = kept + (1,) * (data.ndim - len(kept))
    if keepdims and dst.shape != expected:
        raise NkiValidationError(f"keepdims=True needs dst of shape {list(expected)}, got {dst}")
    if dst.free_size != prod(kept[1:]):
        raise NkiValidationError(f"operand 'dst' must have {prod(kept[1:])} elements per partition, got {dst}")


def _row_reduction(key: str, results: int, inner: int, negate: bool) -> Reduce:
    """Return a function that reduces each row to ``results`` elements; ``inner`` adjacent elements of the row give one
    result.
    """
    reduce, identity = ARITHMETIC_REDUCTIONS[key].ufunc.reduce, ARITHMETIC_REDUCTIONS[key].identity

    def apply(rows: npt.NDArray[Any], into: Float32s) -> None:
        if not rows.size:
            into.fill(identity)
        elif results > 1:
            reduce(rows.reshape(-1, results, inner), axis=2, out=into)
        # The reduction along the second of two axes is several times as fast as that along the third of three.
        elif rows.dtype == FLOAT32:
            reduce(rows, axis=1, out=into[:, 0])
        else:
            into[:, 0] = row_maxima(rows)
        if negate:
            np.negative(into, out=into)

    return apply


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.reduced,
)
def tensor_reduce(
    call: Call, dst: NkiTensor, op: Any, data: NkiTensor, axis: Any, negate: bool = False, keepdims: bool = False
) -> None:
    """Reduce the last free dimensions of ``data`` in float32 arithmetic, or bit-wise on integers.

    ``negate`` multiplies the result by -1. With ``keepdims``, ``dst`` has the shape of ``data`` with size 1 for reduced
    dimensions; otherwise ``dst`` may have any shape with the right number of elements per partition.
    """
    same_partitions({"dst": dst, "data": data}, "dst", "data")
    first = _first_reduced_axis(data, axis)
    kept = data.shape[:first]
    _check_reduced_shape(dst, data, kept, keepdims)
    key = operator_key("op", op)
    if key in BITWISE_REDUCTIONS:
        if negate:
            raise NkiValidationError("negate needs an arithmetic operator")
        require_bit_patterns({"dst": dst, "data": data})
        columns = prod(data.shape[first:])
        reduce_bits = BITWISE_REDUCTIONS[key].reduce

        def reduce_last(into: npt.NDArray[Any], elements: npt.NDArray[Any]) -> None:
            flat = np.ascontiguousarray(elements).reshape(*kept, columns)
            into[...] = reduce_bits(flat, axis=-1).reshape(into.shape)

        act(call.core, reduce_last, writes=(dst,), reads=(data,))
        return
    if key not in ARITHMETIC_REDUCTIONS:
        raise NkiValidationError(f"op={op!r} is no legal reduction operator")
    is_row_maximum = dst.free_size == 1 and key == "maximum"
    reduce = _row_reduction(key, dst.free_size, prod(data.shape[first:]), negate)
    reduce_rows(call.core, dst, data, reduce, reads_bfloat16=is_row_maximum)


@instruction(
    operands=(output("dst"), Operand("data")),
    on=(Engine.vector,),
    cost=costs.inverted,
)
def reciprocal(call: Call, dst: NkiTensor, data: NkiTensor) -> None:
    """Compute ``dst = 1 / data`` in float32."""
    same_tile_size({"dst": dst, "data": data}, "dst", "data")
    one = np.float32(1.0)
    compute(call.core, dst, (data,), lambda tiles, _, values: np.divide(one, tiles[0], out=values))
