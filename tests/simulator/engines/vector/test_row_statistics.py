# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`bn_stats`, `bn_aggr` and `tensor_reduce`: statistics and reductions of rows.

Float32 sums of n terms err by at most n 2^-24 of the sum of their magnitudes, and far less for the pairwise sums here;
2^-20 of that sum bounds them for the 512 terms of `bn_stats`, and 2^-18 what `bn_aggr` makes of several such.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, normal, run, tile
from ...made import Hbm, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import LOAD_FIRST, fewer_dimensions, must, same_partitions

ERROR = 2**-20
AGGREGATED_ERROR = 2**-18


def statistics(values: Any) -> Any:
    """Return what `bn_stats` leaves of a (P, n) array, in float64."""
    wide = values.astype(np.float64)
    columns = []
    for half in (wide[:, 0::2], wide[:, 1::2]):
        count = half.shape[1]
        mean = half.sum(axis=1) / max(count, 1)
        columns += [np.full(len(wide), float(count)), mean, ((half - mean[:, np.newaxis]) ** 2).sum(axis=1)]
    return np.stack(columns, axis=1)


def mean_and_variance(values: Any) -> Any:
    wide = values.astype(np.float64).reshape(len(values), -1)
    return np.stack([wide.mean(axis=1), wide.var(axis=1)], axis=1)


# -- bn_stats --------------------------------------------------------------------------------------------------------


def test_the_layout_of_the_statistics() -> None:
    """Count, mean and variance * count of the elements 0, 2, 4, then of 1, 3."""
    data = np.array([[1, 2, 3, 40, 5], [-7, 0, -7, 8, -1]], np.float32)
    result = run(nisa.bn_stats, [data], Result((2, 6)))
    assert result.tolist() == [[3, 3, 8, 2, 21, 722], [3, -5, 24, 2, 4, 32]]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 512), st.sampled_from([1, 3, 128]), st.integers(0, 9))
def test_statistics_of_any_number_of_elements(elements: int, partitions: int, seed: int) -> None:
    data = normal(partitions, elements, seed=seed, scale=3.0) + 2
    result = run(nisa.bn_stats, [data], Result((partitions, 6)))
    expected = statistics(data)
    assert (result[:, 0] == (elements + 1) // 2).all() and (result[:, 3] == elements // 2).all()
    for column in (1, 4):
        assert np.abs(result[:, column] - expected[:, column]).max() <= ERROR * np.abs(data).max()
    for column in (2, 5):
        assert (np.abs(result[:, column] - expected[:, column]) <= ERROR * (expected[:, column] + 1e-6)).all()


def test_one_element_leaves_no_odd_ones() -> None:
    assert run(nisa.bn_stats, [np.array([[5], [-3]], np.float32)], Result((2, 6))).tolist() == [
        [1, 5, 0, 0, 0, 0],
        [1, -3, 0, 0, 0, 0],
    ]


def test_free_dimensions_are_flattened() -> None:
    """Evenness changes from row to row, as rows have three elements."""
    data = np.array([[[1, 2, 3], [40, 5, 60]]], np.float32)
    assert run(nisa.bn_stats, [data], Result((1, 2, 3))).tolist() == [[[3, 3, 8], [3, 34, 1736]]]


def test_data_and_result_may_be_strided_views() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, -1)
        nisa.bn_stats(dst[:, 1::2], data[:, 1:10:2])

    argument = np.zeros((1, 12), np.float32)
    argument[0, 1:10:2] = [1, 2, 3, 40, 5]
    result = run(body, [argument], Result((1, 12)))
    assert result[0, 1::2].tolist() == [3, 3, 8, 2, 21, 722]
    assert (result[0, 0::2] == -1).all()


