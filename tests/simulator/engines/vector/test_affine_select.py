# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`affine_select`: the documented loops, written out in Python, say which elements it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ...kernels import Body, Result, engine_of, numbered, run, tile
from ...made import Psum, Sbuf
from ...rules import LEFT_OUT, Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, must, pairs, same_elements, same_partitions

PSUM = nl.psum
FP32_MIN = -3.4028235e38  # rounds to the lowest float32

COMPARISONS = {
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
}


def test_masks_what_a_causal_mask_masks() -> None:
    """Partition p keeps the columns k <= p: p - k >= 0."""
    result = run(
        lambda dst, src: nisa.affine_select(dst, [[-1, 4]], 1, src, FP32_MIN, cmp_op=nl.greater_equal),
        [numbered(3, 4)],
        Result((3, 4)),
    )
    low = float(np.float32(FP32_MIN))
    assert result.tolist() == [[1, low, low, low], [5, 6, low, low], [9, 10, 11, low]]
    assert low == np.finfo(np.float32).min


def test_compares_for_equality_by_default() -> None:
    """Ones become an identity matrix, with the two last arguments left out."""
    result = run(lambda dst: nisa.affine_select(dst, [[1, 3]], -1, tile(3, 3, value=1), 0.0), [], Result((3, 3)))
    assert result.tolist() == np.eye(3).tolist()


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(name: str) -> None:
    """The affine value, -1 to 2 in partition 0 and 4 to 7 in partition 1, is the left operand, 0 the right one."""
    result = run(
        lambda dst, src: nisa.affine_select(dst, [[1, 4]], 5, src, -9.0, cmp_op=getattr(nl, name), offset=-1),
        [numbered(2, 4)],
        Result((2, 4)),
    )
    affine = [[-1, 0, 1, 2], [4, 5, 6, 7]]
    values = numbered(2, 4).tolist()
    assert result.tolist() == [
        [x if COMPARISONS[name](a, 0) else -9.0 for a, x in zip(*rows, strict=True)]
        for rows in zip(affine, values, strict=True)
    ]


def documented_affine(partitions: int, pattern: Any, channel_multiplier: int, offset: int) -> list[list[int]]:
    """The loops of the documentation."""
    (step_w, num_w), (step_z, num_z), (step_y, num_y), (step_x, num_x) = [[0, 1]] * (4 - len(pattern)) + pattern
    return [
        [
            offset + channel * channel_multiplier + w * step_w + z * step_z + y * step_y + x * step_x
            for w in range(num_w)
            for z in range(num_z)
            for y in range(num_y)
            for x in range(num_x)
        ]
        for channel in range(partitions)
    ]


@given(
    st.sampled_from([1, 2, 128]),
    st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=4),
    st.integers(-3, 3),
    st.integers(-20, 20),
    st.sampled_from(sorted(COMPARISONS)),
)
def test_of_any_pattern(partitions: int, pattern: Any, channel_multiplier: int, offset: int, name: str) -> None:
    affine = np.array(documented_affine(partitions, [list(pair) for pair in pattern], channel_multiplier, offset))
    values = numbered(*affine.shape)
    result = run(
        lambda dst, src: nisa.affine_select(dst, pattern, channel_multiplier, src, -1.0, getattr(nl, name), offset),
        [values],
        Result(affine.shape),
    )
    assert (result == np.where(COMPARISONS[name](affine, 0), values, -1)).all()


def test_dst_may_have_another_shape_than_the_pattern_and_the_tile() -> None:
    """The pattern counts 0, 1, 2, 10, 11, 12 through both in row-major order."""
    result = run(
        lambda dst, src: nisa.affine_select(dst, [[10, 2], [1, 3]], 0, src, 0.0, nl.greater, -2),
        [numbered(1, 6)],
        Result((1, 3, 2)),
    )
    assert result.tolist() == [[[0, 0], [0, 4], [5, 6]]]


def test_of_strided_views_counts_partitions_from_the_first_one_of_dst() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, 7)
        nisa.affine_select(dst[32:34, 1::2], [[1, 2]], -1, src[:, 0::3], 0.0)

    result = run(body, [numbered(2, 4)], Result((64, 4)))
    assert result[31:35].tolist() == [[7] * 4, [7, 1, 7, 0], [7, 0, 7, 8], [7] * 4]


def test_affine_values_are_exact_where_float32_is_not() -> None:
    """2^24 + 1 - (2^24 + p) is 0 in partition 1 only."""
    result = run(
        lambda dst: nisa.affine_select(dst, [[-(2**24), 2]], -1, tile(3, 2, value=1), 0.0, offset=2**24 + 1),
        [],
        Result((3, 2)),
    )
    assert result.tolist() == [[0, 0], [0, 1], [0, 0]]


def test_affine_values_wrap_at_32_bits() -> None:
    """2^31 - 1 + 1 is -2^31."""
    result = run(
        lambda dst: nisa.affine_select(dst, [[1, 2]], 0, tile(1, 2, value=1), 0.0, nl.less, 2**31 - 1),
        [],
        Result((1, 2)),
    )
    assert result.tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", [nl.int32, nl.uint32])
def test_copies_equal_types_exactly(dtype: Any) -> None:
    source = np.array([[2**24 + 1, 2**30 + 1]]).astype(dtype.numpy)
    result = run(lambda dst, src: nisa.affine_select(dst, [[1, 2]], 0, src, 3.0), [source], Result((1, 2), dtype))
    assert result.tolist() == [[2**24 + 1, 3]]


