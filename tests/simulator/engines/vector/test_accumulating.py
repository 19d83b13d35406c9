# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`tensor_scalar_reduce`, `select_reduce`, `exponential`, the reduction of `scalar_tensor_tensor`, and the accumulator
registers that they share."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import (
    WIDE,
    Body,
    Result,
    Tile,
    column,
    engine_of,
    execute,
    normal,
    refusal,
    run,
    tile,
)
from ...made import Psum, Sbuf
from ...rules import LEFT_OUT, Rule, broken, check_rule, legal, rules
from ...sentences import (
    FLOATS,
    fewer_dimensions,
    must,
    needs,
    not_both_in_psum,
    one_each,
    one_type,
    same_elements,
    same_partitions,
)

COMMAND = nisa.reduce_cmd
PSUM = nl.psum
UNINITIALIZED = nkilib.simulator.UninitializedReadError
CONTINUES = "reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with reset_reduce"

INTEGERS = Sbuf(2, 2, dtype=nl.int32)
RANK_4, RANK_5 = Sbuf(2, 1, 1, 2), Sbuf(2, 1, 1, 1, 2)
# The operands of calls that are legal.
REDUCED = {"dst": Sbuf(2, 2), "data": Sbuf(2, 2), "op0": nl.add, "operand0": 1, "reduce_op": nl.add}

DATA = np.array([[1, -2, 3, 0.5], [4, 5, -6, 2]], np.float32)


# -- tensor_scalar_reduce --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", [[2.5 + 40], [5 + 80]]),
        ("multiply", [[11 * 8 * 13 * 10.5], [24 * 25 * 14 * 22]]),
        ("max", [[13], [25]]),
        ("min", [[8], [14]]),
        ("maximum", [[13], [25]]),
        ("minimum", [[8], [14]]),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_tensor_scalar_reduce(name: str, expected: Any, buffer: Any) -> None:
    """`data + (10 or 20)` and its reduction along the free axis."""
    result, reduced = run(
        lambda dst, res, data, operand: nisa.tensor_scalar_reduce(dst, data, nl.add, operand, getattr(nl, name), res),
        [Tile(DATA, buffer=buffer), Tile(column(10, 20), buffer=buffer)],
        Result((2, 4), nl.float32, buffer),
        Result((2, 1), nl.float32, buffer),
    )
    assert result.tolist() == (DATA + column(10, 20)).tolist()
    assert reduced.tolist() == expected


def test_tensor_scalar_reduce_reduces_all_free_axes() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    _, reduced = run(
        lambda dst, res, data: nisa.tensor_scalar_reduce(dst, data, nl.multiply, 2, nl.add, res),
        [values],
        Result((2, 12)),
        Result((2, 1)),
    )
    assert reduced.tolist() == [[2 * 66], [2 * (66 + 144)]]


def test_tensor_scalar_reduce_casts_data_dst_and_reduce_res_each_on_its_own() -> None:
    """300 / 2 ones: the sum of 0.5 is 150 although dst rounds each 0.5 to 0; int8 holds 127 of it."""
    for dtype, expected in ((nl.float32, 150), (nl.bfloat16, 150), (nl.int8, 127)):
        result, reduced = run(
            lambda dst, res, data: nisa.tensor_scalar_reduce(dst, data, nl.multiply, 0.5, nl.add, res),
            [np.ones((1, 300), np.int8)],
            Result((1, 300), nl.int8),
            Result((1, 1), dtype),
        )
        assert (result == 0).all()
        assert reduced == expected


@pytest.mark.parametrize("unused", [None, 0])
def test_tensor_scalar_reduce_with_a_unary_operator(unused: Any) -> None:
    _, reduced = run(
        lambda dst, res, data: nisa.tensor_scalar_reduce(dst, data, nl.abs, unused, nl.add, res),
        [DATA],
        Result((2, 4)),
        Result((2, 1)),
    )
    assert reduced.tolist() == [[6.5], [17]]


def test_tensor_scalar_reduce_negates_what_it_writes_but_not_the_registers() -> None:
    def body(first: Any, second: Any, data: Any) -> None:
        scratch = nl.ndarray((2, 4), nl.float32)
        nisa.tensor_scalar_reduce(scratch, data, nl.add, 0, nl.add, first, reduce_res_negate=True)
        nisa.tensor_scalar_reduce(scratch, data, nl.add, 0, nl.add, second, reduce_cmd=COMMAND.reduce)

    first, second = run(body, [DATA], Result((2, 1)), Result((2, 1)))
    assert first.tolist() == [[-2.5], [-5]]
    assert second.tolist() == [[5], [10]]


