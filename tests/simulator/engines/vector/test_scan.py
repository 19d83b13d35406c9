# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_tensor_scan` and `tensor_scalar_cumulative`: the documented recurrences, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import (
    Body,
    Result,
    Tile,
    column,
    engine_of,
    execute,
    normal,
    refusal,
    run,
    store,
    tile,
)
from ...made import Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import not_both_in_psum, one_each, one_type, same_elements, same_partitions

COMMAND = nisa.reduce_cmd
PSUM = nl.psum

A = np.array([[2, -1, 3, 0.5], [1, 0, -2, 4]], np.float32)
B = np.array([[1, 2, -3, 4], [5, -6, 7, 8]], np.float32)

# The binary arithmetic operators in Python.
PYTHON: dict[str, Callable[[float, float], float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": max,
    "max": max,
    "minimum": min,
    "min": min,
    "equal": lambda x, y: float(x == y),
    "not_equal": lambda x, y: float(x != y),
    "greater_equal": lambda x, y: float(x >= y),
    "greater": lambda x, y: float(x > y),
    "less_equal": lambda x, y: float(x <= y),
    "less": lambda x, y: float(x < y),
    "logical_and": lambda x, y: float(bool(x) and bool(y)),
    "logical_or": lambda x, y: float(bool(x) or bool(y)),
    "logical_xor": lambda x, y: float(bool(x) != bool(y)),
    "power": lambda x, y: float(x**y),
    "abs_max": lambda x, y: x if abs(x) > abs(y) else y,
    "abs_min": lambda x, y: x if abs(x) < abs(y) else y,
}


# -- tensor_tensor_scan ----------------------------------------------------------------------------------------------


def scan(data0: Any, data1: Any, initial: Any, op0: Any, op1: Any, result: Result | None = None, **options: Any) -> Any:
    """Return what `tensor_tensor_scan` leaves; arrays or `Tile`s become tiles, a number stays one."""
    columns = [initial] if isinstance(initial, np.ndarray | Tile) else []

    def body(dst: Any, data0: Any, data1: Any, initial: Any = initial) -> None:
        nisa.tensor_tensor_scan(dst, data0, data1, initial, op0, op1, **options)

    shape = data0.array.shape if isinstance(data0, Tile) else data0.shape
    return run(body, [data0, data1, *columns], result or Result(shape))


def stepped(data0: Any, data1: Any, initial: Any, op0: str, op1: str, reverse0: bool, reverse1: bool) -> Any:
    """The documented recurrence with Python numbers, which are float64."""
    rows = []
    for xs, ys, state in zip(data0.tolist(), data1.tolist(), initial, strict=True):
        row = []
        for x, y in zip(xs, ys, strict=True):
            middle = PYTHON[op0](state, x) if reverse0 else PYTHON[op0](x, state)
            state = PYTHON[op1](y, middle) if reverse1 else PYTHON[op1](middle, y)
            row.append(state)
        rows.append(row)
    return rows


def test_scan_by_hand() -> None:
    """state = a * state + b from 10: 2 * 10 + 1 = 21, -1 * 21 + 2 = -19, 3 * -19 - 3 = -60, 0.5 * -60 + 4 = -26."""
    result = scan(A, B, 10.0, nl.multiply, nl.add)
    assert result.tolist() == [[21, -19, -60, -26], [15, -6, 19, 84]]


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
@pytest.mark.parametrize("operators", [("subtract", "multiply"), ("multiply", "subtract"), ("subtract", "subtract")])
def test_scan_reverses_the_operands(operators: Any, reverse0: bool, reverse1: bool) -> None:
    op0, op1 = operators
    result = scan(A, B, 3.0, getattr(nl, op0), getattr(nl, op1), reverse0=reverse0, reverse1=reverse1)
    assert result.tolist() == stepped(A, B, (3.0, 3.0), op0, op1, reverse0, reverse1)


def test_scan_reversals_by_hand() -> None:
    """One step with data0 = 2, data1 = 5 and the state 3: 2 - 3, 3 - 2, then minus 5 or from 5."""
    results = {
        (reverse0, reverse1): scan(
            column(2), column(5), 3.0, nl.subtract, nl.subtract, reverse0=reverse0, reverse1=reverse1
        ).item()
        for reverse0 in (False, True)
        for reverse1 in (False, True)
    }
    assert results == {(False, False): -6, (True, False): -4, (False, True): 6, (True, True): 4}


@pytest.mark.parametrize("name", PYTHON)
@pytest.mark.parametrize("place", ["op0", "op1"])
def test_scan_takes_every_binary_arithmetic_operator(name: str, place: str) -> None:
    """The values are small powers of 2 and their negatives, so that every operator is exact in float32."""
    data0, data1 = np.array([[2, 1, 0.5, 2]], np.float32), np.array([[1, 2, 2, 1]], np.float32)
    op0, op1 = (name, "add") if place == "op0" else ("multiply", name)
    result = scan_on_trn3(data0, data1, 2.0, getattr(nl, op0), getattr(nl, op1))
    assert result == pytest.approx(np.array(stepped(data0, data1, (2.0,), op0, op1, False, False)), rel=1e-6)


def scan_on_trn3(data0: Any, data1: Any, initial: float, op0: Any, op1: Any) -> Any:
    """Do the same as :func:`scan` on the generation that has every operator."""
    return run(
        lambda dst, x, y: nisa.tensor_tensor_scan(dst, x, y, initial, op0, op1),
        [data0, data1],
        Result(data0.shape),
        target="trn3",
    )


@pytest.mark.parametrize("buffer", [nl.sbuf, PSUM])
@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.int32])
def test_scan_starts_from_a_number_for_each_partition(buffer: Any, dtype: Any) -> None:
    result = scan(A, B, Tile(column(10, -100), dtype, buffer), nl.add, nl.add)
    assert result.tolist() == [[13, 14, 14, 18.5], [-94, -100, -95, -83]]


