# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`activation` and `activation_reduce`: every function, scale and bias, and the accumulator registers.

Where the documentation's pseudo-code (which would count a running sum twice) and its prose disagree, the prose is
right: `reduce` adds the sum of this instruction to what the registers hold.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...activation_formulas import CASES, is_close
from ...kernels import (
    WIDE,
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
from ...sentences import one_each, one_type, out_of_reach, same_elements, same_partitions

COMMAND, ENGINE = nisa.reduce_cmd, nisa.engine
UNINITIALIZED = nkilib.simulator.UninitializedReadError


# -- the function ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_function_over_its_valid_range(name: str, target: str) -> None:
    points = np.array([CASES[name].points], np.float32)
    result = run(
        lambda dst, data: nisa.activation(dst, getattr(nl, name), data), [points], Result(points.shape), target=target
    )
    for x, got in zip(points[0].tolist(), result[0].tolist(), strict=True):
        assert is_close(name, x, got), (x, got, CASES[name].formula(x))


def test_it_runs_on_the_scalar_engine() -> None:
    assert engine_of(lambda: nisa.activation(tile(2, 2), nl.exp, tile(2, 2))) == "scalar"


@pytest.mark.parametrize(
    ("engine", "runs_on"), [(ENGINE.unknown, "scalar"), (ENGINE.scalar, "scalar"), (ENGINE.gpsimd, "gpsimd")]
)
def test_it_runs_on_the_engine_asked_for_on_trn3(engine: Any, runs_on: str) -> None:
    def body() -> None:
        nisa.activation(tile(2, 2), nl.exp, tile(2, 2), bias=tile(2, 1), scale=2.0, engine=engine)

    assert engine_of(body, "trn3") == runs_on


def test_gpsimd_computes_what_scalar_does() -> None:
    points = np.array([[-1.5, 0.25, 2]], np.float32)
    result = run(
        lambda dst, data: nisa.activation(dst, nl.exp, data, bias=0.5, scale=2.0, engine=ENGINE.gpsimd),
        [points],
        Result((1, 3)),
        target="trn3",
    )
    assert result == pytest.approx(np.exp(2 * points.astype(float) + 0.5), rel=4 * 2.0**-24)


def test_gpsimd_leaves_the_registers_alone() -> None:
    """They are the Scalar engine's."""

    def body(total: Any, data: Any) -> None:
        scratch = nl.ndarray((1, 3), nl.float32)
        nisa.activation(scratch, nl.copy, data, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation(scratch, nl.square, data, engine=ENGINE.gpsimd)
        nisa.activation(scratch, nl.square, data, reduce_res=total)

    data = np.array([[1, 2, 4]], np.float32)
    assert run(body, [data], Result((1, 1)), target="trn3").tolist() == [[7]]


ONLY_SCALAR_REDUCES = (
    "engine=nki.isa.engine.gpsimd has no accumulator registers: reduce_cmd must be idle and reduce_res "
)


@rules(
    legal(nisa.activation, on="trn3", dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2), engine=ENGINE.gpsimd),
    broken("GpSimd before trn3", on="trn2").says(
        "engine=nki.isa.engine.gpsimd needs trn3 (NeuronCore-v4); the target is trn2"
    ),
    broken("a reduction on GpSimd", reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
    .says(f"{ONLY_SCALAR_REDUCES}None, got <reduce_cmd.reset_reduce: 3> and None; the Scalar engine reduces")
    .fixed(engine=LEFT_OUT),
    broken("the registers on GpSimd", reduce_res=Sbuf(2, 1)).says(
        f"{ONLY_SCALAR_REDUCES}None, got <reduce_cmd.idle: 0> and {{reduce_res}}; the Scalar engine reduces"
    ),
    legal(nisa.activation, on="trn3", dst=Sbuf(2, 2), op=nl.exp, data=Psum(2, 2)),
    broken("PSUM on GpSimd", engine=ENGINE.gpsimd).says(out_of_reach("data")),
    broken(
        "the name, ninth until NKI 0.6",
        on="trn2",
        data=Sbuf(2, 2),
        bias=None,
        scale=1.0,
        reduce_op=None,
        reduce_res=None,
        reduce_cmd=COMMAND.idle,
        engine="the name",
    )
    .says("engine must be a member of nki.isa.engine, got 'the name'")
    .fixed(name="the name", engine=LEFT_OUT),
    broken("another engine", on="trn2", data=Sbuf(2, 2), engine=ENGINE.vector)
    .says("engine must be one of nki.isa.engine.scalar, nki.isa.engine.gpsimd, got nki.isa.engine.vector")
    .fixed(engine=ENGINE.scalar),
)
def test_engine_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("source", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("target", [nl.sbuf, nl.psum])
def test_it_reads_and_writes_both_on_chip_memories(source: Any, target: Any) -> None:
    result = run(
        lambda dst, data: nisa.activation(dst, nl.square, data),
        [Tile(column(3, -4), buffer=source)],
        Result((2, 1), nl.float32, target),
    )
    assert result.tolist() == [[9], [16]]


# -- scale and bias --------------------------------------------------------------------------------------------------

DATA = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize(
    ("scale", "bias", "expected"),
    [
        (2.0, None, [[2, 4, 6], [8, 10, 12]]),
        (1.0, 0.5, [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]),
        (-1, 10, [[9, 8, 7], [6, 5, 4]]),
        (0.0, 0.0, [[0, 0, 0], [0, 0, 0]]),
        (column(2, -1), None, [[2, 4, 6], [-4, -5, -6]]),
        (1.0, column(10, 20), [[11, 12, 13], [24, 25, 26]]),
        (column(2, -1), column(10, 20), [[12, 14, 16], [16, 15, 14]]),
        (column(2, -1), 1.0, [[3, 5, 7], [-3, -4, -5]]),
        (3.0, column(10, 20), [[13, 16, 19], [32, 35, 38]]),
    ],
)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_scale_and_bias(scale: Any, bias: Any, expected: Any, buffer: Any) -> None:
    """`copy(data * scale + bias)`, each a constant or one element a partition."""
    vectors = [Tile(value, buffer=buffer) for value in (scale, bias) if isinstance(value, np.ndarray)]

    def body(dst: Any, data: Any, *inputs: Any) -> None:
        rest = list(inputs)
        used = [rest.pop(0) if isinstance(value, np.ndarray) else value for value in (scale, bias)]
        nisa.activation(dst, nl.copy, data, scale=used[0], bias=used[1])

    assert run(body, [DATA, *vectors], Result((2, 3))).tolist() == expected


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16, nl.int32, nl.uint8, nl.float8_e5m2])
def test_bias_has_any_type_but_tfloat32(dtype: Any) -> None:
    result = run(
        lambda dst, data, bias: nisa.activation(dst, nl.copy, data, bias=bias),
        [DATA, Tile(column(2, 8), dtype)],
        Result((2, 3)),
    )
    assert result.tolist() == [[3, 4, 5], [12, 13, 14]]


def test_scale_and_bias_are_applied_before_the_function() -> None:
    result = run(
        lambda dst, data, bias: nisa.activation(dst, nl.exp, data, scale=0.5, bias=bias),
        [DATA, column(-1, 1)],
        Result((2, 3)),
    )
    for row, bias, got in zip(DATA, (-1, 1), result, strict=True):
        assert got.tolist() == pytest.approx([math.exp(0.5 * float(x) + bias) for x in row], rel=4 * 2**-23)


def test_product_and_sum_are_rounded_to_float32() -> None:
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 loses its last term in float32 before 1 is taken away."""
    result = run(
        lambda dst, data, scale: nisa.activation(dst, nl.copy, data, scale=scale, bias=-1.0),
        [column(1 + 2**-12), column(1 + 2**-12)],
        Result((1, 1)),
    )
    assert result == 2**-11


def test_scale_and_bias_in_the_tile_that_is_written() -> None:
    def body(dst: Any, data: Any) -> None:
        nisa.tensor_copy(dst, data)
        nisa.activation(dst, nl.copy, dst, scale=dst[:, 1:2], bias=dst[:, 2:3])

    assert run(body, [DATA], Result((2, 3))).tolist() == [[5, 7, 9], [26, 31, 36]]


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
@pytest.mark.parametrize("dst_type", [nl.float32, nl.bfloat16])
def test_scale_or_bias_in_the_tile_that_is_written_and_data_in_another(dtype: Any, dst_type: Any) -> None:
    """The scale and the bias are read before the instruction writes over them, whatever has to be cast."""

    def body(first: Any, second: Any, third: Any, data: Any) -> None:
        scale, bias = tile(2, 1, value=10), tile(2, 1, value=10)
        for result, in_dst in ((first, "scale"), (second, "bias"), (third, "scale bias")):
            dst = tile(2, 3, dtype=dst_type, value=5)
            own = dst if dst_type == nl.float32 else tile(2, 3, value=5)
            nisa.activation(
                dst,
                nl.copy,
                data,
                scale=own[:, 1:2] if "scale" in in_dst else scale,
                bias=dst[:, 2:3] if "bias" in in_dst else bias,
            )
            nisa.tensor_copy(result, dst)

    results = run(body, [Tile(DATA, dtype)], *[Result((2, 3))] * 3)
    expected = (DATA * 5 + 10, DATA * 10 + 5, DATA * 5 + 5)
    assert [result.tolist() for result in results] == [array.tolist() for array in expected]


def test_data_is_cast_to_float32_and_the_result_from_it() -> None:
    data = np.array([[16777217, 200, -3]], np.int32)
    for dtype, expected in ((nl.float32, [16777216, 200, -3]), (nl.uint8, [255, 200, 0]), (nl.int8, [127, 127, -3])):
        result = run(lambda dst, x: nisa.activation(dst, nl.copy, x), [data], Result((1, 3), dtype))
        assert result.tolist() == [expected]
    halves = run(
        lambda dst, x: nisa.activation(dst, nl.copy, x, scale=0.5),
        [np.array([[1, 3, 5]], np.int8)],
        Result((1, 3), nl.int32),
    )
    assert halves.tolist() == [[0, 2, 2]]  # to nearest even
    coarse = run(lambda dst, x: nisa.activation(dst, nl.copy, x), [column(257)], Result((1, 1), nl.bfloat16))
    assert coarse.dtype == ml_dtypes.bfloat16 and coarse == 256


def test_free_shapes_may_differ() -> None:
    result = run(lambda dst, data: nisa.activation(dst, nl.abs, data), [-normal(2, 6)], Result((2, 3, 2)))
    assert result.tolist() == np.abs(normal(2, 6)).reshape(2, 3, 2).tolist()


# -- the accumulator registers ---------------------------------------------------------------------------------------


def test_reset_reduce_sums_the_activated_data_over_all_free_dimensions() -> None:
    values = normal(4, 30, 10)
    exponential, sums = run(
        lambda dst, total, data: nisa.activation(
            dst, nl.exp, data, reduce_op=nl.add, reduce_res=total, reduce_cmd=COMMAND.reset_reduce
        ),
        [values],
        Result((4, 300)),
        Result((4, 1)),
    )
    for row, activated, total in zip(values.reshape(4, 300), exponential, sums[:, 0], strict=True):
        reference = [math.exp(float(x)) for x in row]
        assert activated.tolist() == pytest.approx(reference, rel=4 * 2**-23)
        assert float(total) == pytest.approx(math.fsum(reference), rel=16 * 2**-24)


def test_the_sum_is_of_float32_results_before_the_cast_into_dst() -> None:
    """256 + 1 elements of 1.00390625 = 1 + 2^-8, which bfloat16 would round to 1."""
    data = np.full((1, 257), 1 + 2**-8, np.float32)
    _, total = run(
        lambda dst, total, x: nisa.activation(
            dst, nl.copy, x, reduce_op=nl.add, reduce_res=total, reduce_cmd=COMMAND.reset_reduce
        ),
        [data],
        Result((1, 257), nl.bfloat16),
        Result((1, 1)),
    )
    assert total == 257 + 257 / 256


def test_the_sum_is_cast_to_the_type_of_reduce_res() -> None:
    for dtype, expected in ((nl.bfloat16, 256), (nl.int32, 257), (nl.int8, 127)):
        _, total = run(
            lambda dst, total, x: nisa.activation(
                dst, nl.copy, x, reduce_op=nl.add, reduce_res=total, reduce_cmd=COMMAND.reset_reduce
            ),
            [np.ones((1, 257), np.float32)],
            Result((1, 257)),
            Result((1, 1), dtype),
        )
        assert total == expected


def _accumulate(*steps: tuple[Any, float]) -> list[float]:
    """Registers after each command on a (2, 3) tile whose rows are filled with the value and twice the value."""

    def body(registers: Any) -> None:
        rows = nl.ndarray((2, 1), nl.float32)
        nisa.iota(rows, [[1, 1]], offset=1, channel_multiplier=1)
        for number, (command, value) in enumerate(steps):
            data = tile(2, 3, value=value)
            nisa.activation(
                tile(2, 3),
                nl.copy,
                data,
                scale=rows,
                reduce_op=nl.add,
                reduce_cmd=command,
                reduce_res=registers[:, number : number + 1],
            )

    registers = run(body, [], Result((2, len(steps))))
    assert registers[1].tolist() == [2 * x for x in registers[0].tolist()]
    result: list[float] = registers[0].tolist()
    return result


def test_reduce_adds_to_what_the_registers_hold() -> None:
    """3 x 1, then 3 x 10 more, then 3 x 100 more: not the 3 + 2 (3 + ...) of the pseudo-code."""
    steps = ((COMMAND.reset_reduce, 1), (COMMAND.reduce, 10), (COMMAND.reduce, 100))
    assert _accumulate(*steps) == [3, 33, 333]


def test_reset_reduce_clears_the_registers() -> None:
    assert _accumulate((COMMAND.reset_reduce, 1), (COMMAND.reset_reduce, 10), (COMMAND.reduce, 1)) == [3, 30, 33]


def test_idle_leaves_the_registers() -> None:
    assert _accumulate((COMMAND.reset_reduce, 1), (COMMAND.idle, 10), (COMMAND.reduce, 100)) == [3, 3, 303]


def test_reset_sets_the_registers_to_zero_only() -> None:
    assert _accumulate((COMMAND.reset_reduce, 1), (COMMAND.reset, 10), (COMMAND.reduce, 100)) == [3, 0, 300]
    assert _accumulate((COMMAND.reset, 7), (COMMAND.reduce, 1)) == [0, 3]


def test_registers_keep_the_sum_without_reduce_res() -> None:
    """Chained calls need a tile for the result in the last one only; other instructions between them do not matter."""

    def body(total: Any, data: Any) -> None:
        scratch = nl.ndarray((2, 3), nl.float32)
        nisa.activation(scratch, nl.copy, data, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation(scratch, nl.square, data, reduce_op=nl.add, reduce_cmd=COMMAND.reduce)
        nisa.tensor_scalar_reduce(scratch, data, nl.add, 0, nl.add)
        nisa.activation(scratch, nl.exp, data, reduce_res=total)

    assert run(body, [DATA], Result((2, 1))).tolist() == [[6 + 14], [15 + 77]]


def test_every_partition_has_a_register_of_its_own() -> None:
    """Sums of partitions 32 to 33 and of 0 to 1 do not meet; the register is that of the partition of the data."""

    def body(total: Any, data: Any) -> None:
        wide = tile(64, 3)
        upper, lower = wide[32:34], wide[0:2]
        nisa.tensor_copy(upper, data)
        nisa.activation(upper, nl.copy, upper, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation(lower, nl.copy, data, scale=-1.0, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation(upper, nl.copy, upper, reduce_res=total[:, 0:1])
        nisa.activation(lower, nl.copy, lower, reduce_res=total[:, 1:2])

    assert run(body, [DATA], Result((2, 2))).tolist() == [[6, -6], [15, -15]]


def test_registers_do_not_outlive_the_kernel() -> None:
    def adding() -> None:
        nisa.activation(tile(2, 2), nl.copy, tile(2, 2), reduce_op=nl.add, reduce_cmd=COMMAND.reduce)

    def resetting() -> None:
        nisa.activation(tile(2, 2), nl.copy, tile(2, 2), reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        adding()

    execute(resetting)
    message = (
        "nisa.activation: reduce_cmd=reduce continues from accumulator registers that hold no defined value; start "
        "with reset_reduce"
    )
    assert refusal(adding, error=UNINITIALIZED) == message


def test_registers_that_were_never_set_read_as_nan_unless_that_is_an_error() -> None:
    def reading() -> None:
        nisa.activation(tile(2, 2), nl.copy, tile(2, 2), reduce_res=nl.ndarray((2, 1), nl.float32))

    message = (
        "nisa.activation: reduce_res reads accumulator registers that hold no defined value; start with "
        "reduce_cmd=reset_reduce"
    )
    assert refusal(reading, error=UNINITIALIZED) == message
    with nkilib.simulator.using(uninitialized="nan"):
        read = run(
            lambda total: nisa.activation(
                tile(2, 2), nl.copy, tile(2, 2), reduce_op=nl.add, reduce_cmd=COMMAND.reduce, reduce_res=total
            ),
            [],
            Result((2, 1)),
        )
    assert np.isnan(read).all()


@rules(
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2)),
    broken("function", op=nl.add).says("op=nl.add is no activation function of the Scalar engine").fixed(op=nl.abs),
    broken("function with a parameter", op=nl.prelu)
    .says("op=nl.prelu has a parameter, which nisa.activate2 (trn3) takes as relu_param")
    .instead(
        lambda: nisa.activate2(tile(2, 2), nl.prelu, tile(2, 2), 0.0, 0.0, nl.bypass, nl.bypass, relu_param=0.5),
        on="trn3",
    ),
    broken("operator", op=np.exp).says("op must be an operator such as nl.add, got <ufunc 'exp'>"),
    broken("scale type", scale=Sbuf(2, 1, dtype=nl.bfloat16))
    .says(one_type("scale", "float32"))
    .fixed(scale=Sbuf(2, 1)),
    broken("bias type", bias=Sbuf(2, 1, dtype=nl.tfloat32))
    .says(
        one_type(
            "bias",
            "bfloat16, bool, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, int16, "
            "int32, int8, uint16, uint32, uint8",
        )
    )
    .fixed(bias=Sbuf(2, 1, dtype=nl.bfloat16)),
    broken("scale shape", scale=Sbuf(4, 1)).says(one_each("scale", "data")).fixed(scale=Sbuf(4, 1)[0:2]),
    broken("bias shape", bias=Sbuf(2, 2)).says(one_each("bias", "data")).fixed(bias=Sbuf(2, 2)[:, 1]),
    legal(nisa.activation, on="trn1", dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2), bias=Sbuf(2, 1, value=1)),
    broken("constant bias on trn1", bias=1.0).says("bias must be a (P, 1) tensor on trn1, got 1.0"),
    legal(nisa.activation, on="trn1", dst=Sbuf(2, 2), op=nl.reciprocal, data=Sbuf(2, 2, value=1)),
    broken("reciprocal with a bias on trn1", data=Sbuf(2, 2), bias=Sbuf(2, 1, value=1)).says(
        "op=nl.reciprocal takes no bias on trn1"
    ),
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.reciprocal, data=Sbuf(2, 2), bias=Sbuf(2, 1, value=1)),
    broken("reciprocal with a bias, newer target", on="trn1").says("op=nl.reciprocal takes no bias on trn1"),
    legal(nisa.activation, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2)),
    broken("reduction operator", reduce_op=nl.maximum, reduce_cmd=COMMAND.reset_reduce)
    .says("reduce_op must be nl.add, got nl.maximum")
    .fixed(reduce_op=nl.add),
    broken("reduction without an operator", reduce_cmd=COMMAND.reset_reduce)
    .says("reduce_cmd=reset_reduce needs reduce_op=nl.add")
    .fixed(reduce_cmd=COMMAND.reset),
    broken("load_reduce", reduce_op=nl.add, reduce_cmd=COMMAND.load_reduce)
    .says("reduce_cmd must be idle, reset, reduce or reset_reduce, got <reduce_cmd.load_reduce: 4>")
    .fixed(reduce_cmd=COMMAND.idle),
    broken("reduce_res shape", reduce_op=nl.add, reduce_res=Sbuf(1, 2), reduce_cmd=COMMAND.reset_reduce)
    .says(one_each("reduce_res", "data"))
    .fixed(reduce_res=Sbuf(2, 1)),
    broken("partitions", dst=Sbuf(4, 2)).says(same_partitions("dst", "data")).fixed(dst=Sbuf(4, 2)[0:2]),
    broken("elements", dst=Sbuf(2, 3)).says(same_elements("dst", "data")).fixed(dst=Sbuf(2, 3)[:, 0:2]),
)
def test_activation_rules(rule: Rule) -> None:
    check_rule(rule)


# -- activation_reduce -----------------------------------------------------------------------------------------------


def test_activation_reduce_is_activation_with_reset_reduce() -> None:
    values = normal(3, 40)
    bias = column(0.5, 0.0, -0.5)

    def body(first: Any, total: Any, second: Any, same: Any, data: Any, bias: Any) -> None:
        nisa.activation_reduce(first, nl.exp, data, nl.add, total, bias, 0.25)
        nisa.activation(
            second,
            nl.exp,
            data,
            bias=bias,
            scale=0.25,
            reduce_op=nl.add,
            reduce_res=same,
            reduce_cmd=COMMAND.reset_reduce,
        )

    shapes = (Result((3, 40)), Result((3, 1))) * 2
    first, total, second, same = run(body, [values, bias], *shapes)
    assert first.tolist() == second.tolist()
    assert total.tolist() == same.tolist()
    for row, shift, got in zip(values, bias[:, 0], total[:, 0], strict=True):
        reference = math.fsum(math.exp(0.25 * float(x) + float(shift)) for x in row)
        assert float(got) == pytest.approx(reference, rel=16 * 2**-24)


def test_the_help_of_activation_reduce_has_its_formula_which_sums_before_the_cast() -> None:
    text = str(nisa.activation_reduce.__doc__)
    for line in ("output = op(data * scale + bias)", "reduce_res = sum of output over all free dimensions"):
        assert line in text

    def body(rounded: Any, total: Any, data: Any) -> None:
        nisa.memset(total, 100.0)  # not part of the sum
        nisa.activation_reduce(rounded, nl.copy, data, nl.add, total, scale=2.0, bias=1.0)

    data = np.full((1, 2, 2), 128, np.float32)  # 257 is 256 in bfloat16
    rounded, total = run(body, [data], Result((1, 2, 2), nl.bfloat16), Result((1, 1)))
    assert rounded.reshape(-1).tolist() == [256] * 4 and total.tolist() == [[4 * 257]]


def test_activation_reduce_shares_the_registers_and_may_leave_the_sum_there() -> None:
    def body(total: Any, data: Any) -> None:
        scratch = nl.ndarray((2, 3), nl.float32)
        nisa.activation(scratch, nl.square, data, reduce_op=nl.add, reduce_cmd=COMMAND.reset_reduce)
        nisa.activation_reduce(scratch, nl.copy, data, nl.add, None)
        nisa.activation(scratch, nl.copy, data, reduce_op=nl.add, reduce_cmd=COMMAND.reduce, reduce_res=total)

    assert run(body, [DATA], Result((2, 1))).tolist() == [[12], [30]]


@rules(
    legal(nisa.activation_reduce, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2), reduce_op=nl.add, reduce_res=Sbuf(2, 1)),
    broken("operator", reduce_op=nl.multiply).says("reduce_op must be nl.add, got nl.multiply"),
    legal(nisa.activation_reduce, dst=Sbuf(2, 2), op=nl.exp, data=Sbuf(2, 2), reduce_op=nl.add, reduce_res=None),
    broken("no operator", reduce_op=None, reduce_res=Sbuf(2, 1)).says("reduce_cmd=reset_reduce needs reduce_op=nl.add"),
    broken("constant bias on trn1", on="trn1", reduce_res=Sbuf(2, 1), bias=1.0)
    .says("bias must be a (P, 1) tensor on trn1, got 1.0")
    .fixed(on="trn2"),
)
def test_activation_reduce_rules(rule: Rule) -> None:
    check_rule(rule)


def test_tiles_larger_than_a_block_of_rows() -> None:
    """Each row has its own scale, bias and sum."""
    values, scale, bias = normal(128, WIDE, seed=5), normal(128, 1, seed=6), normal(128, 1, seed=7)

    def body(dst: Any, total: Any, data: Any, scale: Any, bias: Any) -> None:
        nisa.activation(
            dst,
            nl.exp,
            data,
            scale=scale,
            bias=bias,
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=COMMAND.reset_reduce,
        )

    activated, sums = run(body, [values, scale, bias], Result((128, WIDE), nl.bfloat16), Result((128, 1)))
    reference = np.exp(values.astype(np.float64) * scale.astype(np.float64) + bias.astype(np.float64))
    assert np.abs(activated.astype(np.float64) / reference - 1).max() <= 2**-8 + 2**-20
    assert np.abs(sums[:, 0] / reference.sum(axis=1) - 1).max() <= 2**-20
