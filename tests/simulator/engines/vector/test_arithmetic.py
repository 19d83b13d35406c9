# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`memset`, `tensor_copy`, `reciprocal`, operators with a scalar operand, integers on GpSimd, and blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl
from nkilib.simulator.isa.operators import OPERATORS
from nkilib.simulator.numerics.operators import ARITHMETIC

from ...kernels import WIDE, Result, Tile, engine_of, execute, load, normal, run, store, tile
from ...made import Hbm, Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import LOAD_FIRST, must, out_of_reach, same_elements, same_partitions

ENGINE = nisa.engine
PSUM = nl.psum


BFLOAT16, FLOAT8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (nl.float32, 1 / 3, np.float32(0.333333343267440796)),
        (nl.float32, 16777217, np.float32(16777216)),  # 2^24 + 1 has 25 significant bits, the tie goes to even
        (nl.tfloat32, 1 + 2**-10 + 2**-11, np.float32(1 + 2**-9)),  # 10 mantissa bits, the tie goes to even
        (nl.bfloat16, 257, BFLOAT16(256)),  # 8 significant bits, the tie goes to even
        (nl.bfloat16, 259, BFLOAT16(260)),
        (nl.float16, -0.1, np.float16(-0.0999755859375)),
        (nl.float8_e4m3, 1.1875, FLOAT8(1.25)),  # 4 significant bits, the tie goes to even
        (nl.float8_e4m3fn, 1.5, ml_dtypes.float8_e4m3fn(1.5)),
        (nl.float8_e5m2, -3.0, ml_dtypes.float8_e5m2(-3.0)),
        (nl.float8_e8m0fnu, 8.0, ml_dtypes.float8_e8m0fnu(8.0)),
        (nl.int8, -128, np.int8(-128)),
        (nl.int16, np.int64(-32768), np.int16(-32768)),
        (nl.int32, 16777217, np.int32(16777217)),  # an integer reaches an integer type exactly
        (nl.uint8, 255, np.uint8(255)),
        (nl.uint16, 65535, np.uint16(65535)),
        (nl.uint32, 4294967295, np.uint32(4294967295)),
        (nl.bool_, True, np.uint8(1)),
        (nl.float32, float("-inf"), np.float32(-np.inf)),
    ],
)
def test_memset_fills_every_type(dtype: Any, value: Any, expected: Any) -> None:
    filled = run(lambda dst: nisa.memset(dst, value), [], Result((5, 2, 3), dtype))
    assert filled.dtype == expected.dtype
    assert filled.tolist() == np.full((5, 2, 3), expected).tolist()


def test_memset_fills_a_strided_part_only() -> None:
    def body(dst: Any) -> None:
        nisa.memset(dst, 0)
        nisa.memset(dst[:, 1::2], 7)

    assert run(body, [], Result((2, 4))).tolist() == [[0, 7, 0, 7]] * 2


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_memset_reaches_both_on_chip_memories(buffer: Any) -> None:
    assert run(lambda dst: nisa.memset(dst, 3), [], Result((2, 2), nl.float32, buffer)).tolist() == [[3, 3], [3, 3]]


RANK_6, RANK_5 = (2, 1, 1, 1, 1, 2), (2, 1, 1, 1, 2)
TOO_MANY = "at most 4 free dimensions, got tensor [2, 1, 1, 1, 1, 2] float32 in sbuf"


@rules(
    legal(nisa.memset, dst=Sbuf(*RANK_5, value=None), value=0),
    broken("memset", dst=Sbuf(*RANK_6, value=None)).says(f"operand 'dst': {TOO_MANY}"),
    legal(nisa.reciprocal, dst=Sbuf(2, 2), data=Sbuf(2, 2, value=1).reshape(RANK_5)),
    broken("reciprocal of", data=Sbuf(2, 2, value=1).reshape(RANK_6)).says(f"operand 'data': {TOO_MANY}"),
    legal(nisa.reciprocal, dst=Sbuf(*RANK_5, value=None), data=Sbuf(2, 2, value=1)),
    broken("reciprocal to", dst=Sbuf(*RANK_6, value=None)).says(f"operand 'dst': {TOO_MANY}"),
)
def test_at_most_five_dimensions(rule: Rule) -> None:
    check_rule(rule)