def test_scan_of_several_free_dimensions_runs_on_in_row_major_order() -> None:
    ones = np.ones((1, 6), np.float32)
    result = run(
        lambda dst, x, y: nisa.tensor_tensor_scan(dst, x, y.reshape((1, 2, 3)), 0.0, nl.multiply, nl.add),
        [ones, np.arange(6, dtype=np.float32).reshape(1, 6)],
        Result((1, 3, 2)),
    )
    assert result.tolist() == [[[0, 1], [3, 6], [10, 15]]]


def test_scan_of_strided_views_leaves_the_rest_of_dst_alone() -> None:
    def body(dst: Any, x: Any, y: Any) -> None:
        nisa.memset(dst, 7)
        nisa.tensor_tensor_scan(dst[:, 1::2], x[:, 0::2], y[:, 2:4], 1.0, nl.multiply, nl.add)

    assert run(body, [A, B], Result((2, 4))).tolist() == [[7, -1, 7, 1], [7, 8, 7, -8]]


def test_scan_keeps_its_state_in_float32_whatever_the_types() -> None:
    """A bfloat16 state would stop at 256, a float32 one counts on; dst rounds to nearest even."""
    ones = Tile(np.ones((1, 300), np.float32), nl.bfloat16)
    result = scan(ones, ones, 0.0, nl.multiply, nl.add, Result((1, 300), nl.bfloat16)).astype(np.float32)
    assert result[0, [0, 255, 256, 257, 299]].tolist() == [1, 256, 256, 258, 300]


def test_scan_rounds_every_step_to_float32() -> None:
    """2^24 + 1 is no float32: each 1 is lost, where float64 would count them."""
    ones = np.ones((1, 5), np.float32)
    assert scan(ones, ones, 2.0**24, nl.multiply, nl.add).tolist() == [[2.0**24] * 5]
    # Also between the two operators: (1 + 2^24) rounds to 2^24 before 2^24 is taken away.
    assert scan(ones[:, :1], column(2.0**24), 2.0**24, nl.add, nl.subtract).tolist() == [[0]]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (nl.int8, [100, 127, 127]),
        (nl.uint8, [100, 200, 255]),
        (nl.int32, [100, 200, 300]),
        (nl.float16, [100, 200, 300]),
    ],
)
def test_scan_casts_data_and_result(dtype: Any, expected: list[int]) -> None:
    data = np.array([[100, 100, 100]], np.int8)
    result = scan(np.ones((1, 3), np.uint8), data, 0.0, nl.multiply, nl.add, Result((1, 3), dtype))
    assert result.astype(np.float32).tolist() == [expected]


