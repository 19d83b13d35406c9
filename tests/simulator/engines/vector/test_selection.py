# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`affine_select` and `range_select`: which elements they take, what the others become, and the registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator.terms.argument_checks import DIVISION

from ...kernels import WIDE, Body, Result, Tile, column, engine_of, execute, normal, numbered, run, store, tile
from ...made import Psum, Sbuf, in_kernel
from ...rules import LEFT_OUT, Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, FLOATS, must, needs, one_each, one_type, pairs, same_elements, same_partitions

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
def test_comparisons_with_zero(name: str) -> None:
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
def test_affine_select_may_write_over_its_input(dtype: Any) -> None:
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
        f"pattern must be [[step, num], ...] of integers, got [[1.0, 2]]{DIVISION}"
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
def test_rules_of_affine_select(rule: Rule) -> None:
    check_rule(rule)


# `range_select`: which elements it takes, what the others become, and the maximum that it leaves in the registers.

COMMAND = nisa.reduce_cmd

RANGE_COMPARISONS = {
    "equal": lambda x, y: x == y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
}


LOW = float(np.finfo(np.float32).min)
DATA = np.array([[1, -2, 3, 0.5], [-4, -5, -6, -7]], np.float32)


def ranged(data: Any, low: Any, high: Any, result: Result | None = None, res: Any = nl.float32, **options: Any) -> Any:
    """`dst` and `reduce_res` with the elements from `low` up to, but not with, `high`."""

    def body(dst: Any, res: Any, data: Any, low: Any, high: Any) -> None:
        nisa.range_select(dst, data, nl.greater_equal, nl.less, low, high, reduce_res=res, **options)

    array = data.array if isinstance(data, Tile) else data
    buffer = result.buffer if result else nl.sbuf
    return run(body, [data, low, high], result or Result(array.shape), Result((array.shape[0], 1), res, buffer))


def test_takes_a_range_of_each_partition_and_its_maximum() -> None:
    selected, largest = ranged(DATA, column(1, 0), column(3, 2))
    assert selected.tolist() == [[LOW, -2, 3, LOW], [-4, -5, LOW, LOW]]
    assert largest.tolist() == [[3], [-4]]


def test_counts_from_range_start() -> None:
    selected, largest = ranged(DATA, column(101, 103), column(103, 200), range_start=100)
    assert selected.tolist() == [[LOW, -2, 3, LOW], [LOW, LOW, LOW, -7]]
    assert largest.tolist() == [[3], [-7]]


@pytest.mark.parametrize("name0", RANGE_COMPARISONS)
@pytest.mark.parametrize("name1", RANGE_COMPARISONS)
def test_comparisons_with_a_range(name0: str, name1: str) -> None:
    """The index is the left operand of both, and both must hold."""
    data = numbered(1, 6)
    selected = run(
        lambda dst, data, bound0, bound1: nisa.range_select(
            dst, data, getattr(nl, name0), getattr(nl, name1), bound0, bound1
        ),
        [data, column(2), column(3)],
        Result((1, 6)),
    )
    takes = [RANGE_COMPARISONS[name0](k, 2) and RANGE_COMPARISONS[name1](k, 3) for k in range(6)]
    assert selected.tolist() == [[x if take else LOW for x, take in zip(data[0].tolist(), takes, strict=True)]]


def test_bounds_are_compared_in_float32() -> None:
    """Between two indices, infinite, and NaN, with which no comparison holds."""
    data = numbered(4, 3)
    selected, largest = ranged(data, column(0.5, -np.inf, np.nan, 0), column(1.5, np.inf, 9, np.nan))
    assert selected.tolist() == [[LOW, 2, LOW], [4, 5, 6], [LOW] * 3, [LOW] * 3]
    assert largest.tolist() == [[2], [6], [LOW], [LOW]]


