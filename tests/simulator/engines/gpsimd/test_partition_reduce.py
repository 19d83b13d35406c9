# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_partition_reduce`: each free element reduced over the partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, normal, run, tile
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import must, out_of_reach

DATA = np.array([[1, -2, 3], [4, 6, -8], [-3, 0, 1], [2, 2, 2]], np.float32)


def reduced(op: Any, data: Any, result: Result | None = None, target: str = "trn2") -> Any:
    array = data.array if isinstance(data, Tile) else data
    return run(
        lambda dst, data: nisa.tensor_partition_reduce(dst, op, data),
        [data],
        result or Result((1, *array.shape[1:])),
        target=target,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [4, 6, -2]),
        ("mean", [1, 1.5, -0.5]),
        ("average", [1, 1.5, -0.5]),
        ("max", [4, 6, 3]),
        ("maximum", [4, 6, 3]),
    ],
)
def test_arithmetic(name: str, expected: Any) -> None:
    assert reduced(getattr(nl, name), DATA).tolist() == [expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("bitwise_or", [0b1111, 0b0110]), ("bitwise_and", [0b0001, 0b0010]), ("bitwise_xor", [0b1111, 0b0110])],
)
@pytest.mark.parametrize("dtype", [nl.int8, nl.uint8, nl.int16, nl.uint16, nl.int32, nl.uint32])
def test_bits(name: str, expected: Any, dtype: Any) -> None:
    data = np.array([[0b0101, 0b0110], [0b0011, 0b0010], [0b1001, 0b0010]]).astype(dtype.numpy)
    assert reduced(getattr(nl, name), data, Result((1, 2), dtype)).tolist() == [expected]


def test_bits_that_float32_cannot_hold_are_exact() -> None:
    data = np.array([[2**30 + 1], [2**24 + 2]], np.int32)
    assert reduced(nl.bitwise_or, data, Result((1, 1), nl.int32)).tolist() == [[2**30 + 2**24 + 3]]


def test_bits_may_go_into_the_other_type_of_one_width() -> None:
    data = np.array([[-1], [-2]], np.int16)
    assert reduced(nl.bitwise_and, data, Result((1, 1), nl.uint16)).tolist() == [[2**16 - 2]]


def test_one_partition_stays_what_it_is() -> None:
    for op in (nl.add, nl.mean, nl.max):
        assert reduced(op, DATA[1:2]).tolist() == [[4, 6, -8]]


def test_several_free_dimensions_keep_their_order() -> None:
    """Also where dst has another shape for the same number of elements."""
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert reduced(nl.add, data).tolist() == [(data[0] + data[1]).tolist()]
    flat = run(lambda dst, data: nisa.tensor_partition_reduce(dst, nl.add, data), [data], Result((1, 12)))
    assert flat.tolist() == [(2 * np.arange(12) + 12).tolist()]


def test_strided_views() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_partition_reduce(dst[32:33, 1::2], nl.add, data[:, 0::2])

    result = run(body, [DATA], Result((64, 4)))
    assert result[31:34].tolist() == [[7] * 4, [7, 4, 7, -2], [7] * 4]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(nl.float32, 514), (nl.bfloat16, 512), (nl.int8, 127), (nl.uint8, 255), (nl.int16, 514), (nl.int32, 514)],
)
def test_sums_are_of_float32_and_cast_to_the_type_of_dst(dtype: Any, expected: int) -> None:
    """257 as float16; the sum of the two is no bfloat16."""
    data = Tile(np.full((2, 1), 257, np.float32), nl.float16)
    assert reduced(nl.add, data, Result((1, 1), dtype)).astype(np.float32).tolist() == [[expected]]


def test_a_sum_of_low_precision_data_does_not_round_on_the_way() -> None:
    """128 times 3 is 384; a bfloat16 sum would lose ones above 256."""
    assert reduced(nl.add, Tile(np.full((128, 1), 3, np.float32), nl.bfloat16)).tolist() == [[384]]


def test_arithmetic_on_integers_is_of_float32() -> None:
    """2^24 + 1 is rounded as it is read."""
    data = np.array([[2**24 + 1], [-(2**24)]], np.int32)
    assert reduced(nl.add, data, Result((1, 1), nl.int32)).tolist() == [[0]]