@pytest.mark.parametrize(
    ("source", "target", "value", "expected"),
    [
        (nl.int32, nl.float32, 2**24 + 1, 2**24),
        (nl.int32, nl.uint32, 2**24 + 1, 2**24),
        (nl.float32, nl.bfloat16, 257, 256),
        (nl.float32, nl.int8, 300, 127),
        (nl.float32, nl.int32, 2.5, 2),
        (nl.uint8, nl.int8, 200, 127),
    ],
)
def test_casts_unlike_types_through_float32(source: Any, target: Any, value: Any, expected: Any) -> None:
    data = np.array([[value, 1]]).astype(source.numpy)
    result = run(lambda dst, src: nisa.affine_select(dst, [[1, 2]], 0, src, 0.0), [data], Result((1, 2), target))
    assert result.astype(np.float64).tolist() == [[expected, 0]]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (nl.float32, 0.1, float(np.float32(0.1))),
        (nl.bfloat16, FP32_MIN, -np.inf),
        (nl.float16, FP32_MIN, -np.inf),
        (nl.bfloat16, 257, 256),
        (nl.int32, 2**24 + 1, 2**24),
        (nl.int8, FP32_MIN, -128),
        (nl.uint8, -1.0, 0),
        (nl.int16, np.float32(2.5), 2),
    ],
)
def test_casts_the_other_value_from_float32_to_the_type_of_dst(dtype: Any, value: Any, expected: float) -> None:
    result = run(
        lambda dst: nisa.affine_select(dst, [[1, 2]], 0, tile(1, 2, dtype=dtype, value=1), value),
        [],
        Result((1, 2), dtype),
    )
    assert result.astype(np.float64).tolist() == [[1, expected]]


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_may_write_over_its_input(dtype: Any) -> None:
    """The input is the very same tile, or is shifted by one element."""

    def body(same: Any, shifted: Any, src: Any) -> None:
        nisa.tensor_copy(same, src)
        nisa.affine_select(same, [[-1, 4]], 1, same, 0.0, nl.greater_equal)
        nisa.tensor_copy(shifted, src)
        nisa.affine_select(shifted[:, 1:4], [[-1, 3]], 1, shifted[:, 0:3], 0.0, nl.greater_equal)

    same, shifted = run(body, [numbered(2, 4)], Result((2, 4), dtype), Result((2, 4), dtype))
    assert same.astype(np.float32).tolist() == [[1, 0, 0, 0], [5, 6, 0, 0]]
    assert shifted.astype(np.float32).tolist() == [[1, 1, 0, 0], [5, 5, 6, 0]]


AFFINE: Body = lambda: nisa.affine_select(tile(2, 2), [[1, 2]], 0, tile(2, 2), 0.0)  # noqa: E731


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_runs_on_the_gpsimd_engine_of_every_generation(target: str) -> None:
    assert engine_of(AFFINE, target) == "gpsimd"


@rules(
    legal(nisa.affine_select, Sbuf(2, 2), [[1, 2]], 0, Sbuf(2, 2), 0.0),
    broken("dst in PSUM", dst=Psum(2, 2)).says(must("dst", "be in sbuf")),
    broken("on_true_tile in PSUM", on_true_tile=Psum(2, 2)).says(must("on_true_tile", "be in sbuf", COPY_FIRST)),
    broken("partitions", on_true_tile=Sbuf(1, 2)).says(same_partitions("dst", "on_true_tile")),
    broken("size", on_true_tile=Sbuf(2, 3)).says(same_elements("dst", "on_true_tile")),
    broken("size of the pattern", pattern=[[1, 2], [1, 2]])
    .says(pairs(2, "on_true_tile"))
    .fixed(pattern=[[1, 1], [1, 2]]),
    broken("dimensions of the pattern", pattern=[[1, 1]] * 4 + [[1, 2]])
    .says(pairs(2, "on_true_tile"))
    .fixed(pattern=[[1, 1]] * 3 + [[1, 2]]),
    broken("pairs of the pattern", pattern=[[1, 2, 3]]).says(
        "pattern must be [[step, num], ...] of integers, got [[1, 2, 3]]"
    ),
    broken("integers of the pattern", pattern=[[1.0, 2]]).says(
        "pattern must be [[step, num], ...] of integers, got [[1.0, 2]]"
    ),
    broken("offset", offset=2**31)
    .says("offset must be an int32, a register or a scalar, got 2147483648")
    .fixed(offset=2**31 - 1),
    broken("channel_multiplier", channel_multiplier=0.5).says("channel_multiplier must be an int32, got 0.5"),
    broken("operator", cmp_op=nl.logical_and)
    .says(
        "cmp_op must be one of nl.equal, nl.not_equal, nl.less, nl.less_equal, nl.greater, nl.greater_equal, got "
        "nl.logical_and"
    )
    .fixed(cmp_op=nl.not_equal),
    broken("on_false_value", on_false_value=None).says("on_false_value must be a compile-time number, got None"),
    broken("arguments in the order of NKI 0.2", on_true_tile=0, on_false_value=Sbuf(2, 2), cmp_op=0.0)
    .says("operand 'on_true_tile' must be a tensor, got 0")
    .fixed(on_true_tile=Sbuf(2, 2), on_false_value=0.0, offset=0, cmp_op=LEFT_OUT),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)