def test_of_several_free_dimensions_and_strides() -> None:
    def body(dst: Any, res: Any, data: Any, low: Any, high: Any) -> None:
        nisa.memset(dst, 7)
        nisa.range_select(
            dst[:, :, 0], data[:, 0::2], nl.greater_equal, nl.less, low[:, 1:2], high[:, 0:1], reduce_res=res
        )

    bounds = np.array([[9, 1], [9, 2]], np.float32)
    selected, largest = run(body, [numbered(2, 6), bounds, bounds], Result((2, 3, 2)), Result((2, 1)))
    assert selected.tolist() == [[[LOW, 7], [3, 7], [5, 7]], [[LOW, 7], [LOW, 7], [11, 7]]]
    assert largest.tolist() == [[5], [11]]


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float32, nl.tfloat32, nl.float8_e4m3, nl.float8_e5m2])
def test_types_of_on_true_tile(dtype: Any) -> None:
    selected, largest = ranged(Tile(numbered(1, 4), dtype), column(1), column(3))
    assert selected.tolist() == [[LOW, 2, 3, LOW]]
    assert largest.tolist() == [[3]]


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float8_e4m3, nl.float8_e5m2])
def test_fills_narrower_types_with_minus_infinity_but_keeps_a_finite_maximum(dtype: Any) -> None:
    """The type of reduce_res has to be float32, so that exp(-inf - FP32_MIN) is 0 and not NaN."""
    selected, largest = ranged(numbered(1, 3), column(5), column(9), Result((1, 3), dtype))
    assert selected.astype(np.float32).tolist() == [[-np.inf] * 3]
    assert largest.tolist() == [[LOW]]
    _, narrow = ranged(numbered(1, 3), column(5), column(9), Result((1, 3), dtype), dtype)
    assert narrow.astype(np.float32).tolist() == [[-np.inf]]


def test_reduces_before_it_casts() -> None:
    """257 is no bfloat16; int8 holds up to 127."""
    data = np.array([[257, 1]], np.float32)
    for dtype, expected in ((nl.bfloat16, 256), (nl.int8, 127)):
        selected, largest = ranged(data, column(0), column(2), Result((1, 2), dtype))
        assert selected.astype(np.float32).tolist() == [[expected, 1]]
        assert largest.tolist() == [[257]]


@pytest.mark.parametrize("source", [nl.sbuf, PSUM])
@pytest.mark.parametrize("bound", [nl.sbuf, PSUM])
@pytest.mark.parametrize("target", [nl.sbuf, PSUM])
def test_memories(source: Any, bound: Any, target: Any) -> None:
    bounds = [Tile(column(1, 0), buffer=bound), Tile(column(3, 2), buffer=bound)]
    selected, largest = ranged(Tile(DATA, buffer=source), *bounds, Result((2, 4), buffer=target))
    assert selected.tolist() == [[LOW, -2, 3, LOW], [-4, -5, LOW, LOW]]
    assert largest.tolist() == [[3], [-4]]