@pytest.mark.parametrize("source", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("generation", ["trn1", "trn2", "trn3"])
def test_both_on_chip_memories_of_every_generation(source: Any, target: Any, generation: str) -> None:
    data = np.array([[1, 2, 3, 40, 5]], np.float32)
    stats = run(nisa.bn_stats, [Tile(data, buffer=source)], Result((1, 6), nl.float32, target), target=generation)
    assert stats.tolist() == [[3, 3, 8, 2, 21, 722]]
    result = run(nisa.bn_aggr, [Tile(stats, buffer=source)], Result((1, 2), nl.float32, target), target=generation)
    assert result.tolist() == [pytest.approx([10.2, 223.76], rel=2**-22)]


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int8, nl.int32, nl.uint8])
def test_data_of_any_type(dtype: Any) -> None:
    data = np.array([[1, 2, 3, 40, 5]], np.float32)
    assert run(nisa.bn_stats, [Tile(data, dtype)], Result((1, 6))).tolist() == [[3, 3, 8, 2, 21, 722]]


def test_integers_are_cast_to_float32_first() -> None:
    """2^24 + 1 and 2^24 + 3 become 2^24 and 2^24 + 4, which deviate by 2 from their mean instead of by 1."""
    data = np.array([[2**24 + 1, 0, 2**24 + 3, 0]], np.int32)
    assert run(nisa.bn_stats, [data], Result((1, 6))).tolist() == [[2, 2**24 + 2, 8, 2, 0, 0]]


def test_arithmetic_is_float32_and_results_are_cast_to_the_type_of_dst() -> None:
    """Deviations of 1/2 from 300.5, which bfloat16 does not hold: they survive although mean and result are rounded."""
    data = np.array([[300, 0, 301, 0]], np.float16)
    result = run(nisa.bn_stats, [data], Result((1, 6), nl.bfloat16))
    assert result.dtype == ml_dtypes.bfloat16
    assert result.astype(np.float32).tolist() == [[2, 300, 0.5, 2, 0, 0]]
    result = run(nisa.bn_stats, [data], Result((1, 6), nl.uint8))
    assert result.tolist() == [[2, 255, 0, 2, 0, 0]]


def test_the_result_may_overwrite_the_data() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.bn_stats(dst[:, 0:6], dst[:, 1:7])

    data = normal(4, 8)
    result = run(body, [data], Result((4, 8)))
    assert np.abs(result[:, 0:6] - statistics(data[:, 1:7])).max() <= 2**-18
    assert np.array_equal(result[:, 6:], data[:, 6:])


def test_a_nan_spoils_the_statistics_of_its_half_only() -> None:
    data = np.array([[1, np.nan, 3, 0], [1, 2, np.inf, 4]], np.float32)
    result = run(nisa.bn_stats, [data], Result((2, 6)))
    assert result[0, :4].tolist() == [2, 2, 2, 2] and np.isnan(result[0, 4:]).all()
    assert result[1, 1] == np.inf and np.isnan(result[1, 2]) and result[1, 3:].tolist() == [2, 3, 2]


def test_they_run_on_the_vector_engine() -> None:
    assert engine_of(lambda: nisa.bn_stats(tile(2, 6), tile(2, 8))) == "vector"
    assert engine_of(lambda: nisa.bn_aggr(tile(2, 2), tile(2, 6, value=1))) == "vector"


# -- bn_aggr ---------------------------------------------------------------------------------------------------------


def test_tuples_of_unlike_counts() -> None:
    """{0, 2}, {7} and {1, 1, 1}, and in the other partition {4}, {4, 4} and {-2, 0}."""
    tuples = np.array([[2, 1, 2, 1, 7, 0, 3, 1, 0], [1, 4, 0, 2, 4, 0, 2, -1, 2]], np.float32)
    result = run(nisa.bn_aggr, [tuples], Result((2, 2)))
    assert result.tolist() == [pytest.approx([2, 32 / 6], rel=2**-22), pytest.approx([2, 6.4], rel=2**-22)]


def test_one_tuple() -> None:
    assert run(nisa.bn_aggr, [np.array([[4, -3, 10]], np.float32)], Result((1, 2))).tolist() == [[-3, 2.5]]


def test_tuples_without_elements_add_nothing() -> None:
    """Whatever finite mean they give; where no tuple has elements there is no mean."""
    tuples = np.array([[0, 55, 0, 4, -3, 10, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0]], np.float32)
    result = run(nisa.bn_aggr, [tuples], Result((2, 2)))
    assert result[0].tolist() == [-3, 2.5]
    assert np.isnan(result[1]).all()