@rules(
    legal(nisa.memset, dst=Sbuf(2, 2, value=None), value=0, engine=ENGINE.gpsimd),
    broken("engine", engine=ENGINE.scalar).says(
        "engine must be one of nki.isa.engine.vector, nki.isa.engine.gpsimd, got nki.isa.engine.scalar"
    ),
    broken("GpSimd and PSUM", dst=Psum(2, 2, value=None)).says(out_of_reach("dst")).fixed(engine=ENGINE.vector),
    legal(nisa.memset, dst=Sbuf(2, 2, dtype=nl.int8, value=None), value=127),
    broken("range", value=128).says("value must be in [-128, 127] for int8, got 128"),
    legal(nisa.memset, dst=Sbuf(2, 2, dtype=nl.int32, value=None), value=3.0),
    broken("a float for an integer type", value=3.5).says("value must be an integer for int32, got 3.5"),
    *(
        broken(f"{value} in an integer tile", value=value)
        .says(f"value must be an integer for int32, got {value}")
        .fixed(dst=Sbuf(2, 2, dtype=nl.float16, value=None))
        for value in (float("nan"), float("inf"), float("-inf"))
    ),
    legal(nisa.memset, dst=Sbuf(2, 2, dtype=nl.bool_, value=None), value=True),
    broken("a float for a boolean type", value=0.5).says("value must be an integer for bool, got 0.5"),
    legal(nisa.memset, dst=Sbuf(2, 2, value=None), value=0),
    broken("constant", value="zero").says("value must be a compile-time number, got 'zero'").fixed(value=np.float32(0)),
    broken("on chip", dst=Hbm(2, 2)).says(must("dst", "be in psum or sbuf")),
)
def test_memset_rules(rule: Rule) -> None:
    check_rule(rule)


COPY_ENGINES = [ENGINE.unknown, ENGINE.vector, ENGINE.scalar, ENGINE.gpsimd]


@pytest.mark.parametrize("engine", COPY_ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    "values",
    [
        np.array([[16777217, -16777217, 2**31 - 1, -(2**31)]], np.int32),
        np.array([[0x7FC12345, 0xFF800001, 0x00000001, 0x80000000]], np.uint32).view(np.float32),
        np.array([[0x7FC1, 0xFF81, 0x0001, 0x8000]], np.uint16).view(ml_dtypes.bfloat16),
    ],
    ids=["int32", "float32", "bfloat16"],
)
def test_tensor_copy_of_equal_types_keeps_every_bit(values: Any, engine: Any) -> None:
    """NaN payloads, subnormal numbers and integers that float32 cannot hold."""
    dtype = {"int32": nl.int32, "float32": nl.float32, "bfloat16": nl.bfloat16}[values.dtype.name]
    copied = run(lambda dst, src: nisa.tensor_copy(dst, src, engine=engine), [values], Result((1, 4), dtype))
    assert copied.tobytes() == values.tobytes()


@pytest.mark.parametrize("engine", COPY_ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        (np.array([[16777217, 16777219]], np.int32), nl.float32, [[16777216, 16777220]]),
        (np.array([[16777217, -1]], np.int32), nl.uint32, [[16777216, 0]]),
        (np.array([[0.5, 1.5, -2.5, 126.6, 1e9, -1e9]], np.float32), nl.int8, [[0, 2, -2, 127, 127, -128]]),
        (np.array([[1 + 2**-9, 1 + 3 * 2**-8]], np.float32), nl.bfloat16, [[1, 1 + 2**-6]]),
        (np.array([[1, 200]], np.uint8), nl.float16, [[1, 200]]),
    ],
    ids=["int32-float32", "int32-uint32", "float32-int8", "float32-bfloat16", "uint8-float16"],
)
def test_tensor_copy_of_unlike_types_goes_through_float32(values: Any, dtype: Any, expected: Any, engine: Any) -> None:
    copied = run(lambda dst, src: nisa.tensor_copy(dst, src, engine=engine), [values], Result(values.shape, dtype))
    assert copied.tolist() == expected


def test_tensor_copy_takes_any_shapes_of_equally_many_elements_a_partition() -> None:
    values = normal(3, 2, 6)
    copied = run(nisa.tensor_copy, [values], Result((3, 4, 3)))
    assert copied.tolist() == values.reshape(3, 4, 3).tolist()