@pytest.mark.parametrize("places", [(nl.sbuf, nl.sbuf), (nl.sbuf, PSUM), (PSUM, nl.sbuf)], ids=str)
@pytest.mark.parametrize("target", [nl.sbuf, PSUM])
def test_scan_memories(places: Any, target: Any) -> None:
    data0, data1 = Tile(A, buffer=places[0]), Tile(B, buffer=places[1])
    result = scan(data0, data1, 10.0, nl.multiply, nl.add, Result((2, 4), buffer=target))
    assert result.tolist() == [[21, -19, -60, -26], [15, -6, 19, 84]]


@pytest.mark.parametrize("place", ["data0", "data1", "both", "initial"])
def test_scan_may_write_over_its_inputs(place: str) -> None:
    def body(dst: Any, x: Any, y: Any) -> None:
        nisa.tensor_copy(dst, y if place == "data1" else x)
        data0 = dst if place in ("data0", "both") else x
        data1 = dst if place in ("data1", "both") else y
        initial = dst[:, 3:4] if place == "initial" else 0.0
        nisa.tensor_tensor_scan(dst, data0, data1, initial, nl.multiply, nl.add)

    expected = stepped(
        A, A if place == "both" else B, (0.5, 4) if place == "initial" else (0, 0), "multiply", "add", 0, 0
    )
    assert run(body, [A, B], Result((2, 4))).tolist() == expected


def test_scan_carries_nan_and_infinity_on() -> None:
    data = np.array([[1, np.inf, 1, 1], [1, np.nan, 1, 1]], np.float32)
    result = scan(np.ones((2, 4), np.float32), data, 0.0, nl.multiply, nl.add)
    assert np.array_equal(result, [[1, np.inf, np.inf, np.inf], [1, np.nan, np.nan, np.nan]], equal_nan=True)


def test_scan_does_not_touch_the_accumulator_registers() -> None:
    def body() -> Any:
        result = nl.ndarray((2, 1), nl.float32)
        nisa.tensor_scalar_reduce(tile(2, 4), tile(2, 4, value=2), nl.add, 0, nl.add)
        nisa.tensor_tensor_scan(tile(2, 4), tile(2, 4, value=1), tile(2, 4, value=1), 5.0, nl.multiply, nl.add)
        nisa.tensor_scalar_reduce(tile(2, 4), tile(2, 4), nl.add, 0, nl.add, result, reduce_cmd=COMMAND.reduce)
        return store(result)

    assert execute(body).tolist() == [[8], [8]]


@given(st.sampled_from([1, 3, 128]), st.integers(1, 50), st.integers(0, 99))
def test_scan_of_any_shape(partitions: int, columns: int, seed: int) -> None:
    """Decays below 1 keep errors from growing: each step rounds twice, by 2^-24 of values below 30."""
    decay = np.random.default_rng(seed).random((partitions, columns)).astype(np.float32)
    data, initial = normal(partitions, columns, seed=seed), normal(partitions, 1, seed=seed + 1)
    result = scan(decay, data, initial, nl.multiply, nl.add)
    state, expected = initial[:, 0].astype(np.float64), np.empty((partitions, columns))
    for k in range(columns):
        expected[:, k] = state = decay[:, k] * state + data[:, k]
    np.testing.assert_allclose(result, expected, rtol=0, atol=columns * 2 * 30 * 2.0**-24)


SCAN: Body = lambda: nisa.tensor_tensor_scan(tile(2, 2), tile(2, 2), tile(2, 2), 0.0, nl.multiply, nl.add)  # noqa: E731


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_scan_runs_on_the_vector_engine_of_every_generation(target: str) -> None:
    assert engine_of(SCAN, target) == "vector"