def test_the_variance_is_that_of_the_population() -> None:
    """Divided by the number of elements, not by one less."""

    def body(dst: Any, data: Any) -> None:
        stats = nl.ndarray((1, 6), nl.float32)
        nisa.bn_stats(stats, data)
        nisa.bn_aggr(dst, stats)

    assert run(body, [np.array([[1, 2, 3, 4]], np.float32)], Result((1, 2))).tolist() == [[2.5, 1.25]]


def aggregated(dst: Any, data: Any) -> None:
    """Compute mean and variance of a tile's rows in a kernel, by pieces that write side by side into one tile."""
    pieces = range(0, data.shape[1], nl.tile_size.bn_stats_fmax)
    stats = nl.ndarray((data.shape[0], len(pieces), 6), nl.float32)
    for number, start in enumerate(pieces):
        end = min(start + nl.tile_size.bn_stats_fmax, data.shape[1])
        nisa.bn_stats(stats[:, number], data[:, start:end])
    nisa.bn_aggr(dst, stats)


@pytest.mark.parametrize("elements", [1, 2, 511, 512, 513, 1024, 1537])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_mean_and_variance_of_rows_of_any_length(elements: int, dtype: Any) -> None:
    data = normal(128, elements, seed=elements, scale=2.0) + np.linspace(-3, 3, 128, dtype=np.float32)[:, np.newaxis]
    inputs = data if dtype == nl.float32 else data.astype(ml_dtypes.bfloat16)
    result = run(aggregated, [inputs], Result((128, 2)))
    expected = mean_and_variance(inputs)
    assert np.abs(result - expected).max() <= AGGREGATED_ERROR * 9


def test_a_mean_far_from_zero_does_not_swallow_the_variance() -> None:
    """Squares of the data, 10^8, would lose a variance of 1 in float32; those of deviations do not."""
    data = normal(4, 1000) + 10_000
    result = run(aggregated, [data], Result((4, 2)))
    expected = mean_and_variance(data)
    assert np.abs(result[:, 0] / expected[:, 0] - 1).max() <= 2**-23
    assert np.abs(result[:, 1] / expected[:, 1] - 1).max() <= 2**-9


def test_pieces_that_differ_from_each_other() -> None:
    """The variance between the pieces, 100^2, is far more than that in them, 1."""
    data = np.concatenate([normal(2, 512), normal(2, 512, seed=1) + 200], axis=1)
    result = run(aggregated, [data], Result((2, 2)))
    assert np.abs(result / mean_and_variance(data) - 1).max() <= AGGREGATED_ERROR
    assert (result[:, 1] > 9_900).all()


def test_statistics_in_bfloat16() -> None:
    """Kernels keep them in the type of their data: counts up to 256 survive."""

    def body(dst: Any, data: Any) -> None:
        stats = nl.ndarray((2, 6), nl.bfloat16)
        nisa.bn_stats(stats, data)
        nisa.bn_aggr(dst, stats)

    data = np.tile(np.array([[1, 3], [-8, -4]], np.float32), (1, 256))
    assert run(body, [data], Result((2, 2))).tolist() == [[2, 1], [-6, 4]]


def test_aggregation_is_float32_arithmetic_whatever_the_type_of_the_tuples() -> None:
    """255 * 1.5 = 382.5 has no bfloat16, nor has the total 258; the squares of deviations have more digits still."""
    tuples = np.array([[255, 1.5, 0, 3, 1, 0]], np.float32)
    result = run(nisa.bn_aggr, [Tile(tuples, nl.bfloat16)], Result((1, 2)))
    mean = (255 * 1.5 + 3) / 258
    variance = (255 * (1.5 - mean) ** 2 + 3 * (1 - mean) ** 2) / 258
    assert result.tolist() == [pytest.approx([mean, variance], rel=2**-20)]


def test_aggregation_casts_to_the_type_of_dst_and_reads_before_it_writes() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.bn_aggr(dst[:, 1:3], dst)

    tuples = np.array([[2, 1, 2, 1, 7, 0]], np.float32)
    result = run(body, [Tile(tuples, nl.bfloat16)], Result((1, 6), nl.bfloat16))
    assert result.astype(np.float32).tolist() == [[2, 3, 8.6875, 1, 7, 0]]  # 26 / 3 to 8 bits