def test_tensor_copy_reads_all_of_an_overlapping_source_before_it_writes() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst, src)
        nisa.tensor_copy(dst[:, 1:5], dst[:, 0:4])

    values = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert run(body, [values], Result((2, 5))).tolist() == [[0, 0, 1, 2, 3], [5, 5, 6, 7, 8]]


def test_tensor_copy_runs_on_vector_by_default() -> None:
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2))) == "vector"
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), engine=ENGINE.scalar)) == "scalar"
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), engine=ENGINE.gpsimd)) == "gpsimd"


@rules(
    legal(nisa.tensor_copy, dst=Sbuf(4, 3), src=Sbuf(4, 3)),
    broken("partitions", dst=Sbuf(3, 4)).says(same_partitions("dst", "src")),
    broken("elements", src=Sbuf(4, 4)).says(same_elements("dst", "src")).fixed(dst=Sbuf(4, 4)),
    legal(nisa.tensor_copy, dst=Sbuf(4, 4), src=Psum(4, 4), engine=ENGINE.scalar),
    broken("GpSimd and PSUM source", engine=ENGINE.gpsimd).says(out_of_reach("src")),
    legal(nisa.tensor_copy, dst=Psum(4, 4), src=Sbuf(4, 4), engine=ENGINE.vector),
    broken("GpSimd and PSUM result", engine=ENGINE.gpsimd).says(out_of_reach("dst")),
    legal(nisa.tensor_copy, dst=Sbuf(4, 4), src=Sbuf(4, 4)),
    broken("Scalar on trn1", on="trn1", engine=ENGINE.scalar)
    .says("the Scalar engine has no tensor_copy on trn1; use nisa.activation with op=nl.copy")
    .instead(lambda: nisa.activation(tile(4, 4), nl.copy, tile(4, 4))),
    broken("Tensor engine", engine=ENGINE.tensor)
    .says(
        "engine must be one of nki.isa.engine.vector, nki.isa.engine.scalar, nki.isa.engine.gpsimd, got "
        "nki.isa.engine.tensor"
    )
    .fixed(engine=ENGINE.unknown),
    broken("HBM", src=Hbm(4, 4))
    .says(must("src", "be in psum or sbuf", LOAD_FIRST))
    .instead(lambda: nisa.dma_copy(tile(4, 4), nl.zeros((4, 4), nl.float32, nl.private_hbm))),
)
def test_tensor_copy_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_reciprocal(buffer: Any) -> None:
    values = [[3.0, -0.7, 1e-30, 1e30, 4.0]]
    result = run(
        nisa.reciprocal, [Tile(np.array(values, np.float32), buffer=buffer)], Result((1, 5), nl.float32, buffer)
    )
    for x, got in zip(np.array(values, np.float32)[0], result[0], strict=True):
        assert abs(float(got) * float(x) - 1) <= 2**-24


def test_reciprocal_casts_in_and_out() -> None:
    """1/3 rounded to bfloat16 is 171 * 2^-9; 1/0 is infinity."""
    data = np.array([[3, 1, 0]], np.int32)
    result = run(nisa.reciprocal, [data], Result((1, 3), nl.bfloat16))
    assert result.tolist() == [[171 * 2.0**-9, 1, math.inf]]


@rules(
    legal(nisa.reciprocal, dst=Sbuf(2, 4), data=Sbuf(2, 2, 2, value=1)),
    broken("elements", dst=Sbuf(2, 3), data=Sbuf(2, 2, value=1)).says(same_elements("dst", "data")),
    legal(nisa.reciprocal, dst=Sbuf(4, 2)[0:2], data=Sbuf(2, 2, value=1)),
    broken("partitions", dst=Sbuf(4, 2)).says(same_partitions("dst", "data")),
)
def test_reciprocal_rules(rule: Rule) -> None:
    check_rule(rule)


def test_tiles_larger_than_a_block_of_rows() -> None:
    """Each row gets its own operand, and every row is written."""
    values, columns = normal(128, WIDE, seed=2), normal(128, 1, seed=3)

    def kernel_body(dst: Any, total: Any, data: Any, column: Any) -> None:
        nisa.tensor_scalar(dst, data, nl.multiply, column)
        nisa.tensor_reduce(total, nl.maximum, dst, 1)

    scaled, largest = run(kernel_body, [values, columns], Result((128, WIDE), nl.bfloat16), Result((128, 1)))
    exact = values.astype(np.float64) * columns.astype(np.float64)
    # bfloat16 rounding of the float32 product
    assert (np.abs(scaled.astype(np.float64) - exact) <= np.abs(exact) * (2**-8 + 2**-23)).all()
    assert largest[:, 0].tolist() == scaled.astype(np.float32).max(axis=1).tolist()


