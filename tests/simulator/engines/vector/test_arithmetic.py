"""`memset`, `tensor_copy`, `reciprocal`, and what holds for every instruction that works in blocks of rows."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import WIDE, Result, Rule, Tile, check_rule, engine_of, execute, load, normal, rules, run, store, tile

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
    Rule(
        "memset",
        lambda: nisa.memset(nl.ndarray(RANK_6, nl.float32), 0),
        f"nisa.memset: operand 'dst': {TOO_MANY}",
        lambda: nisa.memset(nl.ndarray(RANK_5, nl.float32), 0),
    ),
    Rule(
        "reciprocal of",
        lambda: nisa.reciprocal(tile(2, 2), nl.ones((2, 2), nl.float32).reshape(RANK_6)),
        f"nisa.reciprocal: operand 'data': {TOO_MANY}",
        lambda: nisa.reciprocal(tile(2, 2), nl.ones((2, 2), nl.float32).reshape(RANK_5)),
    ),
    Rule(
        "reciprocal to",
        lambda: nisa.reciprocal(nl.ndarray(RANK_6, nl.float32), nl.ones((2, 2), nl.float32)),
        f"nisa.reciprocal: operand 'dst': {TOO_MANY}",
        lambda: nisa.reciprocal(nl.ndarray(RANK_5, nl.float32), nl.ones((2, 2), nl.float32)),
    ),
)
def test_at_most_five_dimensions(rule: Rule) -> None:
    check_rule(rule)


@rules(
    Rule(
        "engine",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0, engine=ENGINE.scalar),
        "nisa.memset: engine must be one of nki.isa.engine.vector, nki.isa.engine.gpsimd, got nki.isa.engine.scalar",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), 0, engine=ENGINE.gpsimd),
    ),
    Rule(
        "GpSimd and PSUM",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32, PSUM), 0, engine=ENGINE.gpsimd),
        "nisa.memset: operand 'dst': the GpSimd engine cannot access psum, got tensor [2, 2] float32 in psum",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32, PSUM), 0, engine=ENGINE.vector),
    ),
    Rule(
        "range",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.int8), 128),
        "nisa.memset: value must be in [-128, 127] for int8, got 128",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.int8), 127),
    ),
    Rule(
        "a float for an integer type",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.int32), 3.5),
        "nisa.memset: value must be an integer for int32, got 3.5",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.int32), 3.0),
    ),
    *(
        Rule(
            f"{value} in an integer tile",
            lambda value=value: nisa.memset(nl.ndarray((2, 2), nl.int32), value),  # type: ignore[misc]
            f"nisa.memset: value must be an integer for int32, got {value}",
            lambda value=value: nisa.memset(nl.ndarray((2, 2), nl.float16), value),  # type: ignore[misc]
        )
        for value in (float("nan"), float("inf"), float("-inf"))
    ),
    Rule(
        "a float for a boolean type",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.bool_), 0.5),
        "nisa.memset: value must be an integer for bool, got 0.5",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.bool_), True),
    ),
    Rule(
        "constant",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), "zero"),
        "nisa.memset: value must be a compile-time number, got 'zero'",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32), np.float32(0)),
    ),
    Rule(
        "on chip",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32, nl.private_hbm), 0),
        "nisa.memset: operand 'dst' must be in psum or sbuf, got tensor [2, 2] float32 in private_hbm",
        lambda: nisa.memset(nl.ndarray((2, 2), nl.float32, nl.sbuf), 0),
    ),
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
    copied = run(lambda dst, src: nisa.tensor_copy(dst, src), [values], Result((3, 4, 3)))
    assert copied.tolist() == values.reshape(3, 4, 3).tolist()


def test_tensor_copy_reads_all_of_an_overlapping_source_before_it_writes() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst, src)
        nisa.tensor_copy(dst[:, 1:5], dst[:, 0:4])

    values = np.arange(10, dtype=np.float32).reshape(2, 5)
    assert run(body, [values], Result((2, 5))).tolist() == [[0, 0, 1, 2, 3], [5, 5, 6, 7, 8]]


def test_tensor_copy_runs_on_vector_unless_told() -> None:
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2))) == "vector"
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), engine=ENGINE.scalar)) == "scalar"
    assert engine_of(lambda: nisa.tensor_copy(tile(2, 2), tile(2, 2), engine=ENGINE.gpsimd)) == "gpsimd"


@rules(
    Rule(
        "partitions",
        lambda: nisa.tensor_copy(tile(3, 4), tile(4, 3)),
        "nisa.tensor_copy: operands 'dst' and 'src' must have the same number of partitions, got tensor [3, 4] float32 "
        "in sbuf and tensor [4, 3] float32 in sbuf",
        lambda: nisa.tensor_copy(tile(4, 3), tile(4, 3)),
    ),
    Rule(
        "elements",
        lambda: nisa.tensor_copy(tile(4, 3), tile(4, 4)),
        "nisa.tensor_copy: operands 'dst' and 'src' must have the same number of elements per partition, got "
        "tensor [4, 3] float32 in sbuf and tensor [4, 4] float32 in sbuf",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4)),
    ),
    Rule(
        "GpSimd and PSUM source",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4, buffer=PSUM), engine=ENGINE.gpsimd),
        "nisa.tensor_copy: operand 'src': the GpSimd engine cannot access psum, got tensor [4, 4] float32 in psum",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4, buffer=PSUM), engine=ENGINE.scalar),
    ),
    Rule(
        "GpSimd and PSUM result",
        lambda: nisa.tensor_copy(tile(4, 4, buffer=PSUM), tile(4, 4), engine=ENGINE.gpsimd),
        "nisa.tensor_copy: operand 'dst': the GpSimd engine cannot access psum, got tensor [4, 4] float32 in psum",
        lambda: nisa.tensor_copy(tile(4, 4, buffer=PSUM), tile(4, 4), engine=ENGINE.vector),
    ),
    Rule(
        "Scalar on trn1",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4), engine=ENGINE.scalar),
        "nisa.tensor_copy: the Scalar engine has no tensor_copy on trn1; use nisa.activation with op=nl.copy",
        lambda: nisa.activation(tile(4, 4), nl.copy, tile(4, 4)),
        target="trn1",
    ),
    Rule(
        "Tensor engine",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4), engine=ENGINE.tensor),
        "nisa.tensor_copy: engine must be one of nki.isa.engine.vector, nki.isa.engine.scalar, nki.isa.engine.gpsimd, "
        "got nki.isa.engine.tensor",
        lambda: nisa.tensor_copy(tile(4, 4), tile(4, 4), engine=ENGINE.unknown),
    ),
    Rule(
        "HBM",
        lambda: nisa.tensor_copy(tile(4, 4), nl.zeros((4, 4), nl.float32, nl.private_hbm)),
        "nisa.tensor_copy: operand 'src' must be in psum or sbuf, got tensor [4, 4] float32 in private_hbm"
        "; load it to sbuf first, with nisa.dma_copy",
        lambda: nisa.dma_copy(tile(4, 4), nl.zeros((4, 4), nl.float32, nl.private_hbm)),
    ),
)
def test_tensor_copy_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_reciprocal(buffer: Any) -> None:
    values = [[3.0, -0.7, 1e-30, 1e30, 4.0]]
    result = run(
        lambda dst, data: nisa.reciprocal(dst, data),
        [Tile(np.array(values, np.float32), buffer=buffer)],
        Result((1, 5), nl.float32, buffer),
    )
    for x, got in zip(np.array(values, np.float32)[0], result[0], strict=True):
        assert abs(float(got) * float(x) - 1) <= 2**-24


def test_reciprocal_casts_in_and_out() -> None:
    """1/3 rounded to bfloat16 is 171 * 2^-9; 1/0 is infinity."""
    data = np.array([[3, 1, 0]], np.int32)
    result = run(lambda dst, x: nisa.reciprocal(dst, x), [data], Result((1, 3), nl.bfloat16))
    assert result.tolist() == [[171 * 2.0**-9, 1, math.inf]]


@rules(
    Rule(
        "elements",
        lambda: nisa.reciprocal(tile(2, 3), tile(2, 2, value=1)),
        "nisa.reciprocal: operands 'dst' and 'data' must have the same number of elements per partition, got "
        "tensor [2, 3] float32 in sbuf and tensor [2, 2] float32 in sbuf",
        lambda: nisa.reciprocal(tile(2, 4), tile(2, 2, 2, value=1)),
    ),
    Rule(
        "partitions",
        lambda: nisa.reciprocal(tile(4, 2), tile(2, 2, value=1)),
        "nisa.reciprocal: operands 'dst' and 'data' must have the same number of partitions, got tensor [4, 2] float32 "
        "in sbuf and tensor [2, 2] float32 in sbuf",
        lambda: nisa.reciprocal(tile(4, 2)[0:2], tile(2, 2, value=1)),
    ),
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

    def body(dst: Any, given: Any) -> None:
        nisa.tensor_copy(dst, given)

    assert run(body, [Tile(values, buffer=PSUM)], Result((4, 6), nl.float32, PSUM)).tolist() == values.tolist()
    doubled = execute(lambda: store(load(nl.full((4, 6), 2.0, nl.float32, nl.private_hbm), (4, 6), nl.bfloat16)))
    assert doubled.dtype == ml_dtypes.bfloat16 and (doubled == 2).all()
