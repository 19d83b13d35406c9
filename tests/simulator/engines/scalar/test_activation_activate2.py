# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`activate2`: the two steps before the function, parametric functions, and every reduction into the registers."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...activation_formulas import CASES, is_close
from ...kernels import WIDE, Result, Tile, column, engine_of, execute, normal, refusal, run, tile
from ...made import Hbm, Sbuf
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import LOAD_FIRST, must, needs, one_each, same_elements, same_partitions

COMMAND = nisa.reduce_cmd
UNINITIALIZED = nkilib.simulator.UninitializedReadError
DATA = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
BYPASS = nl.bypass


def run3(body: Any, inputs: Any, *outputs: Result) -> Any:
    return run(body, inputs, *outputs, target="trn3")


def copying(dst: Any, data: Any, op: Any = nl.copy, imm0: Any = 0.0, op0: Any = BYPASS, **options: Any) -> None:
    """Run `activate2` without a second step, in a kernel; a copy unless the arguments say otherwise."""
    nisa.activate2(dst, op, data, imm0, 0.0, op0, BYPASS, **options)


# -- the function and its parameter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_function_over_its_valid_range(name: str) -> None:
    points = np.array([CASES[name].points], np.float32)
    result = run3(lambda dst, data: copying(dst, data, op=getattr(nl, name)), [points], Result(points.shape))
    for x, got in zip(points[0].tolist(), result[0].tolist(), strict=True):
        assert is_close(name, x, got), (x, got, CASES[name].formula(x))


def test_gpsimd_computes_the_same_without_a_reduction() -> None:
    engine = nisa.engine.gpsimd
    result = run3(
        lambda dst, data: nisa.activate2(dst, nl.square, data, 2.0, 1.0, nl.multiply, nl.subtract, engine=engine),
        [DATA],
        Result((2, 3)),
    )
    assert result.tolist() == ((2 * DATA - 1) ** 2).tolist()
    assert engine_of(lambda: copying(tile(2, 2), tile(2, 2), engine=engine), "trn3") == "gpsimd"
    message = refusal(
        lambda: nisa.activate2(
            *(tile(2, 2), nl.copy, tile(2, 2), 0.0, 0.0, BYPASS, BYPASS),
            reduce_op=nl.maximum,
            reduce_cmd=COMMAND.reset_reduce,
            engine=engine,
        ),
        "trn3",
    )
    assert message.startswith("nisa.activate2: engine=nki.isa.engine.gpsimd has no accumulator registers")


SIGNED = np.array([[-4, -0.5, 0, 0.5, 4], [-8, -1, 0, 1, 8]], np.float32)


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        (0.25, [[-1, -0.125, 0, 0.5, 4], [-2, -0.25, 0, 1, 8]]),
        (-2, [[8, 1, 0, 0.5, 4], [16, 2, 0, 1, 8]]),
        (0.0, [[0, 0, 0, 0.5, 4], [0, 0, 0, 1, 8]]),
        (column(0.5, 3), [[-2, -0.25, 0, 0.5, 4], [-24, -3, 0, 1, 8]]),
    ],
)
def test_prelu_multiplies_what_is_negative_by_its_slope(slope: Any, expected: Any) -> None:
    vectors = [slope] if isinstance(slope, np.ndarray) else []

    def body(dst: Any, data: Any, *vector: Any) -> None:
        copying(dst, data, op=nl.prelu, relu_param=vector[0] if vector else slope)

    assert run3(body, [SIGNED, *vectors], Result((2, 5))).tolist() == expected


def test_prelu_without_a_slope_is_relu() -> None:
    assert run3(lambda dst, data: copying(dst, data, op=nl.prelu), [SIGNED], Result((2, 5))).tolist() == [
        [0, 0, 0, 0.5, 4],
        [0, 0, 0, 1, 8],
    ]