@pytest.mark.parametrize("name", ["add", "multiply", "max", "min"])
def test_tensor_scalar_reduce_commands(name: str) -> None:
    """reset_reduce starts from the operator's identity, reduce goes on, load_reduce starts from reduce_init."""
    function = {"add": sum, "multiply": math.prod, "max": max, "min": min}[name]

    def body(results: Any, data: Any, initial: Any) -> None:
        def step(number: int, **options: Any) -> None:
            nisa.tensor_scalar_reduce(
                nl.ndarray((2, 4), nl.float32),
                data,
                nl.multiply,
                2,
                getattr(nl, name),
                results[:, number : number + 1],
                **options,
            )

        step(0)
        step(1, reduce_cmd=COMMAND.reset_reduce)
        step(2, reduce_cmd=COMMAND.reduce)
        step(3, reduce_cmd=COMMAND.load_reduce, reduce_init=7.0)
        step(4, reduce_cmd=COMMAND.load_reduce, reduce_init=initial)
        step(5, reduce_cmd=COMMAND.reduce)

    results = run(body, [DATA, column(-100, 100)], Result((2, 6)))
    for row, initial, got in zip(DATA.tolist(), (-100.0, 100.0), results.tolist(), strict=True):
        doubled = [2 * x for x in row]
        assert got == [
            function(doubled),
            function(doubled),
            function(doubled + doubled),
            function([7.0, *doubled]),
            function([initial, *doubled]),
            function([initial, *doubled, *doubled]),
        ]


@pytest.mark.parametrize(("name", "identity"), [("add", 0.0), ("multiply", 1.0), ("max", -math.inf), ("min", math.inf)])
def test_tensor_scalar_reduce_starts_from_the_identity(name: str, identity: float) -> None:
    """A tile of identities reduces to the identity, whatever the registers held before."""

    def body(result: Any) -> None:
        scratch = nl.ndarray((2, 4), nl.float32)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4, value=5), nl.add, 0, nl.add)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4, value=identity), nl.add, 0, getattr(nl, name), result)

    assert run(body, [], Result((2, 1))).tolist() == [[identity], [identity]]


def test_tensor_scalar_reduce_reads_reduce_init_before_dst_overwrites_it() -> None:
    def body(result: Any, data: Any) -> None:
        nisa.tensor_scalar_reduce(
            data, data, nl.add, 0, nl.add, result, reduce_cmd=COMMAND.load_reduce, reduce_init=data
        )

    assert run(body, [column(3, 4)], Result((2, 1))).tolist() == [[6], [8]]


@rules(
    legal(nisa.tensor_scalar_reduce, **REDUCED),
    broken("bit-wise operator", dst=INTEGERS, data=INTEGERS, op0=nl.bitwise_and, reduce_res=Sbuf(2, 1))
    .says("nl.bitwise_and is a bit-wise operator; only arithmetic operators are supported")
    .fixed(op0=nl.logical_and),
    broken("reduction operator", reduce_op=nl.subtract, reduce_res=Sbuf(2, 1))
    .says("reduce_op must be nl.add, nl.multiply, nl.max or nl.min, got nl.subtract")
    .fixed(op0=nl.subtract, reduce_op=nl.add),
    broken("reverse0", op0=nl.subtract, reverse0=True)
    .says("reverse0=True is not supported by NKI (docstring of tensor_scalar_reduce)")
    .fixed(reverse0=False),
    broken("idle", reduce_cmd=COMMAND.idle)
    .says("reduce_cmd must be one of reset_reduce, reduce, load_reduce, got <reduce_cmd.idle: 0>")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("reset", reduce_cmd=COMMAND.reset).says(
        "reduce_cmd must be one of reset_reduce, reduce, load_reduce, got <reduce_cmd.reset: 1>"
    ),
    broken("reduce_init without load_reduce", reduce_init=0.0)
    .says("reduce_init belongs to reduce_cmd=load_reduce, which needs it")
    .fixed(reduce_cmd=COMMAND.load_reduce),
    broken("load_reduce without reduce_init", reduce_cmd=COMMAND.load_reduce)
    .says("reduce_init belongs to reduce_cmd=load_reduce, which needs it")
    .fixed(reduce_init=Sbuf(2, 1)),
    broken("reduce_init type", reduce_cmd=COMMAND.load_reduce, reduce_init=Sbuf(2, 1, dtype=nl.bfloat16))
    .says(one_type("reduce_init", "float32"))
    .fixed(reduce_init=Sbuf(2, 1)),
    broken("operand type", operand0=Sbuf(2, 1, dtype=nl.float16))
    .says(must("operand0", "be float32 with arithmetic operators"))
    .fixed(data=Sbuf(2, 2, dtype=nl.float16), operand0=Sbuf(2, 1)),
    broken("reduce_res shape", reduce_res=Sbuf(2, 2))
    .says(one_each("reduce_res", "data"))
    .fixed(reduce_res=Sbuf(2, 2)[:, 0:1]),
    broken("size", dst=Sbuf(2, 3)).says(same_elements("dst", "data")),
)
def test_tensor_scalar_reduce_rules(rule: Rule) -> None:
    check_rule(rule)


# -- the reduction of scalar_tensor_tensor ---------------------------------------------------------------------------

OTHER = np.array([[2, 1, 0.5, 4], [1, -1, 2, 0.25]], np.float32)