# -- refusals --------------------------------------------------------------------------------------------------------

LIMIT = must(
    "data",
    "have 1 to 512 elements per partition (nl.tile_size.bn_stats_fmax)",
    ": call bn_stats on pieces and combine them with bn_aggr",
)
TUPLES = must(
    "data",
    "have a multiple of 3 elements per partition, tuples (count, mean, variance * count) as bn_stats writes them",
)


@rules(
    legal(nisa.bn_stats, dst=Sbuf(2, 6), data=Sbuf(2, 512)),
    broken("too many elements", data=Sbuf(2, 513)).says(LIMIT),
    broken("too many elements in several dimensions", data=Sbuf(2, 3, 171)).says(LIMIT).fixed(data=Sbuf(2, 2, 256)),
    broken("no elements", data=Sbuf(2, 8)[:, 0:0]).says(LIMIT).fixed(data=Sbuf(2, 8)[:, 0:1]),
    broken("size of the statistics", dst=Sbuf(2, 3), data=Sbuf(2, 8))
    .says(
        must(
            "dst",
            "have 6 elements per partition (a tuple (count, mean, variance * count) for even and one for odd elements)",
        )
    )
    .fixed(dst=Sbuf(2, 3, 2)),
    broken("partitions of the statistics", dst=Sbuf(3, 6), data=Sbuf(2, 8))
    .says(same_partitions("dst", "data"))
    .fixed(dst=Sbuf(3, 6)[0:2]),
    broken("data in HBM", data=Hbm(2, 8)).says(must("data", "be in psum or sbuf", LOAD_FIRST)).fixed(data=Sbuf(2, 8)),
    legal(nisa.bn_aggr, dst=Sbuf(2, 2), data=Sbuf(2, 6, value=1)),
    broken("tuples of three", data=Sbuf(2, 8, value=1)).says(TUPLES).fixed(data=Sbuf(2, 9, value=1)),
    broken("no tuples", data=Sbuf(2, 6)[:, 0:0]).says(TUPLES).fixed(data=Sbuf(2, 6, value=1)[:, 0:3]),
    broken("rank of the statistics", data=Sbuf(2, 6, value=1).reshape((2, 1, 1, 1, 1, 6)))
    .says("operand 'data': at most 4 free dimensions, got {data}")
    .fixed(data=Sbuf(2, 1, 1, 1, 6, value=1)),
    broken("rank of the result", dst=Sbuf(2, 1, 1, 2)).says(fewer_dimensions("dst", 3)).fixed(dst=Sbuf(2, 1, 2)),
    broken("size of the result", dst=Sbuf(2, 1)).says(must("dst", "have 2 elements per partition (mean and variance)")),
    broken("partitions of the result", dst=Sbuf(3, 2)).says(same_partitions("dst", "data")),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


# `tensor_reduce`: operators, axes, shapes, negation, bit patterns and refusals.

BLOCK = np.array([[[1, -2, 3], [4, 5, -6]], [[0, 7, 0], [2, 2, 2]]], np.float32)

REDUCTIONS: dict[str, list[list[float]]] = {
    # over the last axis of BLOCK, by hand
    "add": [[2, 3], [7, 6]],
    "subtract": [[1 + 2 - 3, 4 - 5 + 6], [0 - 7 - 0, 2 - 2 - 2]],
    "multiply": [[-6, -120], [0, 8]],
    "maximum": [[3, 5], [7, 2]],
    "minimum": [[-2, -6], [0, 2]],
    "max": [[3, 5], [7, 2]],
    "min": [[-2, -6], [0, 2]],
    "logical_and": [[1, 1], [0, 1]],
    "logical_or": [[1, 1], [1, 1]],
    "logical_xor": [[1, 1], [1, 1]],  # three, three, one and three true values: odd
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [2, -1, (2,), [2], np.int64(2)], ids=repr)
def test_tensor_reduce_operators(name: str, axis: Any) -> None:
    result = run(lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, name), data, axis), [BLOCK], Result((2, 2)))
    assert result.tolist() == REDUCTIONS[name]