@rules(
    legal(nisa.tensor_tensor_scan, Sbuf(2, 2), Sbuf(2, 2), Sbuf(2, 2), 0.0, nl.multiply, nl.maximum),
    broken("both in PSUM", data0=Psum(2, 2), data1=Psum(2, 2), op1=nl.add)
    .says(not_both_in_psum("data0", "data1"))
    .fixed(dst=Psum(2, 2), data0=Sbuf(2, 2), initial=Psum(2, 1)),
    broken("size of data1", data1=Sbuf(2, 1), op1=nl.add).says(same_elements("dst", "data1")).fixed(data1=Sbuf(2, 2)),
    broken("size of dst", dst=Sbuf(2, 1), op1=nl.add).says(same_elements("dst", "data0")).fixed(dst=Sbuf(2, 2)),
    broken("partitions", data1=Sbuf(1, 2), op1=nl.add).says(same_partitions("dst", "data1")).fixed(data1=Sbuf(2, 2)),
    broken("initial", initial=Sbuf(2, 2), op1=nl.add).says(one_each("initial", "data0")).fixed(initial=Sbuf(2, 1)),
    broken("no initial", initial=None, op1=nl.add)
    .says("operand 'initial' must be a tensor or a number, got None")
    .fixed(initial=0),
    broken("bit-wise operator", op0=nl.bitwise_or, op1=nl.add)
    .says("op0 must be a binary arithmetic operator such as nl.add, got nl.bitwise_or")
    .fixed(op0=nl.logical_or),
    broken("unary operator", op1=nl.abs).says("op1 must be a binary arithmetic operator such as nl.add, got nl.abs"),
    broken("operator of trn3", op1=nl.abs_max).says("op1=nl.abs_max needs trn3; the target is trn2").fixed(on="trn3"),
)
def test_scan_rules(rule: Rule) -> None:
    check_rule(rule)


# -- tensor_scalar_cumulative ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [[12, 21, 34, 44.5], [21, 41, 59, 83]]),
        ("subtract", [[12, 9 - 12, 13 + 3, 10.5 - 16], [21, 20 - 21, 18 + 1, 24 - 19]]),
        ("multiply", [[12, 108, 1404, 14742], [21, 420, 7560, 181440]]),
        ("max", [[12, 12, 13, 13], [21, 21, 21, 24]]),
        ("min", [[12, 9, 9, 9], [21, 20, 18, 18]]),
        ("maximum", [[12, 12, 13, 13], [21, 21, 21, 24]]),
        ("minimum", [[12, 9, 9, 9], [21, 20, 18, 18]]),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, PSUM])
def test_cumulative(name: str, expected: Any, buffer: Any) -> None:
    """Accumulations of `A + (10 or 20)`. Subtract takes what came before from the new element."""
    result = run(
        lambda dst, src, imm0: nisa.tensor_scalar_cumulative(dst, src, nl.add, getattr(nl, name), imm0),
        [Tile(A, buffer=buffer), Tile(column(10, 20), buffer=buffer)],
        Result((2, 4), nl.float32, buffer),
    )
    assert result.tolist() == expected


@pytest.mark.parametrize("name", [name for name in PYTHON if name != "power"])
def test_cumulative_applies_every_binary_arithmetic_operator_first(name: str) -> None:
    """`src` is the left operand."""
    result = run(
        lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, getattr(nl, name), nl.add, 2.0),
        [A],
        Result((2, 4)),
        target="trn3",
    )
    assert result.tolist() == [np.cumsum([PYTHON[name](x, 2.0) for x in row]).tolist() for row in A.tolist()]


def test_cumulative_power() -> None:
    result = run(
        lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, nl.power, nl.add, 2.0),
        [np.array([[1, 2, 3]], np.float32)],
        Result((1, 3)),
    )
    assert result.tolist() == [[1, 5, 14]]


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "max", "min"])
def test_cumulative_commands(name: str) -> None:
    """reset_reduce starts from the operator's identity, reduce goes on, load_reduce starts from imm1."""
    identity = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "max": -math.inf, "min": math.inf}[name]

    def body(results: Any, data: Any, imm1: Any) -> None:
        def step(number: int, **options: Any) -> None:
            nisa.tensor_scalar_cumulative(results[:, number], data, nl.multiply, getattr(nl, name), 2, **options)

        step(0)
        step(1, reduce_cmd=COMMAND.reset_reduce)
        step(2, reduce_cmd=COMMAND.reduce)
        step(3, imm1=7.0, reduce_cmd=COMMAND.load_reduce)
        step(4, imm1=imm1, reduce_cmd=COMMAND.load_reduce)
        step(5, reduce_cmd=COMMAND.reduce)

    results = run(body, [A, column(-100, 100)], Result((2, 6, 4)))
    for row, imm1, got in zip(A.tolist(), (-100.0, 100.0), results.tolist(), strict=True):
        expected, state = [], identity
        for start in (identity, identity, None, 7.0, imm1, None):
            state = state if start is None else start
            steps = [state := PYTHON[name](2 * x, state) for x in row]
            expected.append(steps)
        assert got == expected