@pytest.mark.parametrize(("name", "function"), [("add", sum), ("multiply", math.prod), ("max", max), ("min", min)])
def test_scalar_tensor_tensor_reduces_its_result(name: str, function: Any) -> None:
    """`(data * (10 or 20)) - other`; its reduction over both free axes is of the float32 values, dst rounds to int8."""
    result, reduced = run(
        lambda dst, res, data, operand, other: nisa.scalar_tensor_tensor(
            dst, data, nl.multiply, operand, nl.subtract, other, reduce_op=getattr(nl, name), reduce_res=res
        ),
        [DATA.reshape(2, 2, 2), column(10, 20), OTHER],
        Result((2, 4), nl.int8),
        Result((2, 1)),
    )
    exact = (DATA.astype(float) * [[10], [20]] - OTHER).tolist()
    assert result.tolist() == np.clip(np.rint(exact), -128, 127).tolist()
    # Each of the three steps of the reduction may round.
    assert reduced == pytest.approx(np.array([[function(row)] for row in exact]), rel=3 * 2.0**-24)


def test_scalar_tensor_tensor_reduces_in_blocks_of_rows() -> None:
    data, other = normal(128, WIDE), normal(128, WIDE, seed=1)
    _, reduced = run(
        lambda dst, res, data, other: nisa.scalar_tensor_tensor(
            dst, data, nl.add, 1.0, nl.multiply, other, reduce_op=nl.add, reduce_res=res
        ),
        [data, other],
        Result((128, WIDE)),
        Result((128, 1)),
    )
    terms = (data.astype(float) + 1) * other
    # Each term is rounded twice, and each of its WIDE additions once, to 2^-24 of what is there.
    tolerance = (np.abs(terms).sum(axis=1) * 2.0**-24 * 16)[:, None]
    assert (np.abs(reduced - terms.sum(axis=1, keepdims=True)) <= tolerance).all()


def test_scalar_tensor_tensor_adds_where_no_operator_is_given() -> None:
    """The documentation hides the default of reduce_op."""
    _, reduced = run(
        lambda dst, res, data: nisa.scalar_tensor_tensor(dst, data, nl.add, 0, nl.add, data, reduce_res=res),
        [DATA],
        Result((2, 4)),
        Result((2, 1)),
    )
    assert reduced.tolist() == (2 * DATA.sum(axis=1, keepdims=True)).tolist()


def _twice(data: Any, *results: Any) -> None:
    """`data * 2 + 0`, whose reduction by addition goes into each result one after the other."""
    for number, result in enumerate(results):
        command = COMMAND.reduce if number else COMMAND.reset_reduce
        zeros, scratch = tile(2, 4), nl.ndarray((2, 4), nl.float32)
        nisa.scalar_tensor_tensor(
            scratch, data, nl.multiply, 2, nl.add, zeros, reduce_cmd=command, reduce_op=nl.add, reduce_res=result
        )


def test_scalar_tensor_tensor_goes_on_from_the_registers() -> None:
    """Other instructions continue from these registers of the Vector engine as well; None leaves the sum there."""

    def body(second: Any, third: Any, data: Any) -> None:
        _twice(data, None, second)
        nisa.tensor_scalar_reduce(
            nl.ndarray((2, 4), nl.float32), data, nl.add, 0, nl.add, third, reduce_cmd=COMMAND.reduce
        )

    second, third = run(body, [DATA], Result((2, 1)), Result((2, 1)))
    assert second.tolist() == [[10], [20]]
    assert third.tolist() == [[12.5], [25]]


def plain() -> tuple[Any, ...]:
    """Return the arguments that every call of `scalar_tensor_tensor` has: `(zeros + 1) + zeros`."""
    return nl.ndarray((2, 2), nl.float32), tile(2, 2), nl.add, 1, nl.add, tile(2, 2)


@pytest.mark.parametrize(
    "options", [{}, {"reduce_cmd": COMMAND.idle}, {"reduce_cmd": COMMAND.idle, "reduce_op": nl.max}]
)
def test_scalar_tensor_tensor_without_a_reduction_leaves_nothing_defined(options: Any) -> None:
    """No reduction is asked for, as before NKI 0.7, but the registers are no longer what they were."""

    def body() -> None:
        nisa.tensor_scalar_reduce(tile(2, 2), tile(2, 2), nl.add, 0, nl.add)
        nisa.scalar_tensor_tensor(*plain(), **options)
        nisa.tensor_scalar_reduce(tile(2, 2), tile(2, 2), nl.add, 0, nl.add, reduce_cmd=COMMAND.reduce)

    assert refusal(body, error=UNINITIALIZED) == f"nisa.tensor_scalar_reduce: {CONTINUES}"