def test_views_that_are_not_dense() -> None:
    """Strided, permuted and broadcast views as sources, a strided one as destination."""

    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, 0)
        nisa.tensor_tensor(
            dst[:, ::2], data.permute((0, 2, 1)).reshape((2, 2, 2))[:, :, 0:1].broadcast(2, 2), data, nl.add
        )

    values = np.array([[[1, 2], [3, 4]], [[5, 6], [7, 8]]], np.float32)
    with pytest.raises(nisa.NkiValidationError):
        run(lambda dst, data: nisa.tensor_copy(dst, data.permute((0, 2, 1)).reshape((2, 4))), [values], Result((2, 4)))
    # the first column of the transpose, (1, 2), each twice, plus the values
    result = run(body, [values], Result((2, 8)))
    assert result.tolist() == [[2, 0, 3, 0, 5, 0, 6, 0], [10, 0, 11, 0, 13, 0, 14, 0]]


def test_loading_and_storing_in_a_kernel_of_ones_own() -> None:
    """The helpers that the tests stand on move data unchanged, through PSUM too."""
    values = normal(4, 6, seed=4)

    def body(dst: Any, inputs: Any) -> None:
        nisa.tensor_copy(dst, inputs)

    assert run(body, [Tile(values, buffer=PSUM)], Result((4, 6), nl.float32, PSUM)).tolist() == values.tolist()
    doubled = execute(lambda: store(load(nl.full((4, 6), 2.0, nl.float32, nl.private_hbm), (4, 6), nl.bfloat16)))
    assert doubled.dtype == ml_dtypes.bfloat16 and (doubled == 2).all()


# Every operator of the documentation's table with a scalar operand, as `tensor_scalar` applies it, both ways round.

VALUES = [-3.0, -1.0, 0.0, 0.5, 2.0, 7.0]
OPERANDS = [2.0, -1.0, 0.0, 3.0]


def _reference(value: bool) -> float:
    return 1.0 if value else 0.0


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "max": max,
    "min": min,
    "equal": lambda x, y: _reference(x == y),
    "not_equal": lambda x, y: _reference(x != y),
    "greater_equal": lambda x, y: _reference(x >= y),
    "greater": lambda x, y: _reference(x > y),
    "less_equal": lambda x, y: _reference(x <= y),
    "less": lambda x, y: _reference(x < y),
    "logical_and": lambda x, y: _reference(x != 0 and y != 0),
    "logical_or": lambda x, y: _reference(x != 0 or y != 0),
    "logical_xor": lambda x, y: _reference((x != 0) != (y != 0)),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
    "abs_min": lambda x, y: x if abs(x) < abs(y) else y,
}


@pytest.mark.parametrize("is_reversed", [False, True], ids=["data-operand", "operand-data"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_with_a_constant(name: str, is_reversed: bool) -> None:
    for operand in OPERANDS:
        result = run(
            lambda dst, data: nisa.tensor_scalar(dst, data, getattr(nl, name), operand, is_reversed),  # noqa: B023
            [np.array([VALUES], np.float32)],
            Result((1, len(VALUES))),
            target="trn3",
        )
        expected = [BINARY[name](operand, x) if is_reversed else BINARY[name](x, operand) for x in VALUES]
        assert result[0].tolist() == expected


@pytest.mark.parametrize("is_reversed", [False, True], ids=["data-operand", "operand-data"])
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators_with_a_vector(name: str, is_reversed: bool) -> None:
    result = run(
        lambda dst, data, column: nisa.tensor_scalar(dst, data, getattr(nl, name), column, is_reversed),
        [np.array([VALUES] * len(OPERANDS), np.float32), np.array(OPERANDS, np.float32).reshape(-1, 1)],
        Result((len(OPERANDS), len(VALUES))),
        target="trn3",
    )
    for operand, row in zip(OPERANDS, result.tolist(), strict=True):
        assert row == [BINARY[name](operand, x) if is_reversed else BINARY[name](x, operand) for x in VALUES]


@pytest.mark.parametrize(
    ("values", "operand", "is_reversed", "expected"),
    [
        ([0.0, 1.0, 3.0, -2.0], 3, False, [0, 1, 27, -8]),
        ([0.0, 1.0, 3.0, -2.0], 2, True, [1, 2, 8, 0.25]),
        ([4.0, 0.25, 9.0, 1.0], -0.5, False, [0.5, 2, 1 / 3, 1]),
        ([-8.0, 4.0, 0.0, 1.0], 0.5, False, [math.nan, 2, 0, 1]),
    ],
)
def test_power(values: list[float], operand: float, is_reversed: bool, expected: list[float]) -> None:
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.power, operand, is_reversed),
        [np.array([values], np.float32)],
        Result((1, 4)),
    )
    assert result[0].tolist() == pytest.approx(expected, rel=2**-22, nan_ok=True)