def test_prelu_at_infinities_and_nan() -> None:
    """A slope of 0 leaves 0 of -inf, as relu does, not inf * 0."""
    data = np.array([[-np.inf, np.inf, np.nan]] * 3, np.float32)
    result = run3(
        lambda dst, data, slope: copying(dst, data, op=nl.prelu, relu_param=slope),
        [data, column(0.5, -1, 0)],
        Result((3, 3)),
    )
    assert result[:, 0].tolist() == [-np.inf, np.inf, 0]
    assert (result[:, 1] == np.inf).all() and np.isnan(result[:, 2]).all()


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int32])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_the_slope_has_any_type_and_place(dtype: Any, buffer: Any) -> None:
    result = run3(
        lambda dst, data, slope: copying(dst, data, op=nl.prelu, relu_param=slope),
        [SIGNED, Tile(column(2, 3), dtype, buffer)],
        Result((2, 5)),
    )
    assert result[:, 0].tolist() == [-8, -24]


# -- the steps before the function -----------------------------------------------------------------------------------

# op0, op1, reverse0, reverse1, and the formula.
STEPS = [
    ("multiply", "add", False, False, lambda x, a, b: x * a + b),
    ("multiply", "subtract", False, False, lambda x, a, b: x * a - b),
    ("multiply", "subtract", False, True, lambda x, a, b: b - x * a),
    ("multiply", "subtract", True, True, lambda x, a, b: b - a * x),
    ("multiply", "add", True, True, lambda x, a, b: b + a * x),
    ("multiply", "bypass", False, False, lambda x, a, b: x * a),
    ("multiply", "bypass", True, False, lambda x, a, b: a * x),
    ("add", "bypass", False, False, lambda x, a, b: x + a),
    ("add", "bypass", True, False, lambda x, a, b: a + x),
    ("subtract", "bypass", False, False, lambda x, a, b: x - a),
    ("subtract", "bypass", True, False, lambda x, a, b: a - x),
    ("bypass", "bypass", False, False, lambda x, a, b: x),
]


@pytest.mark.parametrize(("op0", "op1", "reverse0", "reverse1", "formula"), STEPS)
@pytest.mark.parametrize("imm0", [3.0, column(2, -5)])
@pytest.mark.parametrize("imm1", [7, column(10, 20)])
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_the_documented_pairs_of_operators(
    op0: str, op1: str, reverse0: bool, reverse1: bool, formula: Any, imm0: Any, imm1: Any, buffer: Any
) -> None:
    """Each immediate a number or one element a partition."""
    vectors = [Tile(imm, buffer=buffer) for imm in (imm0, imm1) if isinstance(imm, np.ndarray)]

    def body(dst: Any, data: Any, *inputs: Any) -> None:
        rest = list(inputs)
        used = [rest.pop(0) if isinstance(imm, np.ndarray) else imm for imm in (imm0, imm1)]
        nisa.activate2(
            dst, nl.copy, data, *used, getattr(nl, op0), getattr(nl, op1), reverse0=reverse0, reverse1=reverse1
        )

    result = run3(body, [DATA, *vectors], Result((2, 3)))
    assert result.tolist() == np.broadcast_to(formula(DATA, imm0, imm1), (2, 3)).tolist()


def test_the_steps_come_before_the_function() -> None:
    result = run3(
        lambda dst, data, imm0, imm1: nisa.activate2(dst, nl.exp, data, imm0, imm1, nl.multiply, nl.subtract),
        [DATA, column(0.5, -0.25), column(1, -2)],
        Result((2, 3)),
    )
    for row, scale, shift, got in zip(DATA, (0.5, -0.25), (1, -2), result, strict=True):
        assert got.tolist() == pytest.approx([math.exp(float(x) * scale - shift) for x in row], rel=4 * 2**-23)