@pytest.mark.parametrize("shift", [0, 1])
def test_range_select_may_write_over_its_input(shift: int) -> None:
    def body(dst: Any, data: Any, low: Any, high: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.range_select(dst[:, shift:], dst[:, : 4 - shift], nl.greater_equal, nl.less, low, high)

    selected = run(body, [DATA, column(1, 0), column(3, 2)], Result((2, 4)))
    expected = [[LOW, -2, 3, LOW], [-4, -5, LOW, LOW]]
    if shift:
        expected = [[1, LOW, -2, 3], [-4, -4, -5, LOW]]
    assert selected.tolist() == expected


def test_may_write_over_its_bounds() -> None:
    """The bounds 1 and 3 lie in columns 0 and 3 of dst itself."""

    def body(dst: Any, data: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.range_select(dst, dst, nl.greater_equal, nl.less, dst[:, 0:1], dst[:, 3:4])

    assert run(body, [np.array([[1, 5, 6, 3]], np.float32)], Result((1, 4))).tolist() == [[LOW, 5, 6, LOW]]


def test_works_in_blocks_of_rows() -> None:
    """Each partition has bounds of its own, also in the later blocks."""
    data = np.tile(np.arange(WIDE, dtype=np.float32), (128, 1))
    low = np.arange(128, dtype=np.float32).reshape(128, 1)
    high = WIDE - 2 * low
    selected, largest = ranged(data, low, high)
    assert ((selected > LOW).sum(axis=1) == WIDE - 3 * np.arange(128)).all()
    assert (largest == high - 1).all()
    assert all(selected[p, p] == p and (selected[p, :p] == LOW).all() for p in (0, 1, 60, 127))


@given(st.sampled_from([1, 5, 128]), st.integers(1, 30), st.integers(-50, 50), st.integers(0, 99))
def test_of_any_range(partitions: int, columns: int, start: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = normal(partitions, columns, seed=seed)
    bounds = start + rng.integers(-2, columns + 2, (2, partitions, 1)).astype(np.float32)
    selected, largest = ranged(data, bounds[0], bounds[1], range_start=start)
    for p in range(partitions):
        row = [x if bounds[0, p, 0] <= start + k < bounds[1, p, 0] else LOW for k, x in enumerate(data[p].tolist())]
        assert selected[p].tolist() == row
        assert largest[p, 0] == max(row)


# -- the registers -------------------------------------------------------------------------------------


def test_chains_its_maximum_through_the_registers() -> None:
    """Only the last call reads the registers; a reset restarts the maximum."""

    def body(results: Any, data: Any, low: Any, high: Any) -> None:
        def step(start: int, command: Any, number: int | None = None) -> None:
            res = None if number is None else results[:, number]
            nisa.range_select(
                tile(2, 4), data, nl.greater_equal, nl.less, low, high, command, res, nl.maximum, start, FP32_MIN
            )

        step(0, COMMAND.reset_reduce)  # 3, -4
        step(1, COMMAND.reduce)  # column 1 only, or none
        step(2, COMMAND.reduce, 0)
        step(2, COMMAND.reset_reduce, 1)
        step(9, COMMAND.reduce, 2)

    results = run(body, [DATA, column(2, 0), column(3, 2)], Result((2, 3)))
    assert results.tolist() == [[3, 1, 1], [-4, LOW, LOW]]


def test_resets_and_accumulates_by_default() -> None:
    """Whatever the registers held; and without reduce_res they hold the maximum for the next instruction."""

    def body(result: Any, data: Any, low: Any, high: Any) -> None:
        nisa.tensor_scalar_reduce(tile(2, 4), tile(2, 4, value=100), nl.add, 0, nl.max)
        nisa.range_select(tile(2, 4), data, nl.greater_equal, nl.less, low, high)
        nisa.tensor_scalar_reduce(
            tile(2, 4), tile(2, 4, value=-9), nl.add, 0, nl.max, result, reduce_cmd=COMMAND.reduce
        )

    assert run(body, [DATA, column(0, 0), column(4, 4)], Result((2, 1))).tolist() == [[3], [-4]]


def ranged_with(command: Any) -> None:
    """Run a range_select with this command, in a kernel."""
    nisa.range_select(tile(2, 2), tile(2, 2), nl.greater_equal, nl.less, tile(2, 1), tile(2, 1), command)


@pytest.mark.parametrize(
    "body",
    [
        lambda: ranged_with(COMMAND.reduce),
        lambda: (ranged_with(COMMAND.reset_reduce), ranged_with(COMMAND.idle), ranged_with(COMMAND.reduce)),
    ],
    ids=["at first", "after idle"],
)
def test_refuses_to_continue_from_undefined_registers(body: Any) -> None:
    with pytest.raises(nkilib.simulator.UninitializedReadError) as caught:
        execute(body)
    assert str(caught.value).endswith(
        "nisa.range_select: reduce_cmd=reduce continues from accumulator registers that hold no defined value; start "
        "with reset_reduce"
    )


def test_idle_selects_all_the_same() -> None:
    def body() -> Any:
        result, high = nl.ndarray((2, 2), nl.float32), tile(2, 1, value=1)
        nisa.range_select(
            result, tile(2, 2, value=3), nl.greater_equal, nl.less, tile(2, 1), high, reduce_cmd=COMMAND.idle
        )
        return store(result)

    assert execute(body).tolist() == [[3, LOW], [3, LOW]]


# -- rules ---------------------------------------------------------------------------------------------


# The operands of a call that is legal.
LEGAL = {
    "dst": Sbuf(2, 2),
    "on_true_tile": Sbuf(2, 2),
    "bound0": Sbuf(2, 1),
    "bound1": Sbuf(2, 1),
    "comp_op0": nl.greater_equal,
    "comp_op1": nl.less,
}
COMPARED_BY = "nl.equal, nl.less, nl.less_equal, nl.greater, nl.greater_equal"
LOWEST = "on_false_value must be the lowest float32, -3.4028235e+38, got {on_false_value}"
EXACT = "range_start plus the index of an element must be within 2^24, where float32 is exact, got {} to {}"


@rules(
    legal(nisa.range_select, **LEGAL),
    broken("comp_op0", comp_op0=nl.not_equal)
    .says(f"comp_op0 must be one of {COMPARED_BY}, got nl.not_equal")
    .fixed(comp_op0=nl.equal),
    broken("comp_op1", comp_op1=nl.add)
    .says(f"comp_op1 must be one of {COMPARED_BY}, got nl.add")
    .fixed(comp_op1=nl.greater),
    broken("integers", on_true_tile=Sbuf(2, 2, dtype=nl.int32))
    .says(one_type("on_true_tile", FLOATS))
    .fixed(dst=Sbuf(2, 2, dtype=nl.int32), on_true_tile=Sbuf(2, 2)),
    broken("type of bound0", bound0=Sbuf(2, 1, dtype=nl.int32)).says(one_type("bound0", "float32")),
    broken("type of bound1", bound1=Sbuf(2, 1, dtype=nl.bfloat16)).says(one_type("bound1", "float32")),
    broken("bound0 is a tile", bound0=0.0).says("operand 'bound0' must be a tensor, got 0.0"),
    broken("shape of bound1", bound1=Sbuf(2, 2))
    .says(one_each("bound1", "on_true_tile"))
    .fixed(bound1=Sbuf(2, 2)[:, 0:1]),
    broken("partitions of bound0", bound0=Sbuf(1, 1))
    .says(one_each("bound0", "on_true_tile"))
    .fixed(bound0=Sbuf(32, 1)[0:2]),
    broken("size", dst=Sbuf(2, 3)).says(same_elements("dst", "on_true_tile")).fixed(dst=Sbuf(2, 3)[:, 1:3]),
    broken("on_false_value", on_false_value=-1e30).says(LOWEST).fixed(on_false_value=np.finfo(np.float32).min),
    broken("minus infinity", on_false_value=float("-inf")).says(LOWEST).fixed(on_false_value=FP32_MIN),
    broken("no on_false_value", on_false_value=None).says("on_false_value must be a compile-time number, got None"),
    broken("reduce_op", reduce_op=nl.add).says("reduce_op must be nl.maximum, got nl.add").fixed(reduce_op=nl.max),
    broken("reset", reduce_cmd=COMMAND.reset)
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, got <reduce_cmd.reset: 1>")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("load_reduce", reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, got <reduce_cmd.load_reduce: 4>")
    .fixed(reduce_cmd=COMMAND.idle),
    broken("nothing to read", reduce_cmd=COMMAND.idle, reduce_res=Sbuf(2, 1))
    .says("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("shape of reduce_res", reduce_res=Sbuf(2, 2))
    .says(one_each("reduce_res", "on_true_tile"))
    .fixed(reduce_res=Sbuf(2, 1)),
    broken("fractional start", range_start=0.5)
    .says("range_start must be a compile-time integer, got 0.5")
    .fixed(range_start=np.int64(3)),
    broken("start beyond 2^24", range_start=2**24).says(EXACT.format(16777216, 16777217)).fixed(range_start=2**24 - 1),
    broken("start before -2^24", range_start=-(2**24) - 1)
    .says(EXACT.format(-16777217, -16777216))
    .fixed(range_start=-(2**24)),
    broken("generation", on="trn1").says(needs("gen3", "trn1 (gen2)")),
)
def test_rules_of_range_select(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_runs_on_the_vector_engine(target: str) -> None:
    assert engine_of(lambda: nisa.range_select(**in_kernel(LEGAL)), target) == "vector"