def test_cumulative_ignores_imm1_unless_it_is_loaded() -> None:
    """One call in a chain can therefore pass the same arguments as the others."""

    def body(results: Any, data: Any) -> None:
        nisa.tensor_scalar_cumulative(results[:, 0], data, nl.add, nl.add, 0.0, 100.0, COMMAND.load_reduce)
        nisa.tensor_scalar_cumulative(results[:, 1], data, nl.add, nl.add, 0.0, 100.0, COMMAND.reduce)
        nisa.tensor_scalar_cumulative(results[:, 2], data, nl.add, nl.add, 0.0, 100.0, COMMAND.reset_reduce)

    results = run(body, [A[:1]], Result((1, 3, 4)))
    assert results.tolist() == [[[102, 101, 104, 104.5], [106.5, 105.5, 108.5, 109], [2, 1, 4, 4.5]]]


def test_cumulative_shares_the_registers_with_the_other_instructions_of_the_engine() -> None:
    """It continues from a reduction, and a reduction continues from it: the registers hold its last result."""

    def body(result: Any, reduced: Any, data: Any) -> None:
        nisa.tensor_scalar_reduce(tile(2, 4), data, nl.add, 0, nl.add)
        nisa.tensor_scalar_cumulative(result, data, nl.add, nl.add, 0.0, reduce_cmd=COMMAND.reduce)
        nisa.tensor_scalar_reduce(tile(2, 4), data, nl.add, 0, nl.max, reduced, reduce_cmd=COMMAND.reduce)

    result, reduced = run(body, [A], Result((2, 4)), Result((2, 1)))
    assert result.tolist() == [[6.5, 5.5, 8.5, 9], [4, 4, 2, 6]]
    assert reduced.tolist() == [[9], [6]]


def test_cumulative_uses_the_registers_of_its_own_partitions() -> None:
    def body(result: Any, data: Any) -> None:
        moved = tile(34, 4)
        nisa.tensor_copy(moved[32:34], data)
        nisa.tensor_scalar_cumulative(tile(2, 4), moved[32:34], nl.add, nl.add, 10.0)
        nisa.tensor_scalar_cumulative(tile(2, 4), data, nl.add, nl.add, 0.0)
        nisa.tensor_scalar_cumulative(result, moved[32:34], nl.add, nl.add, 0.0, reduce_cmd=COMMAND.reduce)

    assert run(body, [A], Result((2, 4))).tolist() == [[46.5, 45.5, 48.5, 49], [44, 44, 42, 46]]


def test_cumulative_refuses_to_continue_from_undefined_registers() -> None:
    def body() -> None:
        nisa.tensor_scalar_cumulative(tile(2, 2), tile(2, 2), nl.add, nl.add, 0.0, reduce_cmd=COMMAND.reduce)

    assert refusal(body, error=nkilib.simulator.UninitializedReadError) == (
        "nisa.tensor_scalar_cumulative: reduce_cmd=reduce continues from accumulator registers that hold no defined "
        "value; start with reset_reduce"
    )


CUMULATIVE_FLOATS = [nl.bfloat16, nl.float16, nl.float32, nl.float8_e4m3, nl.float8_e4m3fn, nl.float8_e5m2]


@pytest.mark.parametrize("dtype", [*CUMULATIVE_FLOATS, nl.uint8, nl.uint16, nl.int8, nl.int16])
def test_cumulative_types(dtype: Any) -> None:
    result = run(
        lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, nl.multiply, nl.add, 2.0),
        [Tile(np.array([[1, 2, 1, 0]], np.float32), dtype)],
        Result((1, 4), dtype),
    )
    assert result.astype(np.float32).tolist() == [[2, 6, 8, 8]]


def test_cumulative_keeps_its_state_in_float32() -> None:
    """300 times 0.5: a state of int8 would stay 0, one of bfloat16 at 128."""
    result = run(
        lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, nl.multiply, nl.add, 0.5),
        [np.ones((1, 300), np.int8)],
        Result((1, 300), nl.int8),
    )
    assert result[0, [0, 1, 2, 3, 199, 254, 299]].tolist() == [0, 1, 2, 2, 100, 127, 127]


def test_cumulative_of_several_free_dimensions_and_strides() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.memset(dst, -1)
        nisa.tensor_scalar_cumulative(dst[:, :, 0], src[:, 1::2], nl.add, nl.add, 0.0)

    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    assert run(body, [data], Result((2, 3, 2))).tolist() == [
        [[1, -1], [4, -1], [9, -1]],
        [[7, -1], [16, -1], [27, -1]],
    ]