def test_every_step_is_rounded_to_float32() -> None:
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 loses its last term in float32 before 1 is taken away."""
    result = run3(
        lambda dst, data: nisa.activate2(dst, nl.copy, data, 1 + 2**-12, 1.0, nl.multiply, nl.subtract),
        [column(1 + 2**-12)],
        Result((1, 1)),
    )
    assert result == 2**-11


def test_the_example_of_the_documentation() -> None:
    data = normal(4, 50)
    result = run3(
        lambda dst, data: nisa.activate2(
            dst=dst, op=nl.gelu, data=data, imm0=2.0, imm1=0.5, op0=nl.multiply, op1=nl.add
        ),
        [data],
        Result((4, 50)),
    )
    steps = np.float32(2) * data + np.float32(0.5)
    for x, got in zip(steps.reshape(-1).tolist(), result.reshape(-1).tolist(), strict=True):
        assert is_close("gelu", x, got)


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int32, nl.uint8])
def test_immediates_have_any_type_if_it_is_the_same(dtype: Any) -> None:
    result = run3(
        lambda dst, data, imm0, imm1: nisa.activate2(dst, nl.copy, data, imm0, imm1, nl.multiply, nl.add),
        [DATA, Tile(column(2, 3), dtype), Tile(column(10, 20), dtype)],
        Result((2, 3)),
    )
    assert result.tolist() == [[12, 14, 16], [32, 35, 38]]


def test_data_is_cast_to_float32_and_the_result_from_it() -> None:
    result = run3(lambda dst, data: copying(dst, data), [np.array([[16777217, 300, -3]], np.int32)], Result((1, 3)))
    assert result.tolist() == [[16777216, 300, -3]]
    result = run3(
        lambda dst, data: copying(dst, data, op0=nl.multiply, imm0=0.5),
        [np.array([[1, 3, 600, -9]], np.int16)],
        Result((1, 4), nl.uint8),
    )
    assert result.tolist() == [[0, 2, 255, 0]]
    coarse = run3(lambda dst, data: copying(dst, data), [column(257)], Result((1, 1), nl.bfloat16))
    assert coarse.dtype == ml_dtypes.bfloat16 and coarse == 256


@pytest.mark.parametrize("source", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
def test_it_reads_and_writes_both_on_chip_memories(source: Any, target: Any) -> None:
    result = run3(
        lambda dst, data: copying(dst, data, op=nl.square),
        [Tile(DATA, buffer=source)],
        Result((2, 3), nl.float32, target),
    )
    assert result.tolist() == [[1, 4, 9], [16, 25, 36]]


def test_free_shapes_may_differ_and_be_strided() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.memset(dst, -1)
        copying(dst[:, :, 1], data[:, 0:8:2], op0=nl.add, imm0=100.0)

    inputs = np.arange(16, dtype=np.float32).reshape(2, 8)
    result = run3(body, [inputs], Result((2, 4, 2)))
    assert (result[:, :, 0] == -1).all()
    assert result[:, :, 1].tolist() == [[100, 102, 104, 106], [108, 110, 112, 114]]


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_every_operand_may_be_in_the_tile_that_is_written(dtype: Any) -> None:
    """-1 * (data * imm0 - imm1), with -1, 2 and 3 in columns 0 to 2 of the tile, is what reading first gives."""

    def body(dst: Any, data: Any) -> None:
        whole = nl.ndarray((2, 3), dtype)
        nisa.tensor_copy(whole, data)
        nisa.activate2(
            whole,
            nl.prelu,
            whole,
            whole[:, 1:2],
            whole[:, 2:3],
            nl.multiply,
            nl.subtract,
            relu_param=whole[:, 0:1],
        )
        nisa.tensor_copy(dst, whole)

    result = run3(body, [np.array([[-1, 2, 3], [0.5, -2, 1]], np.float32)], Result((2, 3)))
    # [-2 - 3, 4 - 3, 6 - 3] with slope -1; [-1 - 1, 4 - 1, -2 - 1] with slope 0.5.
    assert result.tolist() == [[5, 1, 3], [-1, 3, -1.5]]


def test_tiles_larger_than_a_block_of_rows() -> None:
    """Each row has its own immediates, slope and maximum."""
    values = normal(128, WIDE, seed=5)
    scale, shift, slope = (normal(128, 1, seed=seed) for seed in (6, 7, 8))

    def body(dst: Any, largest: Any, data: Any, scale: Any, shift: Any, slope: Any) -> None:
        nisa.activate2(
            dst,
            nl.prelu,
            data,
            scale,
            shift,
            nl.multiply,
            nl.subtract,
            slope,
            reduce_op=nl.maximum,
            reduce_res=largest,
            reduce_cmd=COMMAND.reset_reduce,
        )

    activated, largest = run3(body, [values, scale, shift, slope], Result((128, WIDE), nl.bfloat16), Result((128, 1)))
    reference = values.astype(np.float64) * scale - shift
    reference = np.where(reference > 0, reference, reference * slope)
    # Half a unit of bfloat16, and the rounding of three float32 steps on magnitudes below 32.
    assert (np.abs(activated.astype(np.float64) - reference) <= 2**-8 * np.abs(reference) + 2**-17).all()
    assert np.abs(largest[:, 0] - reference.max(axis=1)).max() <= 2**-17


# -- reductions ------------------------------------------------------------------------------------------------------

REDUCED = np.array([[1, -5, 3, 5, -2, 1.5], [-4, 0.5, -0.5, 2, 3, 1]], np.float32)
REDUCTIONS = {
    "add": [3.5, 2],
    "maximum": [5, 3],
    "max": [5, 3],
    "minimum": [-5, -4],
    "min": [-5, -4],
    "abs_max": [5, -4],  # of -5 and 5 the later one
    "abs_min": [1, -0.5],  # of 0.5 and -0.5 the later one
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_reductions_over_all_free_dimensions(name: str, buffer: Any) -> None:
    result, reduced = run3(
        lambda dst, res, data: copying(
            dst, data, reduce_op=getattr(nl, name), reduce_res=res, reduce_cmd=COMMAND.reset_reduce
        ),
        [REDUCED.reshape(2, 3, 2)],
        Result((2, 6)),
        Result((2, 1), nl.float32, buffer),
    )
    assert result.tolist() == REDUCED.tolist()
    assert reduced[:, 0].tolist() == REDUCTIONS[name]


def by_magnitude(values: list[float], wins: Any) -> float:
    """The documentation's loop: the accumulator stays where its magnitude wins, else the element takes its place."""
    accumulator = values[0]
    for value in values[1:]:
        accumulator = accumulator if wins(abs(accumulator), abs(value)) else value
    return accumulator


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-3.0, -2.0, -0.0, 0.0, 2.0, 3.0, -math.inf, math.inf]), min_size=1, max_size=8))
def test_magnitudes_compare_as_in_the_loop_of_the_documentation(values: list[float]) -> None:
    def body(first: Any, second: Any, data: Any) -> None:
        for op, result in ((nl.abs_max, first), (nl.abs_min, second)):
            scratch = nl.ndarray(data.shape, nl.float32)
            copying(scratch, data, reduce_op=op, reduce_res=result, reduce_cmd=COMMAND.reset_reduce)

    first, second = run3(body, [np.array([values], np.float32)], *[Result((1, 1))] * 2)
    for result, initial, wins in ((first, 0.0, float.__gt__), (second, math.inf, float.__lt__)):
        expected = by_magnitude([initial, *values], wins)
        (got,) = result[0].tolist()
        assert got == expected and math.copysign(1, got) == math.copysign(1, expected)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_nan_is_what_every_reduction_leaves(name: str) -> None:
    _, reduced = run3(
        lambda dst, res, data: copying(
            dst, data, reduce_op=getattr(nl, name), reduce_res=res, reduce_cmd=COMMAND.reset_reduce
        ),
        [np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)],
        Result((2, 3)),
        Result((2, 1)),
    )
    assert np.isnan(reduced[0]) and np.isfinite(reduced[1])