@rules(
    legal(nisa.scalar_tensor_tensor, Sbuf(2, 2, value=None), Sbuf(2, 2), nl.add, 1, nl.add, Sbuf(2, 2)),
    broken("continues from nothing", error=UNINITIALIZED, reduce_cmd=COMMAND.reduce, reduce_op=nl.add)
    .says(CONTINUES)
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("operator of the reduction", reduce_op=nl.subtract)
    .says("reduce_op must be nl.add, nl.multiply, nl.max or nl.min, got nl.subtract")
    .fixed(reduce_op=nl.maximum),
    broken("command", reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, got <reduce_cmd.load_reduce: 4>")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("nothing to read", reduce_cmd=COMMAND.idle, reduce_res=Sbuf(2, 1))
    .says("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    .fixed(reduce_cmd=LEFT_OUT),
    broken("shape of the reduction", reduce_res=Sbuf(2, 2))
    .says(one_each("reduce_res", "data"))
    .fixed(reduce_res=Sbuf(2, 1)),
    broken("the name, ninth until NKI 0.6", reverse0=False, reverse1=False, reduce_cmd="the name")
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, got 'the name'")
    .fixed(name="the name", reduce_cmd=LEFT_OUT),
)
def test_reduction_of_scalar_tensor_tensor_rules(rule: Rule) -> None:
    check_rule(rule)


# -- select_reduce ---------------------------------------------------------------------------------------------------

PREDICATE = np.array([[1, 0, 0, 2], [0, 1, 1, 0]], np.int8)


@pytest.mark.parametrize(
    ("on_false", "reverse", "expected"),
    [
        (-9.5, False, [[1, -9.5, -9.5, 0.5], [-9.5, 5, -6, -9.5]]),
        (-9.5, True, [[-9.5, -2, 3, -9.5], [4, -9.5, -9.5, 2]]),
        (column(100, 200), False, [[1, 100, 100, 0.5], [200, 5, -6, 200]]),
        (column(100, 200), True, [[100, -2, 3, 100], [4, 200, 200, 2]]),
    ],
)
def test_select_reduce_selects_and_takes_the_maximum(on_false: Any, reverse: bool, expected: Any) -> None:
    def body(dst: Any, res: Any, data: Any, predicate: Any, *others: Any) -> None:
        other = others[0] if others else on_false
        nisa.select_reduce(
            dst, predicate, data, other, reduce_res=res, reduce_cmd=COMMAND.reset_reduce, reverse_pred=reverse
        )

    others = [on_false] if isinstance(on_false, np.ndarray) else []
    selected, largest = run(body, [DATA, PREDICATE, *others], Result((2, 4)), Result((2, 1)))
    assert selected.tolist() == expected
    assert largest.tolist() == [[max(row)] for row in expected]


@pytest.mark.parametrize(
    ("dst_shape", "predicate_shape", "data_shape"),
    [
        ((2, 2, 2), (2, 4), (2, 4)),
        ((2, 4), (2, 1, 4), (2, 4)),
        ((2, 4), (2, 4), (2, 2, 1, 2)),
        ((2, 1, 4), (2, 4), (2, 2, 2)),
    ],
)
def test_select_reduce_takes_tiles_of_unlike_rank(dst_shape: Any, predicate_shape: Any, data_shape: Any) -> None:
    """Since NKI 0.6, of equally many elements in a partition."""
    selected, largest = run(
        lambda dst, res, data, predicate: nisa.select_reduce(
            dst, predicate, data, -9.5, reduce_res=res, reduce_cmd=COMMAND.reset_reduce
        ),
        [DATA.reshape(data_shape), PREDICATE.reshape(predicate_shape)],
        Result(dst_shape),
        Result((2, 1)),
    )
    expected = np.where(PREDICATE != 0, DATA, -9.5)
    assert selected.shape == dst_shape
    assert selected.reshape(2, 4).tolist() == expected.tolist()
    assert largest.tolist() == expected.max(axis=1, keepdims=True).tolist()


@pytest.mark.parametrize("dtype", [nl.int8, nl.uint8, nl.int16, nl.uint16])
def test_select_reduce_predicate_types(dtype: Any) -> None:
    """Any element other than 0 is true."""
    predicate = np.array([[0, 1, 100, 0]], np.int8)
    selected = run(
        lambda dst, data, predicate: nisa.select_reduce(dst, predicate, data, 0.0),
        [DATA[:1], Tile(predicate, dtype)],
        Result((1, 4)),
    )
    assert selected.tolist() == [[0, -2, 3, 0]]


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.float32, nl.int8, nl.uint8, nl.int16, nl.float8_e4m3])
def test_select_reduce_types_of_on_true(dtype: Any) -> None:
    values = np.array([[1, 2, 3, 4]], np.float32)
    selected = run(
        lambda dst, data, predicate: nisa.select_reduce(dst, predicate, data, 7.0),
        [Tile(values, dtype), PREDICATE[:1]],
        Result((1, 4), nl.bfloat16),
    )
    assert selected.tolist() == [[1, 7, 7, 4]]


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16, nl.float16])
def test_select_reduce_types_of_reduce_res(dtype: Any) -> None:
    _, largest = run(
        lambda dst, res, data, predicate: nisa.select_reduce(
            dst, predicate, data, 257.0, reduce_res=res, reduce_cmd=COMMAND.reset_reduce
        ),
        [DATA, PREDICATE],
        Result((2, 4)),
        Result((2, 1), dtype),
    )
    assert largest.tolist() == [[256 if dtype == nl.bfloat16 else 257]] * 2


@pytest.mark.parametrize("places", [(nl.sbuf, nl.sbuf), (nl.psum, nl.sbuf), (nl.sbuf, nl.psum)], ids=str)
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
def test_select_reduce_memories(places: Any, target: Any) -> None:
    selected = run(
        lambda dst, data, predicate: nisa.select_reduce(dst, predicate, data, 0.0),
        [Tile(DATA, buffer=places[0]), Tile(PREDICATE, buffer=places[1])],
        Result((2, 4), nl.float32, target),
    )
    assert selected.tolist() == [[1, 0, 0, 0.5], [0, 5, -6, 0]]