@pytest.mark.parametrize("place", ["imm0", "imm1"])
def test_cumulative_may_write_over_its_inputs(place: str) -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.tensor_copy(dst, src)
        vector = dst[:, 2:3]
        imm0, imm1 = (vector, 0.0) if place == "imm0" else (0.0, vector)
        nisa.tensor_scalar_cumulative(dst, dst, nl.add, nl.add, imm0, imm1, COMMAND.load_reduce)

    expected = {"imm0": [[5, 7, 13, 16.5], [-1, -3, -7, -5]], "imm1": [[5, 4, 7, 7.5], [-1, -1, -3, 1]]}[place]
    assert run(body, [A], Result((2, 4))).tolist() == expected


@given(st.sampled_from([1, 128]), st.integers(1, 60), st.sampled_from(["add", "subtract", "max", "min"]))
def test_cumulative_of_any_shape(partitions: int, columns: int, name: str) -> None:
    """Sums of eighths below 2^10 are exact in float32."""
    data = (normal(partitions, columns, seed=columns) * 8).round() / 8
    result = run(
        lambda dst, src: nisa.tensor_scalar_cumulative(dst, src, nl.subtract, getattr(nl, name), 0.125),
        [data],
        Result((partitions, columns)),
    )
    shifted = data.astype(np.float64) - 0.125
    if name == "subtract":  # x - (previous) = (-1)^i times the sum of (-1)^i x
        signs = (-1.0) ** np.arange(columns)
        expected = np.cumsum(shifted * signs, axis=1) * signs
    else:
        expected = {"add": np.add, "max": np.maximum, "min": np.minimum}[name].accumulate(shifted, axis=1)
    assert (result == expected).all()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_cumulative_runs_on_the_vector_engine_of_every_generation(target: str) -> None:
    assert (
        engine_of(lambda: nisa.tensor_scalar_cumulative(tile(2, 2), tile(2, 2), nl.add, nl.add, 0.0), target)
        == "vector"
    )


TYPES = (
    "bfloat16, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int16, int8, uint16, uint8"
)


@rules(
    legal(nisa.tensor_scalar_cumulative, dst=Sbuf(2, 2), src=Sbuf(2, 2), op0=nl.add, op1=nl.add, imm0=0.0),
    *(
        broken(f"{operand} of {dtype}", **{operand: Sbuf(2, 2, dtype=dtype)}).says(one_type(operand, TYPES))
        for dtype in (nl.int32, nl.uint32, nl.tfloat32)
        for operand in ("dst", "src")
    ),
    broken("op0", op0=nl.bitwise_and, imm0=0)
    .says("op0 must be a binary arithmetic operator such as nl.add, got nl.bitwise_and")
    .fixed(op0=nl.logical_and),
    broken("op1", op1=nl.logical_or)
    .says("op1 must be nl.add, nl.subtract, nl.multiply, nl.max or nl.min, got nl.logical_or")
    .fixed(op0=nl.logical_or, op1=nl.add),
    broken("type of imm0", imm0=Sbuf(2, 1, dtype=nl.bfloat16)).says(one_type("imm0", "float32")).fixed(imm0=Sbuf(2, 1)),
    broken("shape of imm0", imm0=Sbuf(2, 2)).says(one_each("imm0", "src")).fixed(imm0=Sbuf(2, 2)[:, 1:2]),
    broken("no imm0", imm0=None).says("operand 'imm0' must be a tensor or a number, got None").fixed(imm0=0),
    broken("type of imm1", imm1=Sbuf(2, 1, dtype=nl.float16), reduce_cmd=COMMAND.load_reduce)
    .says(one_type("imm1", "float32"))
    .fixed(imm1=Sbuf(2, 1)),
    broken("load_reduce without imm1", reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd=load_reduce needs imm1, with which the accumulation starts")
    .fixed(imm1=1),
    broken("size", src=Sbuf(2, 3)).says(same_elements("dst", "src")),
    *(
        broken(command.name, reduce_cmd=command)
        .says(f"reduce_cmd must be one of reset_reduce, reduce, load_reduce, got {command!r}")
        .fixed(reduce_cmd=COMMAND.reset_reduce)
        for command in (COMMAND.idle, COMMAND.reset)
    ),
)
def test_cumulative_rules(rule: Rule) -> None:
    check_rule(rule)