@pytest.mark.parametrize(
    ("axis", "shape", "kept"),
    [
        ((3,), (2, 3, 4), (2, 3, 4, 1)),
        ((2, 3), (2, 3), (2, 3, 1, 1)),
        ((1, 2, 3), (2, 1), (2, 1, 1, 1)),
        ((3, 2), (2, 3), (2, 3, 1, 1)),
        ((-1, -2), (2, 3), (2, 3, 1, 1)),
    ],
)
def test_tensor_reduce_axes(axis: Any, shape: Any, kept: Any) -> None:
    """Integers small enough that every order of summation gives the very same float32."""
    values = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).astype(np.float32)
    expected = values.astype(np.float64).sum(axis=axis).reshape(shape)
    for keepdims, result_shape in ((False, shape), (True, kept)):
        result = run(
            lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, axis, keepdims=keepdims),  # noqa: B023
            [values],
            Result(result_shape),
        )
        assert result.tolist() == expected.reshape(result_shape).tolist()


@pytest.mark.parametrize("name", ["add", "maximum"])
def test_tensor_reduce_negates(name: str) -> None:
    result = run(
        lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, name), data, 2, negate=True), [BLOCK], Result((2, 2))
    )
    assert result.tolist() == [[-x for x in row] for row in REDUCTIONS[name]]


def test_tensor_reduce_computes_in_float32_and_casts_the_result() -> None:
    """The sum of 300 bfloat16 ones is 300; bfloat16 addition would stay at 256. int8 saturates."""
    ones = np.ones((1, 300), ml_dtypes.bfloat16)
    for dtype, expected in ((nl.float32, 300), (nl.bfloat16, 300), (nl.int8, 127)):
        assert (
            run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, 1), [ones], Result((1, 1), dtype)) == expected
        )


def test_tensor_reduce_error_of_a_long_sum() -> None:
    """32 Ki elements: against exact summation, well inside what a plain float32 loop would lose."""
    values = normal(3, 32768, seed=1)
    result = run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, 1), [values], Result((3, 1)))
    for row, got in zip(values, result[:, 0], strict=True):
        assert abs(float(got) - math.fsum(row)) <= 32 * 2**-24 * math.fsum(abs(row))


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_tensor_reduce_in_both_on_chip_memories(buffer: Any) -> None:
    result = run(
        lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, (1, 2)),
        [Tile(BLOCK, buffer=buffer)],
        Result((2, 1), nl.float32, buffer),
    )
    assert result.tolist() == [[5], [13]]


def test_tensor_reduce_of_a_strided_view() -> None:
    result = run(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data[:, :, ::2], 2), [BLOCK], Result((2, 2)))
    assert result.tolist() == [[4, -2], [0, 4]]


def test_tensor_reduce_into_the_tile_that_it_reads() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_reduce(data[:, 0:1], nl.add, data, 1)
        nisa.tensor_copy(dst, data)

    data = np.array([[1, -2, 3], [4, 5, -6]], np.float32)
    assert run(body, [data], Result((2, 3))).tolist() == [[2, -2, 3], [3, 5, -6]]


@pytest.mark.parametrize(
    ("name", "expected"), [("bitwise_and", [2, 1]), ("bitwise_or", [7, 15]), ("bitwise_xor", [2, 11])]
)
def test_tensor_reduce_bits(name: str, expected: list[int]) -> None:
    data = np.array([[6, 3, 7], [1, 5, 15]], np.int16)
    for dtype in (nl.int16, nl.uint16):
        result = run(
            lambda dst, x: nisa.tensor_reduce(dst, getattr(nl, name), x, 1),
            [data],
            Result((2, 1), dtype),
        )
        assert result[:, 0].tolist() == expected


@pytest.mark.parametrize(("axis", "expected"), [(2, [[4, 0], [1, 5]]), ((1, 2), [[0], [1]])])
def test_tensor_reduce_bits_of_some_axes(axis: Any, expected: Any) -> None:
    data = np.array([[[6, 5, 4], [3, 4, 0]], [[1, 3, 9], [7, 5, 13]]], np.uint8)
    for keepdims in (False, True):
        shape = (*np.shape(expected), *[1] * (3 - np.ndim(expected))) if keepdims else np.shape(expected)
        result = run(
            lambda dst, x: nisa.tensor_reduce(dst, nl.bitwise_and, x, axis, keepdims=keepdims),  # noqa: B023
            [data],
            Result(shape, nl.uint8),
        )
        assert result.reshape(np.shape(expected)).tolist() == expected