def test_nan_and_infinity() -> None:
    data = np.array([[np.nan, np.inf, 1], [1, 1, -np.inf]], np.float32)
    assert np.array_equal(reduced(nl.max, data), [[np.nan, np.inf, 1]], equal_nan=True)
    assert np.array_equal(reduced(nl.add, data), [[np.nan, np.inf, -np.inf]], equal_nan=True)


def test_dst_may_lie_in_data() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_partition_reduce(data[0:1], nl.add, data)
        nisa.tensor_copy(dst, data)

    assert run(body, [DATA], Result((4, 3))).tolist() == [[4, 6, -2], *DATA[1:].tolist()]


@given(st.sampled_from([1, 2, 33, 128]), st.integers(1, 40), st.integers(0, 99))
def test_any_shape(partitions: int, columns: int, seed: int) -> None:
    """The sum of P float32 values errs by at most P roundings of a partial sum below P * 5."""
    data = normal(partitions, columns, seed=seed)
    wide = data.astype(np.float64)
    bound = partitions * partitions * 5 * 2.0**-24
    np.testing.assert_allclose(reduced(nl.add, data)[0], wide.sum(axis=0), rtol=0, atol=bound)
    np.testing.assert_allclose(reduced(nl.mean, data)[0], wide.mean(axis=0), rtol=0, atol=bound / partitions + 1e-6)
    assert (reduced(nl.max, data)[0] == data.max(axis=0)).all()


def reduction(op: Any) -> Body:
    """A kernel that reduces a tile of float32."""
    return lambda: nisa.tensor_partition_reduce(tile(1, 2), op, tile(3, 2))


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_it_runs_on_the_gpsimd_engine_of_every_generation(target: str) -> None:
    assert engine_of(reduction(nl.add), target) == "gpsimd"


@rules(
    legal_kernel("nisa.tensor_partition_reduce", reduction, op=nl.max),
    *(
        broken(f"operator {op!r}", op=op).says(
            f"op must be nl.add, nl.mean, nl.max, nl.bitwise_or, nl.bitwise_and or nl.bitwise_xor, got {op!r}"
        )
        for op in (nl.min, nl.multiply, nl.subtract, nl.logical_and, nl.left_shift)
    ),
    legal(nisa.tensor_partition_reduce, dst=Sbuf(1, 2), op=nl.max, data=Sbuf(3, 2)[0:1]),
    broken("rank", data=Sbuf(3, 2).reshape((3, 1, 1, 1, 1, 2)))
    .says("operand 'data': at most 4 free dimensions, got {data}")
    .fixed(data=Sbuf(3, 1, 1, 1, 2)),
    broken("no partitions", data=Sbuf(3, 2)[0:0]).says(must("data", "have partitions to reduce")),
    legal(nisa.tensor_partition_reduce, dst=Sbuf(1, 2), op=nl.add, data=Sbuf(3, 2)),
    broken("bits of floats", op=nl.bitwise_or)
    .says(must("dst", "be an integer tensor with a bit-wise operator"))
    .fixed(dst=Sbuf(1, 2, dtype=nl.int32), data=Sbuf(3, 2, dtype=nl.int32)),
    broken("widths", dst=Sbuf(1, 2, dtype=nl.int32), op=nl.bitwise_or, data=Sbuf(3, 2, dtype=nl.int8))
    .says("bit-wise operators cast nothing: the operands must have one width, got {dst}, {data}")
    .fixed(op=nl.add),
    broken("partitions of dst", dst=Sbuf(3, 2))
    .says(must("dst", "have 1 partition and the 2 elements per partition of 'data'"))
    .fixed(dst=Sbuf(3, 2)[0:1]),
    broken("size of dst", dst=Sbuf(1, 3))
    .says(must("dst", "have 1 partition and the 2 elements per partition of 'data'"))
    .fixed(dst=Sbuf(1, 3)[:, 0:2]),
    broken("data in PSUM", data=Psum(3, 2)).says(out_of_reach("data")),
    broken("dst in PSUM", dst=Psum(1, 2)).says(out_of_reach("dst")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("name", ["mean", "average"])
def test_the_mean_is_an_operator_of_this_instruction_alone(name: str) -> None:
    """`nl.average` is its name until NKI 0.6."""
    op = getattr(nl, name)
    with pytest.raises(nisa.NkiValidationError, match=f"op=nl.{name} is no binary operator of tensor_tensor"):
        run(lambda dst: nisa.tensor_tensor(dst, tile(2, 2), tile(2, 2), op), [], Result((2, 2)))
