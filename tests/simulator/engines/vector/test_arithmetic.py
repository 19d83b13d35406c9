# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`memset`, `tensor_copy`, `reciprocal`, and what holds for every instruction that works in blocks of rows."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

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