IDENTITIES = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf, "abs_max": 0.0, "abs_min": math.inf}


@pytest.mark.parametrize("name", IDENTITIES)
def test_commands(name: str) -> None:
    """reset leaves the identity, reset_reduce starts from it, reduce goes on and idle leaves the registers alone."""
    wins = {"abs_max": float.__gt__, "abs_min": float.__lt__}
    function: Any = {"add": sum, "maximum": max, "minimum": min}.get(name, lambda x: by_magnitude(x, wins[name]))
    steps = [
        (COMMAND.reset_reduce, [-3.0, 4.0]),
        (COMMAND.reduce, [5.0, 2.5]),
        (COMMAND.idle, [-100.0, 0.125]),
        (COMMAND.reduce, [-4.5, 3.5]),  # neither the largest magnitude nor the smallest so far
        (COMMAND.reduce, [-7.0, -1.0]),
        (COMMAND.reset_reduce, [2.0, -2.0]),
        (COMMAND.reset, [50.0, 0.125]),
        (COMMAND.reduce, [3.0, 3.0]),
    ]

    def body(registers: Any, data: Any) -> None:
        for number, (command, _) in enumerate(steps):
            copying(
                nl.ndarray((1, 2), nl.float32),
                data[:, 2 * number : 2 * number + 2],
                reduce_op=getattr(nl, name),
                reduce_cmd=command,
                reduce_res=registers[:, number : number + 1],
            )

    data = np.array([[value for _, pair in steps for value in pair]], np.float32)
    registers = run3(body, [data], Result((1, len(steps))))[0].tolist()
    identity = IDENTITIES[name]
    assert registers == [
        function([identity, -3.0, 4.0]),
        function([identity, -3.0, 4.0, 5.0, 2.5]),
        function([identity, -3.0, 4.0, 5.0, 2.5]),
        function([identity, -3.0, 4.0, 5.0, 2.5, -4.5, 3.5]),
        function([identity, -3.0, 4.0, 5.0, 2.5, -4.5, 3.5, -7.0, -1.0]),
        function([identity, 2.0, -2.0]),
        identity,
        3.0 + 3.0 if name == "add" else 3.0,
    ]