@pytest.mark.parametrize("reverse", [True, 1, 2, np.bool_(True)], ids=repr)
def test_select_reduce_reverses_the_predicate_for_anything_that_is_true(reverse: Any) -> None:
    result = run(
        lambda dst, data, predicate: nisa.select_reduce(dst, predicate, data, -9.0, reverse_pred=reverse),
        [np.array([[1, 2]], np.float32), np.array([[0, 3]], np.uint8)],
        Result((1, 2)),
    )
    assert result.tolist() == [[1, -9]]


def test_select_reduce_may_write_over_its_inputs() -> None:
    def body(result: Any, data: Any, predicate: Any) -> None:
        nisa.select_reduce(data, predicate, data, data[:, 0:1])
        nisa.tensor_copy(result, data)

    assert run(body, [DATA, PREDICATE], Result((2, 4))).tolist() == [[1, 1, 1, 0.5], [4, 5, -6, 4]]


def test_select_reduce_continues_with_reduce_and_starts_again_from_minus_infinity() -> None:
    def body(results: Any, high: Any, low: Any, always: Any) -> None:
        def step(number: int, data: Any, command: Any) -> None:
            column_of_results = results[:, number : number + 1]
            nisa.select_reduce(nl.ndarray((2, 4), nl.float32), always, data, 0.0, column_of_results, reduce_cmd=command)

        step(0, low, COMMAND.reset_reduce)
        step(1, high, COMMAND.reduce)
        step(2, low, COMMAND.reduce)
        step(3, low, COMMAND.reset_reduce)

    always = np.ones((2, 4), np.uint8)
    results = run(body, [DATA, DATA - 1000, always], Result((2, 4)))
    assert results.tolist() == [[-997, 3, 3, -997], [-995, 5, 5, -995]]


def test_select_reduce_of_minus_infinities_is_minus_infinity() -> None:
    largest = run(
        lambda res: nisa.select_reduce(
            tile(2, 2),
            tile(2, 2, dtype=nl.int8),
            tile(2, 2),
            -math.inf,
            reduce_res=res,
            reduce_cmd=COMMAND.reset_reduce,
        ),
        [],
        Result((2, 1)),
    )
    assert largest.tolist() == [[-math.inf], [-math.inf]]