@pytest.mark.parametrize(("op", "identity"), [(nl.bitwise_or, 0), (nl.bitwise_xor, 0), (nl.bitwise_and, -1)])
def test_bits_of_nothing(op: Any, identity: int) -> None:
    """Slices of size 0 are accepted: no partition, or no element in one."""

    def body(dst: Any, data: Any) -> None:
        nisa.tensor_reduce(dst, op, data[:, 0:0], 1)
        nisa.tensor_reduce(dst[0:0], op, data[0:0], 1)

    assert run(body, [np.ones((2, 3), np.int32)], Result((2, 1), nl.int32)).tolist() == [[identity]] * 2


@rules(
    legal(nisa.tensor_reduce, dst=Sbuf(2, 1), op=nl.add, data=Sbuf(2, 3), axis=np.int64(1)),
    broken("partition axis", axis=0)
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got 0")
    .fixed(axis=1),
    broken("all axes", axis=(0, 1))
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got (0, 1)")
    .fixed(axis=(1,)),
    broken("not the last axis", dst=Sbuf(2, 4), data=Sbuf(2, 3, 4), axis=1)
    .says("axis must name the last free dimensions of {data}, ending with 2, and not 0; got 1")
    .fixed(data=Sbuf(2, 3, 4).permute((0, 2, 1)), axis=2),
    broken("gap between axes", dst=Sbuf(2, 3), data=Sbuf(2, 2, 3, 4), axis=(1, 3))
    .says("axis must name the last free dimensions of {data}, ending with 3, and not 0; got (1, 3)")
    .fixed(dst=Sbuf(2, 2), axis=(2, 3)),
    broken("no axis", dst=Sbuf(2, 3), axis=())
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got ()")
    .instead(lambda: nisa.tensor_copy(tile(2, 3), tile(2, 3))),
    *(
        broken(f"axis of {kind}", axis=axis).says(f"axis must be an integer or a tuple of integers, got {axis!r}")
        for kind, axis in (("nothing", None), ("floats", (1.0,)), ("text", "1"))
    ),
    broken("axis out of range", axis=2)
    .says("axis must name the last free dimensions of {data}, ending with 1, and not 0; got 2")
    .fixed(axis=-1),
    broken("operator", op=nl.power, axis=1).says("op=nl.power is no legal reduction operator").fixed(op=nl.multiply),
    legal(nisa.tensor_reduce, Sbuf(2, 1, dtype=nl.int32), nl.bitwise_or, Sbuf(2, 3, dtype=nl.int32), 1),
    broken("negated bits", dst=Sbuf(2, 1, dtype=nl.int8), data=Sbuf(2, 3, dtype=nl.int8), negate=True)
    .says("negate needs an arithmetic operator")
    .fixed(op=nl.add),
    broken("bits of floats", dst=Sbuf(2, 1)).says(must("dst", "be an integer tensor with a bit-wise operator")),
    legal(nisa.tensor_reduce, dst=Sbuf(2, 2), op=nl.add, data=Sbuf(2, 2, 3), axis=2),
    broken("size of dst", data=Sbuf(2, 3), axis=1).says(must("dst", "have 1 elements per partition")),
    legal(nisa.tensor_reduce, dst=Sbuf(2, 2, 1), op=nl.add, data=Sbuf(2, 2, 3), axis=2, keepdims=True),
    broken("shape of dst with keepdims", dst=Sbuf(2, 2)).says("keepdims=True needs dst of shape [2, 2, 1], got {dst}"),
    legal(nisa.tensor_reduce, dst=Sbuf(1, 1), op=nl.add, data=Sbuf(2, 3)[0:1], axis=1),
    broken("partitions", data=Sbuf(2, 3)).says(same_partitions("dst", "data")),
)
def test_tensor_reduce_rules(rule: Rule) -> None:
    check_rule(rule)