UNARY: dict[str, Callable[[float], float]] = {
    "abs": abs,
    "square": lambda x: x * x,
    "relu": lambda x: max(x, 0.0),
    "reciprocal": lambda x: 1.0 / x if x else math.inf,
    "rsqrt": lambda x: 1.0 / math.sqrt(x) if x > 0 else (math.inf if x == 0 else math.nan),
}


@pytest.mark.parametrize("unused", [None, 0, 0.0], ids=repr)
@pytest.mark.parametrize("name", UNARY)
def test_unary_operators(name: str, unused: Any) -> None:
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, getattr(nl, name), unused),
        [np.array([VALUES], np.float32)],
        Result((1, len(VALUES))),
    )
    assert result[0].tolist() == pytest.approx([UNARY[name](x) for x in VALUES], rel=2**-22, nan_ok=True)


@pytest.mark.parametrize("name", UNARY)
def test_unary_operators_as_the_second_step(name: str) -> None:
    values = [x + 4 for x in VALUES]  # all positive
    result = run(
        lambda dst, data: nisa.tensor_scalar(dst, data, nl.add, 4.0, op1=getattr(nl, name), operand1=None),
        [np.array([VALUES], np.float32)],
        Result((1, len(VALUES))),
    )
    assert result[0].tolist() == pytest.approx([UNARY[name](x) for x in values], rel=2**-22)


BITS: dict[str, Callable[[int, int], int]] = {
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "left_shift": lambda x, y: x << y,
    "right_shift": lambda x, y: x >> y,
}
INTEGERS = [0, 1, 3, 0b1010_0101, 0x7FFF, 0x8000, 0xFFFF]


@pytest.mark.parametrize("as_vector", [False, True], ids=["constant", "vector"])
@pytest.mark.parametrize("name", BITS)
def test_bitwise_operators_on_16_bits(name: str, as_vector: bool) -> None:
    """Python integers have no width: the result is cut to 16 bits. Results of signed types are bitwise identical."""
    operands = [5] if "shift" in name else [0, 0x0FF0, 0xFFFF]
    for operand in operands:
        expected = [BITS[name](x, operand) & 0xFFFF for x in INTEGERS]
        for dtype in (nl.uint16, nl.int16):
            numpy_type = np.dtype(str(dtype))
            data = np.array([INTEGERS], np.uint16).view(numpy_type)
            column = np.array([[operand]], np.uint16).view(numpy_type)
            result = run(
                lambda dst, data, column: nisa.tensor_scalar(
                    dst,
                    data,
                    getattr(nl, name),
                    column if as_vector else operand,  # noqa: B023
                ),
                [data, column],
                Result((1, len(INTEGERS)), dtype),
            )
            assert result.view(np.uint16)[0].tolist() == expected


def test_shifts_reversed() -> None:
    """`operand << data` and `operand >> data`."""
    data = np.array([[0, 1, 7]], np.uint8)
    for op, expected in ((nl.left_shift, [0x81, 0x02, 0x80]), (nl.right_shift, [0x81, 0x40, 0x01])):
        result = run(
            lambda dst, x: nisa.tensor_scalar(dst, x, op, 0x81, True),  # noqa: B023
            [data],
            Result((1, 3), nl.uint8),
        )
        assert result[0].tolist() == expected