@rules(
    legal(nisa.select_reduce, dst=Psum(2, 2), predicate=Psum(2, 2, dtype=nl.int8), on_true=Sbuf(2, 2), on_false=0.0),
    broken("both in PSUM", dst=Sbuf(2, 2), on_true=Psum(2, 2)).says(not_both_in_psum("on_true", "predicate")),
    legal(nisa.select_reduce, dst=Sbuf(2, 4), predicate=Sbuf(2, 4, dtype=nl.int8), on_true=Sbuf(2, 4), on_false=0.0),
    broken("size", predicate=Sbuf(2, 2, dtype=nl.int8)).says(same_elements("on_true", "predicate")),
    legal(nisa.select_reduce, dst=Sbuf(2, 2), predicate=Sbuf(2, 2, dtype=nl.int8), on_true=Sbuf(2, 2), on_false=0.0),
    broken("type of on_true", on_true=Sbuf(2, 2, dtype=nl.int32))
    .says(
        one_type(
            "on_true",
            "bfloat16, bool, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int16, int8, "
            "uint16, uint8",
        )
    )
    .fixed(on_true=Sbuf(2, 2, dtype=nl.int16)),
    broken("type of the predicate", predicate=Sbuf(2, 2, dtype=nl.int32))
    .says(one_type("predicate", "int16, int8, uint16, uint8"))
    .fixed(predicate=Sbuf(2, 2, dtype=nl.uint16)),
    broken("type of reduce_res", reduce_res=Sbuf(2, 1, dtype=nl.int32), reduce_cmd=COMMAND.reset_reduce)
    .says(one_type("reduce_res", FLOATS))
    .fixed(reduce_res=Sbuf(2, 1, dtype=nl.bfloat16)),
    broken("on_false shape", on_false=Sbuf(2, 2)).says(one_each("on_false", "on_true")).fixed(on_false=Sbuf(2, 1)),
    broken("reduction operator", reduce_op=nl.add)
    .says("reduce_op must be nl.maximum, got nl.add")
    .fixed(reduce_op=nl.max),
    broken("load_reduce", reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, got <reduce_cmd.load_reduce: 4>")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("reduce_res while idle", reduce_res=Sbuf(2, 1))
    .says("reduce_res needs reduce_cmd reset_reduce or reduce: idle leaves nothing to read")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
)
def test_select_reduce_rules(rule: Rule) -> None:
    check_rule(rule)


# -- exponential -----------------------------------------------------------------------------------------------------


def exponential(*arguments: Any, **options: Any) -> Body:
    """A kernel body `(dst, res, src)` that calls `exponential(dst, src, ..., reduce_res=res)`."""
    return lambda dst, res, src: nisa.exponential(dst, src, *arguments, reduce_res=res, **options)


def test_exponential_of_src_minus_a_constant() -> None:
    values = normal(3, 50, scale=3)
    result, sums = run(
        exponential(1.5, reduce_cmd=COMMAND.reset_reduce), [values], Result((3, 50)), Result((3, 1)), target="trn3"
    )
    for row, got, total in zip(values, result, sums[:, 0], strict=True):
        reference = [math.exp(float(x) - 1.5) for x in row]
        assert got.tolist() == pytest.approx(reference, rel=2**-19)  # float32 rounding of the difference, then exp
        assert float(total) == pytest.approx(math.fsum(reference), rel=2**-19)


def test_exponential_of_src_minus_a_maximum_of_each_partition() -> None:
    """The maximum itself gives exactly 1, and nothing overflows."""
    values = np.array([[1000, 1000 - math.log(2), -1e30], [-1000, -1000, -1000]], np.float32)
    result, sums = run(
        lambda dst, res, src, largest: nisa.exponential(dst, src, largest, res, COMMAND.reset_reduce),
        [values, column(1000, -1000)],
        Result((2, 3)),
        Result((2, 1)),
        target="trn3",
    )
    assert result[0].tolist() == pytest.approx([1, 0.5, 0], rel=1e-4)
    assert result[1].tolist() == [1, 1, 1]
    assert sums[:, 0].tolist() == [result[0].sum(), 3]


def test_exponential_of_src_itself_by_default() -> None:
    def body(dst: Any, src: Any) -> None:
        nisa.exponential(dst, src)

    result = run(body, [np.array([[0, 1, -1]], np.int8)], Result((1, 3)), target="trn3")
    assert result[0].tolist() == pytest.approx([1, math.e, 1 / math.e], rel=4 * 2**-23)


@pytest.mark.parametrize(
    "dtype",
    [
        nl.float8_e4m3,
        nl.float8_e5m2,
        nl.float16,
        nl.bfloat16,
        nl.float32,
        nl.tfloat32,
        nl.int8,
        nl.int16,
        nl.int32,
        nl.uint8,
        nl.uint16,
    ],
)
def test_exponential_result_types(dtype: Any) -> None:
    """exp(3) = 20.0855 to the type's nearest; the sum is formed before the cast."""
    nearest = {
        nl.float8_e4m3: 20,
        nl.float8_e5m2: 20,
        nl.float16: 20.078125,
        nl.bfloat16: 20.125,
        nl.tfloat32: 20.078125,
    }
    result, total = run(
        exponential(reduce_cmd=COMMAND.reset_reduce),
        [np.full((1, 2), 3, np.uint32)],
        Result((1, 2), dtype),
        Result((1, 1)),
        target="trn3",
    )
    expected = math.exp(3) if dtype == nl.float32 else nearest.get(dtype, 20)
    assert result.astype(np.float64).tolist() == [pytest.approx([expected, expected], rel=2**-22)]
    assert float(total[0, 0]) == pytest.approx(2 * math.exp(3), rel=2**-20)


def test_exponential_commands() -> None:
    def body(results: Any, zeros: Any, initial: Any) -> None:
        def step(number: int, **options: Any) -> None:
            into = results[:, number : number + 1]
            nisa.exponential(nl.ndarray((2, 4), nl.float32), zeros, reduce_res=into, **options)

        step(0, reduce_cmd=COMMAND.reset_reduce)
        step(1, reduce_cmd=COMMAND.reduce)
        step(2, reduce_cmd=COMMAND.load_reduce, reduce_init=100.0)
        step(3, reduce_cmd=COMMAND.reduce)
        step(4, reduce_cmd=COMMAND.load_reduce, reduce_init=initial)
        step(5, reduce_cmd=COMMAND.load_reduce)
        step(6, reduce_cmd=COMMAND.reset_reduce, reduce_init=0.0)

    results = run(body, [np.zeros((2, 4), np.float32), column(10, 20)], Result((2, 7)), target="trn3")
    assert results.tolist() == [[4, 8, 104, 108, 14, 4, 4], [4, 8, 104, 108, 24, 4, 4]]


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_exponential_in_both_on_chip_memories(buffer: Any) -> None:
    result, total = run(
        lambda dst, res, src, largest: nisa.exponential(dst, src, largest, res, COMMAND.load_reduce, largest),
        [Tile(np.full((2, 3), 7, np.float32), buffer=buffer), Tile(column(7, 7), buffer=buffer)],
        Result((2, 3), nl.float32, buffer),
        Result((2, 1), nl.float32, buffer),
        target="trn3",
    )
    assert result.tolist() == [[1, 1, 1]] * 2
    assert total.tolist() == [[10], [10]]


def test_exponential_takes_three_free_dimensions() -> None:
    values = normal(2, 2, 3, 4)
    result = run(nisa.exponential, [values], Result((2, 24)), target="trn3")
    assert result.tolist() == pytest.approx(np.exp(values.astype(np.float64)).reshape(2, 24), rel=4 * 2**-23)


@rules(
    legal(nisa.exponential, on="trn3", dst=Sbuf(2, 2), src=Sbuf(2, 2)),
    broken("rank of dst of exponential", dst=RANK_5).says(fewer_dimensions("dst", 4)).fixed(dst=RANK_4),
    broken("rank of src of exponential", src=RANK_5).says(fewer_dimensions("src", 4)).fixed(src=RANK_4),
    legal(nisa.tensor_scalar_reduce, on="trn3", **REDUCED),
    broken("rank of dst of tensor_scalar_reduce", dst=RANK_5).says(fewer_dimensions("dst", 4)).fixed(dst=RANK_4),
    broken("rank of data of tensor_scalar_reduce", data=RANK_5).says(fewer_dimensions("data", 4)).fixed(data=RANK_4),
    legal(nisa.exponential, on="trn3", dst=Sbuf(2, 2), src=Sbuf(2, 2)),
    broken("generation", on="trn2").says(needs("gen4", "trn2 (gen3)")),
    broken("the first silicon of trn3", on="trn3pre").says(
        "needs the second silicon of trn3 (nisa.get_nc_sub_version() of 1); the target is trn3_a0: use "
        "nisa.activation(op=nl.exp)"
    ),
    broken("type of dst", dst=Sbuf(2, 2, dtype=nl.uint32))
    .says(
        one_type(
            "dst", "bfloat16, float16, float32, float8_e4m3, float8_e5m2, int16, int32, int8, tfloat32, uint16, uint8"
        )
    )
    .fixed(dst=Sbuf(2, 2, dtype=nl.uint16)),
    broken("type of src", src=Sbuf(2, 2, dtype=nl.tfloat32))
    .says(
        one_type(
            "src", "bfloat16, float16, float32, float8_e4m3, float8_e5m2, int16, int32, int8, uint16, uint32, uint8"
        )
    )
    .fixed(src=Sbuf(2, 2, dtype=nl.uint32)),
    broken("type of reduce_init", reduce_cmd=COMMAND.load_reduce, reduce_init=Sbuf(2, 1, dtype=nl.bfloat16))
    .says(one_type("reduce_init", "float32"))
    .fixed(reduce_init=Sbuf(2, 1)),
    broken("type of max_value", max_value=Sbuf(2, 1, dtype=nl.bfloat16))
    .says(one_type("max_value", "float32"))
    .fixed(max_value=Sbuf(2, 1)),
    broken("type of reduce_res", reduce_res=Sbuf(2, 1, dtype=nl.int32), reduce_cmd=COMMAND.reset_reduce)
    .says(one_type("reduce_res", "bfloat16, float16, float32, float8_e4m3, float8_e5m2, tfloat32"))
    .fixed(reduce_res=Sbuf(2, 1, dtype=nl.tfloat32)),
    broken("shape of max_value", max_value=Sbuf(1, 2)).says(one_each("max_value", "src")).fixed(max_value=Sbuf(2, 1)),
    broken("reduce_init without load_reduce", reduce_cmd=COMMAND.reset_reduce, reduce_init=1.0)
    .says("reduce_init must be 0.0 unless reduce_cmd is load_reduce")
    .fixed(reduce_cmd=COMMAND.load_reduce),
    broken("reset", reduce_cmd=COMMAND.reset)
    .says("reduce_cmd must be one of idle, reset_reduce, reduce, load_reduce, got <reduce_cmd.reset: 1>")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("reduce_res while idle", reduce_res=Sbuf(2, 1))
    .says("reduce_res needs a reduce_cmd other than idle, which leaves nothing to read")
    .fixed(reduce_cmd=COMMAND.reset_reduce),
    broken("partitions", dst=Sbuf(1, 4)).says(same_partitions("dst", "src")),
    broken("elements", dst=Sbuf(2, 3)).says(same_elements("dst", "src")).fixed(dst=Sbuf(2, 4), src=Sbuf(2, 2, 2)),
)
def test_exponential_rules(rule: Rule) -> None:
    check_rule(rule)


# -- the registers ---------------------------------------------------------------------------------------------------


def test_the_instructions_share_the_registers() -> None:
    """4 from tensor_scalar_reduce, 4 more from exponential, and the maximum of that and 5 from select_reduce."""

    def body(results: Any) -> None:
        scratch, always = nl.ndarray((2, 4), nl.float32), tile(2, 4, dtype=nl.int8, value=1)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4), nl.add, 1, nl.add)
        nisa.exponential(scratch, tile(2, 4), reduce_res=results[:, 0:1], reduce_cmd=COMMAND.reduce)
        five = tile(2, 4, value=5)
        nisa.select_reduce(scratch, always, five, 0.0, results[:, 1:2], COMMAND.reduce)
        nine = tile(2, 4, value=9)
        nisa.select_reduce(scratch, always, nine, 0.0, results[:, 2:3], COMMAND.reduce)

    assert run(body, [], Result((2, 3)), target="trn3").tolist() == [[8, 8, 9]] * 2