def test_the_registers_are_shared_with_activation() -> None:
    def body(total: Any, data: Any) -> None:
        scratch = nl.ndarray((2, 3), nl.float32)
        nisa.activation(scratch, nl.square, data, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        copying(scratch, data, reduce_op=nl.add, reduce_cmd=COMMAND.reduce)
        nisa.tensor_scalar_reduce(scratch, data, nl.add, 0, nl.add)
        nisa.activation(scratch, nl.abs, data, reduce_op=nl.add, reduce_cmd=COMMAND.reduce, reduce_res=total[:, 0:1])
        copying(scratch, data, reduce_op=nl.maximum, reduce_cmd=COMMAND.reduce, reduce_res=total[:, 1:2])
        copying(scratch, data, reduce_op=nl.maximum, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation(scratch, nl.abs, data, reduce_res=total[:, 2:3])

    result = run3(body, [DATA], Result((2, 3)))
    assert result.tolist() == [[14 + 6 + 6] * 2 + [3], [77 + 15 + 15] * 2 + [6]]


def test_every_partition_has_a_register_of_its_own() -> None:
    def body(total: Any, data: Any) -> None:
        wide = tile(64, 3)
        upper, lower = wide[32:34], wide[0:2]
        nisa.tensor_copy(upper, data)
        copying(upper, upper, reduce_op=nl.maximum, reduce_cmd=COMMAND.reset_reduce)
        copying(lower, data, reduce_op=nl.minimum, reduce_cmd=COMMAND.reset_reduce)
        copying(upper, upper, reduce_res=total[:, 0:1])
        copying(lower, lower, reduce_res=total[:, 1:2])

    assert run3(body, [DATA], Result((2, 2))).tolist() == [[3, 1], [6, 4]]


def test_what_is_reduced_is_float32_before_the_cast_into_dst() -> None:
    """256 + 1 elements of 1.00390625 = 1 + 2^-8, which bfloat16 would round to 1; the result is cast on its own."""
    for dtype, expected in ((nl.float32, 257 + 257 / 256), (nl.bfloat16, 258), (nl.int8, 127)):
        _, total = run3(
            lambda dst, res, data: copying(
                dst, data, reduce_op=nl.add, reduce_res=res, reduce_cmd=COMMAND.reset_reduce
            ),
            [np.full((1, 257), 1 + 2**-8, np.float32)],
            Result((1, 257), nl.bfloat16),
            Result((1, 1), dtype),
        )
        assert total == expected


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_tile_without_columns_reduces_to_the_identity(name: str) -> None:
    def body(result: Any) -> None:
        empty = tile(2, 3)[:, 0:0]
        copying(empty, empty, reduce_op=getattr(nl, name), reduce_res=result, reduce_cmd=COMMAND.reset_reduce)

    assert run3(body, [], Result((2, 1))).tolist() == [[IDENTITIES[name]]] * 2


def test_a_sum_starts_from_zero() -> None:
    """The sum of negative zeros is the positive one, 0 + -0."""

    def body(result: Any) -> None:
        zeros = tile(2, 3, value=-0.0)
        copying(zeros, zeros, reduce_op=nl.add, reduce_res=result, reduce_cmd=COMMAND.reset_reduce)

    assert not np.signbit(run3(body, [], Result((2, 1)))).any()


def test_continuing_from_registers_that_were_never_set() -> None:
    def continuing() -> None:
        nisa.activate2(
            tile(2, 2),
            nl.copy,
            tile(2, 2),
            0.0,
            0.0,
            BYPASS,
            BYPASS,
            reduce_op=nl.maximum,
            reduce_cmd=COMMAND.reduce,
        )

    message = (
        "nisa.activate2: reduce_cmd=reduce continues from accumulator registers that hold no defined value; start with "
        "reset_reduce"
    )
    assert refusal(continuing, "trn3", error=UNINITIALIZED) == message
    with nkilib.simulator.using(uninitialized="nan"):
        execute(continuing, "trn3")


# -- refusals --------------------------------------------------------------------------------------------------------

PAIRS = (
    "(nl.multiply, nl.add), (nl.multiply, nl.subtract), (nl.multiply, nl.bypass), (nl.add, nl.bypass), "
    "(nl.subtract, nl.bypass), (nl.bypass, nl.bypass)"
)
REDUCERS = "nl.add or nl.maximum or nl.minimum or nl.abs_max or nl.abs_min"


@pytest.mark.parametrize("op1", [nl.add, nl.subtract, nl.multiply, nl.bypass, nl.maximum, nl.exp])
@pytest.mark.parametrize("op0", [nl.add, nl.subtract, nl.multiply, nl.bypass, nl.maximum, nl.exp])
def test_no_other_pair_of_operators(op0: Any, op1: Any) -> None:
    def body() -> None:
        nisa.activate2(tile(2, 2), nl.copy, tile(2, 2), 1.0, 1.0, op0, op1)

    if f"({op0}, {op1})" in PAIRS:
        execute(body, "trn3")
    else:
        expected = f"nisa.activate2: (op0, op1) must be one of {PAIRS}; got ({op0}, {op1})"
        assert refusal(body, "trn3") == expected


def activation_of(**options: Any) -> Any:
    """The operands of a call that runs, with `options` in place of some."""
    plain = {"dst": tile(2, 2), "op": nl.copy, "data": tile(2, 2), "imm0": 1.0, "imm1": 1.0}
    return plain | {"op0": nl.multiply, "op1": nl.add} | options


@rules(
    legal(nisa.activate2, Sbuf(2, 2), nl.copy, Sbuf(2, 2), 1.0, 1.0, nl.multiply, nl.add, on="trn3"),
    broken("generation", on="trn2").says(needs("gen4", "trn2 (gen3)")),
    broken("older generation", on="trn1")
    .says(needs("gen4", "trn1 (gen2)"))
    .instead(lambda: nisa.activation(tile(2, 2), nl.copy, tile(2, 2))),
    broken("function", op=nl.add).says("op=nl.add is no activation function of the Scalar engine").fixed(op=nl.abs),
    broken("bypass is no function", op=nl.bypass).says("op=nl.bypass is no activation function of the Scalar engine"),
    broken("no operator", op0=None, op1=nl.bypass)
    .says("op0 must be an operator such as nl.add, got None")
    .fixed(op0=nl.bypass),
    broken("no second operator", op1=None)
    .says("op1 must be an operator such as nl.add, got None")
    .fixed(op1=nl.bypass),
    broken("second operator without a first one", op0=nl.bypass)
    .says(f"(op0, op1) must be one of {PAIRS}; got (nl.bypass, nl.add)")
    .fixed(op0=nl.add, op1=nl.bypass),
    broken("reverse0 without op0", op0=nl.bypass, op1=nl.bypass, reverse0=True)
    .says("reverse0=True needs an operator to reverse, got op0=nl.bypass")
    .fixed(op0=nl.subtract),
    broken("reverse1 without op1", op1=nl.bypass, reverse1=True)
    .says("reverse1=True needs an operator to reverse, got op1=nl.bypass")
    .fixed(op1=nl.subtract),
    broken("immediates of unlike types", imm0=Sbuf(2, 1), imm1=Sbuf(2, 1, dtype=nl.bfloat16))
    .says("tensors imm0 and imm1 must have the same type, got {imm0} and {imm1}")
    .fixed(imm0=1.0),
    broken("immediate with two columns", imm0=Sbuf(2, 2)).says(one_each("imm0", "data")).fixed(imm0=Sbuf(2, 2)[:, 1:2]),
    broken("immediate of other partitions", imm1=Sbuf(3, 1)).says(one_each("imm1", "data")).fixed(imm1=Sbuf(2, 1)),
    broken("no immediate", imm1=None, op1=nl.bypass)
    .says("operand 'imm1' must be a tensor or a number, got None")
    .fixed(imm1=0.0),
    broken("parameter of a function without one", op=nl.relu, relu_param=0.5)
    .says("op=nl.relu has no parameter: relu_param must be 0.0, got 0.5")
    .fixed(op=nl.prelu),
    broken("vector parameter of a function without one", op=nl.relu, relu_param=Sbuf(2, 1))
    .says("op=nl.relu has no parameter: relu_param must be 0.0, got {relu_param}")
    .fixed(op=nl.prelu),
    broken("shape of the parameter", op=nl.prelu, relu_param=Sbuf(2, 2))
    .says(one_each("relu_param", "data"))
    .fixed(relu_param=Sbuf(2, 1)),
    broken("reduction", reduce_op=nl.multiply, reduce_cmd=COMMAND.reset_reduce)
    .says(f"reduce_op must be {REDUCERS}, got nl.multiply")
    .fixed(reduce_op=nl.minimum),
    broken("no reduction", reduce_cmd=COMMAND.reset_reduce)
    .says(f"reduce_cmd=reset_reduce needs reduce_op={REDUCERS}")
    .fixed(reduce_op=nl.add),
    broken("reset to the identity of nothing", reduce_cmd=COMMAND.reset)
    .says(f"reduce_cmd=reset needs reduce_op={REDUCERS}")
    .fixed(reduce_op=nl.abs_min),
    broken("command", reduce_op=nl.add, reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd must be idle, reset, reduce or reset_reduce, got <reduce_cmd.load_reduce: 4>")
    .fixed(reduce_cmd=COMMAND.reset),
    broken("registers that hold nothing", error=UNINITIALIZED, reduce_res=Sbuf(2, 1))
    .says("reduce_res reads accumulator registers that hold no defined value; start with reduce_cmd=reset_reduce")
    .fixed(reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce),
    broken("shape of reduce_res", reduce_op=nl.add, reduce_res=Sbuf(2, 2), reduce_cmd=COMMAND.reset_reduce)
    .says(one_each("reduce_res", "data"))
    .fixed(reduce_res=Sbuf(2, 1)),
    broken("partitions", dst=Sbuf(3, 2)).says(same_partitions("dst", "data")).fixed(dst=Sbuf(3, 2)[0:2]),
    broken("size", dst=Sbuf(2, 3)).says(same_elements("dst", "data")).fixed(dst=Sbuf(2, 3)[:, 1:]),
    broken("HBM", data=Hbm(2, 2)).says(must("data", "be in psum or sbuf", LOAD_FIRST)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


def test_it_runs_on_the_scalar_engine() -> None:
    assert engine_of(lambda: nisa.activate2(**activation_of()), "trn3") == "scalar"


def test_bypass_belongs_to_activate2_alone() -> None:
    message = "nisa.tensor_scalar: op0=nl.bypass is no operator of the Vector engine (see nl.add and the like)"
    assert refusal(lambda: nisa.tensor_scalar(tile(2, 2), tile(2, 2), nl.bypass, 1.0), "trn3") == message
