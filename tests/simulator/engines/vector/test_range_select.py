# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`range_select`: which elements it takes, what the others become, and the maximum that it leaves in the registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import (
    WIDE,
    Result,
    Tile,
    column,
    engine_of,
    execute,
    normal,
    numbered,
    run,
    store,
    tile,
)
from ...made import Sbuf, in_kernel
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import FLOATS, needs, one_each, one_type, same_elements

COMMAND = nisa.reduce_cmd
PSUM = nl.psum
FP32_MIN = -3.4028235e38  # rounds to the lowest float32

COMPARISONS = {
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


@pytest.mark.parametrize("name0", COMPARISONS)
@pytest.mark.parametrize("name1", COMPARISONS)
def test_comparisons(name0: str, name1: str) -> None:
    """The index is the left operand of both, and both must hold."""
    data = numbered(1, 6)
    selected = run(
        lambda dst, data, bound0, bound1: nisa.range_select(
            dst, data, getattr(nl, name0), getattr(nl, name1), bound0, bound1
        ),
        [data, column(2), column(3)],
        Result((1, 6)),
    )
    takes = [COMPARISONS[name0](k, 2) and COMPARISONS[name1](k, 3) for k in range(6)]
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
def test_may_write_over_its_input(shift: int) -> None:
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
def test_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_runs_on_the_vector_engine(target: str) -> None:
    assert engine_of(lambda: nisa.range_select(**in_kernel(LEGAL)), target) == "vector"