def test_they_are_not_the_registers_of_the_scalar_engine() -> None:
    def body(result: Any) -> None:
        scratch = nl.ndarray((2, 4), nl.float32)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4), nl.add, 1, nl.add)
        nisa.activation(scratch, nl.exp, tile(2, 4), reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4), nl.add, 1, nl.add, result, reduce_cmd=COMMAND.reduce)

    assert run(body, [], Result((2, 1))).tolist() == [[8], [8]]


def _after_idle(idle: Body) -> Body:
    def kernel() -> None:
        scratch = nl.ndarray((2, 4), nl.float32)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4), nl.add, 1, nl.add)
        idle(scratch)
        nisa.tensor_scalar_reduce(scratch, tile(2, 4), nl.add, 1, nl.add, reduce_cmd=COMMAND.reduce)

    return kernel


@pytest.mark.parametrize(
    "idle",
    [
        lambda scratch: nisa.select_reduce(scratch, tile(2, 4, dtype=nl.int8), tile(2, 4), 0.0),
        lambda scratch: nisa.exponential(scratch, tile(2, 4)),
    ],
    ids=["select_reduce", "exponential"],
)
def test_idle_may_change_the_registers(idle: Body) -> None:
    """The documentation: always use reset_reduce after an operation that ran idle."""
    message = refusal(_after_idle(idle), "trn3", error=UNINITIALIZED)
    assert message == f"nisa.tensor_scalar_reduce: {CONTINUES}"
    execute(_after_idle(lambda scratch: nisa.tensor_copy(scratch, tile(2, 4))), "trn3")