@pytest.mark.parametrize("dtype", [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32])
def test_invert(dtype: Any) -> None:
    data = np.array([[0, 1, 100]], np.dtype(str(dtype)))
    result = run(lambda dst, x: nisa.tensor_scalar(dst, x, nl.invert, None), [data], Result((1, 3), dtype))
    width = 8 * data.itemsize
    assert [int(x) % 2**width for x in result[0]] == [2**width - 1, 2**width - 2, 2**width - 101]


INT32_TILE = Sbuf(2, 2, dtype=nl.int32)


@rules(
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.add, operand0=0),
    broken("activation function", op0=nl.exp)
    .says("op0=nl.exp is no operator of the Vector engine (see nl.add and the like)")
    .instead(lambda: nisa.activation(tile(2, 2), nl.exp, tile(2, 2))),
    broken("no operator", op0=np.add).says("op0 must be an operator such as nl.add, got <ufunc 'add'>"),
    broken("unary with an operand", op0=nl.abs, operand0=1.0)
    .says("op0=nl.abs takes one input: operand0 must be None or 0 and reverse0 False")
    .fixed(operand0=None),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.add, operand0=1, op1=nl.square),
    broken("unary with a vector", operand1=Sbuf(2, 1)).says(
        "op1=nl.square takes one input: operand1 must be None or 0 and reverse1 False"
    ),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.relu, operand0=0),
    broken("unary reversed", reverse0=True).says(
        "op0=nl.relu takes one input: operand0 must be None or 0 and reverse0 False"
    ),
    legal(nisa.tensor_scalar, dst=Sbuf(2, 2), data=Sbuf(2, 2), op0=nl.abs, operand0=None),
    broken("binary without an operand", op0=nl.add).says("op0=nl.add needs operand0").fixed(operand0=0),
    broken("second binary without an operand", op1=nl.power).says("op1=nl.power needs operand1").fixed(operand1=2),
    broken("bits of a float constant", dst=INT32_TILE, data=INT32_TILE, op0=nl.bitwise_and, operand0=2.5)
    .says("op0=nl.bitwise_and is bit-wise: operand0 must be an integer, got 2.5")
    .fixed(operand0=2),
    broken("abs_min before trn3", on="trn1", op0=nl.add, operand0=0, op1=nl.abs_min, operand1=1)
    .says("op1=nl.abs_min needs trn3; the target is trn1")
    .fixed(on="trn3"),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


# GpSimd's integers: what is computed in 32 bits is what more bits would give, wrapped.

EXTREMES = np.array([-(2**31), -(2**31) + 1, -70_000, -2, -1, 0, 1, 3, 70_000, 2**31 - 2, 2**31 - 1], np.int64)
LEFT, RIGHT = (side.reshape(1, -1) for side in np.meshgrid(EXTREMES, EXTREMES))
SINCE_TRN3 = {"abs_max", "abs_min"}


def computed(key: str, types: tuple[Any, Any, Any]) -> np.ndarray:
    """The bits that GpSimd leaves in a tile of the first type, of operands of the other two."""

    def kernel() -> None:
        dst, left, right = (tile(1, LEFT.size, dtype=dtype) for dtype in types)
        left.array[...], right.array[...] = LEFT.astype(left.array.dtype), RIGHT.astype(right.array.dtype)
        for operand in (left, right):
            operand.storage.written.is_full = True
        nisa.tensor_tensor(dst, left, right, OPERATORS[key], engine=nisa.engine.gpsimd)
        results.append(dst.array.view(np.uint32).copy())

    results: list[np.ndarray] = []
    execute(kernel)
    return results[0]


@pytest.mark.parametrize("types", [(nl.int32,) * 3, (nl.uint32,) * 3, (nl.int32, nl.int32, nl.uint32)], ids=str)
@pytest.mark.parametrize("key", sorted(set(ARITHMETIC) - SINCE_TRN3))
def test_integers_are_exact_and_wrap(key: str, types: tuple[Any, Any, Any]) -> None:
    left, right = (
        side.astype(dtype.numpy).astype(np.int64) for side, dtype in zip((LEFT, RIGHT), types[1:], strict=True)
    )
    exact = np.empty(left.shape, np.int64)
    ARITHMETIC[key](left, right, exact)
    assert np.array_equal(computed(key, types), exact.astype(np.uint32))