@rules(
    legal(nisa.tensor_scalar_reduce, dst=Sbuf(2, 4), data=Sbuf(2, 4), op0=nl.add, operand0=1, reduce_op=nl.add),
    broken("tensor_scalar_reduce", error=UNINITIALIZED, reduce_cmd=COMMAND.reduce).says(CONTINUES),
    legal(nisa.select_reduce, Sbuf(2, 4), Sbuf(2, 4, dtype=nl.int8), Sbuf(2, 4), 0.0, reduce_cmd=COMMAND.reset_reduce),
    broken("select_reduce", error=UNINITIALIZED, reduce_cmd=COMMAND.reduce).says(CONTINUES),
    legal(nisa.exponential, on="trn3", dst=Sbuf(2, 4), src=Sbuf(2, 4), reduce_cmd=COMMAND.load_reduce),
    broken("exponential", error=UNINITIALIZED, reduce_cmd=COMMAND.reduce).says(CONTINUES),
)
def test_reduce_needs_registers_that_hold_something(rule: Rule) -> None:
    check_rule(rule)


def test_registers_that_hold_nothing_read_as_nan_unless_that_is_an_error() -> None:
    with nkilib.simulator.using(uninitialized="nan"):
        total = run(
            lambda res: nisa.tensor_scalar_reduce(
                tile(2, 4), tile(2, 4), nl.add, 1, nl.add, res, reduce_cmd=COMMAND.reduce
            ),
            [],
            Result((2, 1)),
        )
    assert np.isnan(total).all()


def test_every_partition_has_a_register_of_its_own() -> None:
    def body(results: Any) -> None:
        wide = tile(64, 4, value=1)
        nisa.tensor_scalar_reduce(wide[32:34], wide[32:34], nl.multiply, 10, nl.add)
        nisa.tensor_scalar_reduce(wide[0:2], wide[0:2], nl.multiply, 1, nl.add)
        nisa.tensor_scalar_reduce(wide[32:34], wide[32:34], nl.multiply, 0, nl.add, results, reduce_cmd=COMMAND.reduce)

    assert run(body, [], Result((2, 1))).tolist() == [[40], [40]]


def test_they_run_on_the_vector_engine() -> None:
    assert engine_of(lambda: nisa.tensor_scalar_reduce(tile(2, 2), tile(2, 2), nl.add, 1, nl.add)) == "vector"
    assert engine_of(lambda: nisa.select_reduce(tile(2, 2), tile(2, 2, dtype=nl.int8), tile(2, 2), 0.0)) == "vector"
    assert engine_of(lambda: nisa.exponential(tile(2, 2), tile(2, 2)), "trn3") == "vector"


def test_tiles_larger_than_a_block_of_rows() -> None:
    """Each row has its own operand, initial value and result."""
    values, operand, initial = normal(128, WIDE, seed=8), normal(128, 1, seed=9), normal(128, 1, seed=10)

    def body(total: Any, largest: Any, data: Any, operand: Any, initial: Any) -> None:
        scratch = nl.ndarray((128, WIDE), nl.bfloat16)
        nisa.tensor_scalar_reduce(
            scratch,
            data,
            nl.multiply,
            operand,
            nl.add,
            total,
            reduce_cmd=COMMAND.load_reduce,
            reduce_init=initial,
        )
        nisa.select_reduce(
            scratch, tile(128, WIDE, dtype=nl.uint8), data, operand, largest, COMMAND.reset_reduce, reverse_pred=True
        )

    total, largest = run(body, [values, operand, initial], Result((128, 1)), Result((128, 1)))
    products = values.astype(np.float64) * operand.astype(np.float64)
    error = np.abs(total - (products.sum(axis=1, keepdims=True) + initial))
    assert (error <= 32 * 2**-24 * np.abs(products).sum(axis=1, keepdims=True)).all()
    assert largest.tolist() == values.max(axis=1, keepdims=True).tolist()


def test_results_in_bfloat16_memory() -> None:
    """The value that reaches `reduce_res` is rounded once: from the float32 register."""
    total = run(
        lambda res: nisa.tensor_scalar_reduce(
            nl.ndarray((1, 257), nl.float32), tile(1, 257, value=1), nl.add, 0, nl.add, res
        ),
        [],
        Result((1, 1), nl.bfloat16),
    )
    assert total.dtype == ml_dtypes.bfloat16 and total == 256
