# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nc_matmul` and `nc_transpose`: products, accumulation, tiling, types of each generation, transposition of bits."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, execute, normal, refusal, run, tile
from ...made import Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import COPY_FIRST, must, one_type

PSUM = nl.psum
FP8 = nl.float8_e4m3
DOUBLE_ROW = nisa.matmul_perf_mode.double_row
ENGINE = nisa.engine


def psum(*shape: int, dtype: Any = nl.float32) -> Any:
    """Make a new PSUM tile, unwritten, in a kernel."""
    return nl.ndarray(shape, dtype, PSUM)


def integers(*shape: int, seed: int = 0, high: int = 8) -> Any:
    """Small integers, whose products and sums every floating-point type that is used here holds exactly."""
    return np.random.default_rng(seed).integers(-high, high, shape).astype(np.float32)


def exact(stationary: Any, moving: Any) -> Any:
    """`stationary.T @ moving` in integers."""
    return (stationary.astype(np.int64).T @ moving.astype(np.int64)).tolist()


# -- the product -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(128, 128, 512), (1, 1, 1), (7, 5, 3), (128, 1, 9), (33, 128, 1)], ids=str)
def test_product(shape: tuple[int, int, int]) -> None:
    """`(K, M, N)`: the contraction runs over the partitions of both operands."""
    contraction, rows, columns = shape
    stationary, moving = integers(contraction, rows), integers(contraction, columns, seed=1)
    result = run(nisa.nc_matmul, [stationary, moving], Result((rows, columns), nl.float32, PSUM))
    assert result.tolist() == exact(stationary, moving)


def test_product_by_hand() -> None:
    """[[1, 2], [3, 4]].T @ [[5, 6], [7, 8]]."""
    stationary, moving = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    result = run(nisa.nc_matmul, [stationary, moving], Result((2, 2), nl.float32, PSUM))
    assert result.tolist() == [[26, 30], [38, 44]]


def test_several_free_dimensions_count_as_one() -> None:
    stationary, moving = integers(4, 2, 3), integers(4, 5, 2, seed=1)
    result = run(nisa.nc_matmul, [stationary, moving], Result((6, 2, 5), nl.float32, PSUM))
    assert result.reshape(6, 10).tolist() == exact(stationary.reshape(4, 6), moving.reshape(4, 10))


TYPES = [nl.float8_e4m3, nl.float8_e5m2, nl.bfloat16, nl.float16]


@pytest.mark.parametrize("moving_type", TYPES)
@pytest.mark.parametrize("stationary_type", TYPES)
def test_narrow_types_mix(stationary_type: Any, moving_type: Any) -> None:
    stationary, moving = integers(16, 4, high=4), integers(16, 3, seed=1, high=4)
    result = run(
        nisa.nc_matmul,
        [Tile(stationary, stationary_type), Tile(moving, moving_type)],
        Result((4, 3), nl.float32, PSUM),
    )
    assert result.tolist() == exact(stationary, moving)


@pytest.mark.parametrize("types", [(nl.float32, nl.tfloat32), (nl.tfloat32, nl.float32), (nl.tfloat32, nl.tfloat32)])
def test_wide_types_mix(types: Any) -> None:
    stationary, moving = integers(16, 4), integers(16, 3, seed=1)
    result = run(
        nisa.nc_matmul,
        [Tile(stationary, types[0]), Tile(moving, types[1])],
        Result((4, 3), nl.float32, PSUM),
    )
    assert result.tolist() == exact(stationary, moving)


def test_accumulation_is_float32() -> None:
    """128 products of bfloat16 numbers near 1: within float32 rounding of the exact sum, far finer than bfloat16."""
    stationary = (1 + normal(128, 16, scale=0.1)).astype(ml_dtypes.bfloat16)
    moving = (1 + normal(128, 32, seed=1, scale=0.1)).astype(ml_dtypes.bfloat16)
    result = run(nisa.nc_matmul, [stationary, moving], Result((16, 32), nl.float32, PSUM))
    reference = stationary.astype(np.float64).T @ moving.astype(np.float64)
    assert np.abs(result / reference - 1).max() <= 128 * 2**-24


def test_a_strided_part_of_psum() -> None:
    """The product goes to every other column of a bank; the rest is not written."""
    stationary, moving = integers(8, 4), integers(8, 3, seed=1)

    def body(result: Any, x: Any, y: Any) -> None:
        wide = psum(4, 8)
        nisa.memset(wide, -1)
        nisa.nc_matmul(wide[:, 0:6:2], x, y, accumulate=False)
        nisa.tensor_copy(result, wide)

    result = run(body, [stationary, moving], Result((4, 8)))
    assert result[:, 0:6:2].tolist() == exact(stationary, moving)
    assert (result[:, [1, 3, 5, 6, 7]] == -1).all()


def test_bfloat16_results_on_trn3() -> None:
    """257 + 0 is 256 in bfloat16; accumulation reads it back as that."""

    def body(once: Any, twice: Any, x: Any, y: Any) -> None:
        nisa.nc_matmul(once, x, y)
        nisa.nc_matmul(twice, x, y)
        nisa.nc_matmul(twice, x, y)

    bf16 = Result((1, 1), nl.bfloat16, PSUM)
    ones = np.ones((1, 1), np.float32)
    once, twice = run(body, [257 * ones, ones], bf16, bf16, target="trn3")
    assert once.dtype == ml_dtypes.bfloat16
    assert once == 256 and twice == 512  # 256 + 257 = 513 rounds to 512


# -- accumulation ----------------------------------------------------------------------------------------------------


def accumulated(*flags: Any, target: str = "trn2") -> float:
    """1 x 2 + 1 x 3 = 5 in each call with `accumulate=flag`: what the element of PSUM holds after the last one."""

    def body(result: Any, x: Any, y: Any) -> None:
        for flag in flags:
            nisa.nc_matmul(result, x, y, accumulate=flag)

    ones, values = np.ones((2, 1), np.float32), np.array([[2], [3]], np.float32)
    return float(run(body, [ones, values], Result((1, 1), nl.float32, PSUM), target=target)[0, 0])


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_accumulate(target: str) -> None:
    assert accumulated(False, target=target) == 5
    assert accumulated(False, False, target=target) == 5
    assert accumulated(False, True, True, target=target) == 15
    assert accumulated(False, True, False, target=target) == 5
    assert accumulated(None, target=target) == 5
    assert accumulated(None, None, None, target=target) == 15
    assert accumulated(None, True, target=target) == 10
    assert accumulated(False, None, target=target) == 10
    assert accumulated(*[i > 0 for i in range(4)], target=target) == 20
    assert accumulated(np.bool_(False), np.bool_(True), target=target) == 10


def test_accumulate_none_decides_for_every_element() -> None:
    """The second product covers columns 0 to 3; the first one has been to 0 and 1 only."""

    def body(result: Any, x: Any, y: Any) -> None:
        wide = psum(1, 4)
        nisa.nc_matmul(wide[:, 0:2], x, y[:, 0:2])
        nisa.nc_matmul(wide, x, y)
        nisa.tensor_copy(result, wide)

    ones, values = np.ones((1, 1), np.float32), np.array([[1, 2, 3, 4]], np.float32)
    assert run(body, [ones, values], Result((1, 4))).tolist() == [[2, 4, 3, 4]]


def test_a_tiled_contraction() -> None:
    """The documentation's example: K = 512 in four tiles."""
    stationary, moving = integers(512, 64), integers(512, 96, seed=1)
    left, right = stationary.reshape(4, 128, 64), moving.reshape(4, 128, 96)
    for flags in ([None] * 4, [False, True, True, True]):

        def body(result: Any, *tiles: Any) -> None:
            for number in range(4):
                nisa.nc_matmul(result, tiles[number], tiles[4 + number], accumulate=flags[number])  # noqa: B023

        result = run(body, [*left, *right], Result((64, 96), nl.float32, PSUM))
        assert result.tolist() == exact(stationary, moving)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_after_another_instruction_has_written_zeros_matmuls_sum_up(target: str) -> None:
    """The usual `memset(psum, 0)` before a loop of matmuls with `accumulate=None`."""

    def body(result: Any) -> None:
        nisa.memset(result, 0)
        for _ in range(2):
            nisa.nc_matmul(result, tile(2, 1, value=1), tile(2, 1, value=3))

    assert run(body, [], Result((1, 1), nl.float32, PSUM), target=target) == 12


@pytest.mark.parametrize("flag", [None, True])
def test_trn3_adds_to_what_another_instruction_has_written(flag: Any) -> None:
    def body(result: Any) -> None:
        nisa.memset(result, 100)
        nisa.nc_matmul(result, tile(2, 1, value=1), tile(2, 1, value=3), accumulate=flag)

    assert run(body, [], Result((1, 1), nl.float32, PSUM), target="trn3") == 106


def _matmul_on(flag: Any, *, preset: float | None, then_copied_over: bool = False) -> Body:
    def kernel() -> None:
        result = psum(1, 1)
        if preset is not None:
            nisa.memset(result, preset)
        if then_copied_over:
            nisa.nc_matmul(result, tile(2, 1, value=1), tile(2, 1, value=3))
            nisa.tensor_copy(result, tile(1, 1, value=8))
        nisa.nc_matmul(result, tile(2, 1, value=1), tile(2, 1, value=3), accumulate=flag)

    return kernel


NOT_A_RESULT = (
    "nisa.nc_matmul: accumulate=True needs 'dst' to hold a matmul result; 1 of the 1 elements of tensor [1, 1] float32 "
    "in psum were not written by a matmul, start with accumulate=False"
)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_before_trn3_only_results_of_matmuls_can_be_added_to(target: str) -> None:
    assert refusal(_matmul_on(True, preset=100), target) == NOT_A_RESULT
    assert refusal(_matmul_on(True, preset=0), target) == NOT_A_RESULT
    assert refusal(_matmul_on(True, preset=None, then_copied_over=True), target) == NOT_A_RESULT
    execute(_matmul_on(False, preset=100), target)
    execute(_matmul_on(False, preset=None, then_copied_over=True), target)


@pytest.mark.parametrize("target", ["trn1", "trn2"])
@pytest.mark.parametrize("flag", [None, False])
@pytest.mark.parametrize("preset", [0.0, 100.0, math.inf, math.nan])
def test_before_trn3_a_matmul_overwrites_what_no_matmul_has_written(target: str, flag: Any, preset: float) -> None:
    """Whatever its value: by a memset, and by a copy over the result of an earlier matmul."""

    def body(filled: Any, copied: Any) -> None:
        ones, threes = tile(2, 1, value=1), tile(2, 1, value=3)
        nisa.memset(filled, preset)
        nisa.nc_matmul(filled, ones, threes, accumulate=flag)
        nisa.nc_matmul(copied, ones, threes)
        nisa.tensor_copy(copied, tile(1, 1, value=preset))
        nisa.nc_matmul(copied, ones, threes, accumulate=flag)

    result = Result((1, 1), nl.float32, PSUM)
    assert [array.tolist() for array in run(body, [], result, result, target=target)] == [[[6]], [[6]]]


@pytest.mark.parametrize("target", ["trn1", "trn2"])
def test_before_trn3_overwriting_and_adding_are_decided_for_every_element(target: str) -> None:
    """Column 0 holds a product; another instruction has written over those of columns 1 and 2."""

    def body(result: Any, x: Any, y: Any) -> None:
        nisa.nc_matmul(result, x, y)
        nisa.memset(result[:, 1:3], 100)
        nisa.nc_matmul(result, x, y)

    ones, values = np.ones((1, 1), np.float32), np.array([[1, 2, 3]], np.float32)
    assert run(body, [ones, values], Result((1, 3), nl.float32, PSUM), target=target).tolist() == [[2, 2, 3]]


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_accumulate_true_needs_every_element_to_be_a_result(target: str) -> None:
    def body(columns: int) -> Body:
        def kernel() -> None:
            result, ones, threes = psum(1, 4), tile(2, 1, value=1), tile(2, 4, value=3)
            nisa.nc_matmul(result[:, :columns], ones, threes[:, :columns])
            nisa.nc_matmul(result, ones, threes, accumulate=True)

        return kernel

    assert refusal(body(3), target) == (
        "nisa.nc_matmul: accumulate=True needs 'dst' to hold a matmul result; 1 of the 4 elements of tensor [1, 4] "
        "float32 in psum were not written by a matmul, start with accumulate=False"
    )
    execute(body(4), target)


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_no_generation_adds_to_unwritten_psum(target: str) -> None:
    assert refusal(_matmul_on(True, preset=None), target) == NOT_A_RESULT
    execute(_matmul_on(None, preset=None), target)


# -- hints and tiling ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stationary", "moving"])
def test_onezero_hints(name: str) -> None:
    """A hint changes no result; on types other than float32 it has no effect at all."""

    def body(result: Any, x: Any, y: Any) -> None:
        nisa.nc_matmul(result, x, y, **{f"is_{name}_onezero": True})

    ones_and_zeros = (integers(8, 4) > 0).astype(np.float32)
    operands = (ones_and_zeros, ones_and_zeros[:, ::-1])
    result = run(body, operands, Result((4, 4), nl.float32, PSUM))
    assert result.tolist() == exact(*operands)
    others = integers(8, 4), integers(8, 4, seed=1)
    result = run(body, [Tile(other, nl.bfloat16) for other in others], Result((4, 4), nl.float32, PSUM))
    assert result.tolist() == exact(*others)


@pytest.mark.parametrize(
    ("position", "size"),
    [((0, 0), (128, 128)), ((64, 0), (64, 128)), ((0, 96), (128, 32)), ((32, 64), (32, 64)), ((96, 96), (32, 32))],
)
def test_tiles_of_the_array_give_the_same_product(position: Any, size: Any) -> None:
    stationary, moving = integers(32, 32), integers(32, 10, seed=1)
    result = run(
        lambda dst, x, y: nisa.nc_matmul(dst, x, y, tile_position=position, tile_size=size),
        [stationary, moving],
        Result((32, 10), nl.float32, PSUM),
    )
    assert result.tolist() == exact(stationary, moving)


def tiled(position: Any, size: Any, rows: int = 16, columns: int = 16, **options: Any) -> Body:
    return lambda: nisa.nc_matmul(
        psum(columns, 8), tile(rows, columns), tile(rows, 8), tile_position=position, tile_size=size, **options
    )


WRONG_TILE = (
    "nisa.nc_matmul: tile_size must be of {} and tile_position a multiple of it inside 128, got tile_position={}, "
    "tile_size={}"
)


@pytest.mark.parametrize(
    ("target", "position", "size", "corrected"),
    [
        ("trn2", (0, 0), (16, 128), ((0, 0), (32, 128))),
        ("trn2", (0, 0), (128, 256), ((0, 0), (128, 128))),
        ("trn2", (16, 0), (32, 128), ((32, 0), (32, 128))),
        ("trn2", (32, 0), (64, 128), ((64, 0), (64, 128))),
        ("trn2", (0, 128), (128, 64), ((0, 64), (128, 64))),
        ("trn2", (-32, 0), (32, 128), ((0, 0), (32, 128))),
        ("trn1", (0, 0), (32, 128), ((0, 0), (64, 128))),
    ],
)
def test_tile_sizes_and_positions(target: str, position: Any, size: Any, corrected: Any) -> None:
    sizes = [64, 128] if target == "trn1" else [32, 64, 128]
    assert refusal(tiled(position, size), target) == WRONG_TILE.format(sizes, position, size)
    execute(tiled(*corrected), target)


# -- FP8 double rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [DOUBLE_ROW, "double_row"], ids=["member", "value"])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("types", [(nl.float8_e4m3, nl.float8_e5m2), (nl.float8_e5m2, nl.float8_e5m2)], ids=str)
def test_double_row_contracts_over_partitions_and_pairs(types: Any, target: str, mode: Any) -> None:
    """The documentation's `[1, 256] @ [256, 3]`, of integers that FP8 holds; published kernels name the mode."""
    stationary, moving = integers(128, 2, 1, high=4), integers(128, 2, 3, seed=1, high=4)
    result = run(
        lambda dst, x, y: nisa.nc_matmul(dst, x, y, perf_mode=mode),
        [Tile(stationary, types[0]), Tile(moving, types[1])],
        Result((1, 3), nl.float32, PSUM),
        target=target,
    )
    expected = [[0, 0, 0]]
    for partition in range(128):
        for pair in range(2):
            for column in range(3):
                product = stationary[partition, pair, 0] * moving[partition, pair, column]
                expected[0][column] += int(product)
    assert result.tolist() == expected


def fp8(*shape: int, dtype: Any = FP8) -> Any:
    return tile(*shape, dtype=dtype)


# -- transposition by matmul -----------------------------------------------------------------------------------------

BITS = np.array([[0x7FC12345, 0xFF800000, 0x00000001], [0x80000000, 0x7F800000, 0x3F800001]], np.uint32)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_transpose_mode_moves_bits(target: str) -> None:
    """NaN payloads, infinities and subnormal numbers arrive unchanged."""
    result = run(
        lambda dst, x, identity: nisa.nc_matmul(dst, x, identity, is_transpose=True),
        [BITS.view(np.float32), np.eye(2, dtype=np.float32)],
        Result((3, 2), nl.float32, PSUM),
        target=target,
    )
    assert result.view(np.uint32).tolist() == BITS.T.tolist()


@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float16])
def test_transpose_mode_writes_two_byte_types_into_psum(dtype: Any) -> None:
    values = integers(5, 7)
    result = run(
        lambda dst, x, identity: nisa.nc_matmul(dst, x, identity, is_transpose=True),
        [Tile(values, dtype), Tile(np.eye(5, dtype=np.float32), dtype)],
        Result((7, 5), dtype, PSUM),
    )
    assert result.dtype.name == str(dtype)
    assert result.tolist() == values.T.tolist()


def test_transpose_mode_overwrites() -> None:
    def body(dst: Any, x: Any, identity: Any) -> None:
        for _ in range(2):
            nisa.nc_matmul(dst, x, identity, is_transpose=True)

    values = integers(3, 4)
    result = run(body, [values, np.eye(3, dtype=np.float32)], Result((4, 3), nl.float32, PSUM))
    assert result.tolist() == values.T.tolist()


@pytest.mark.parametrize("perf_mode", [nisa.matmul_perf_mode.none, DOUBLE_ROW], ids=["rows", "double rows"])
def test_a_contraction_over_nothing_is_zero(perf_mode: Any) -> None:
    """Slices of size 0 are accepted."""

    def body(dst: Any) -> None:
        nisa.nc_matmul(dst, fp8(4, 2, 4)[0:0], fp8(4, 2, 4)[0:0], perf_mode=perf_mode)

    shape = (4, 4) if perf_mode is DOUBLE_ROW else (8, 8)
    assert run(body, [], Result(shape, nl.float32, PSUM)).tolist() == np.zeros(shape).tolist()


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_tiles_without_elements_are_accepted(target: str) -> None:
    """They run and leave what is beside them."""

    def body(beside: Any) -> None:
        nisa.memset(beside, 7)
        dst = beside[:, 0:0]
        nisa.nc_matmul(dst, tile(2, 4), tile(2, 3)[:, 0:0])
        nisa.nc_transpose(dst, tile(2, 4)[0:0])
        nisa.nc_transpose(dst, tile(2, 4)[0:0], engine=ENGINE.vector)

    with nkilib.simulator.recording() as record:
        result = run(body, [], Result((4, 600), nl.float32, PSUM), target=target)
    assert result.tolist() == [[7] * 600] * 4
    assert (record.instruction_counts["nc_matmul"], record.instruction_counts["nc_transpose"]) == (1, 2)
    assert record.instructions_per_engine["tensor"] == 2


@pytest.mark.parametrize("mode", ["nc_transpose", "is_transpose"])
@pytest.mark.parametrize("is_written_before", [False, True])
def test_before_trn3_no_matmul_adds_to_what_was_transposed(mode: str, is_written_before: bool) -> None:
    """Whether a matmul had written there before, and whichever way the bits were moved: 2 * 3 takes their place."""

    def body(dst: Any) -> None:
        if is_written_before:
            nisa.nc_matmul(dst, tile(2, 1, value=1), tile(2, 1, value=10))
        if mode == "nc_transpose":
            nisa.nc_transpose(dst, tile(1, 1, value=5))
        else:
            nisa.nc_matmul(dst, tile(1, 1, value=5), tile(1, 1, value=1), is_transpose=True)
        nisa.nc_matmul(dst, tile(2, 1, value=1), tile(2, 1, value=3))

    assert run(body, [], Result((1, 1), nl.float32, PSUM)) == 6


def test_on_trn1_the_transpose_flag_only_marks_an_ordinary_matmul() -> None:
    """NaN and infinity spread over their row of products, since each is multiplied by the zeros of the identity."""
    values = np.array([[1, math.nan, math.inf], [2, 3, 4]], np.float32)
    result = run(
        lambda dst, x, identity: nisa.nc_matmul(dst, x, identity, is_transpose=True),
        [values, np.eye(2, dtype=np.float32)],
        Result((3, 2), nl.float32, PSUM),
        target="trn1",
    )
    assert result[0].tolist() == [1, 2]
    assert np.isnan(result[1]).all()
    assert result[2, 0] == math.inf and math.isnan(result[2, 1])


def transposing(dtype: Any = nl.float32, result: Any = None, moving_value: Any = None, **options: Any) -> Body:
    """A transposition of one element, whose identity matrix is `[[1]]`."""
    return lambda: nisa.nc_matmul(
        psum(1, 1, dtype=result or dtype),
        tile(1, 1, dtype=dtype),
        tile(1, 1, dtype=dtype, value=1 if moving_value is None else moving_value),
        is_transpose=True,
        **options,
    )


def unit_rectangle(rows: int, columns: int) -> Any:
    """Make a tile with a one at its first element and zeros elsewhere, in a kernel."""
    made = tile(rows, columns)
    nisa.memset(made[0:1, 0:1], 1)
    return made


ONE_BANK = (
    "operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements {} to {} of the partitions of "
    "{{dst}}, in banks 0 and 1 of the tensor"
)


@rules(
    legal(nisa.nc_matmul, dst=Psum(4, 4), stationary=Sbuf(4, 4), moving=Sbuf(4, 4)),
    broken("dst in PSUM", dst=Sbuf(4, 4)).says(must("dst", "be in psum")),
    broken("stationary in SBUF", stationary=Psum(4, 4)).says(must("stationary", "be in sbuf", COPY_FIRST)),
    broken("moving in SBUF", moving=Psum(4, 4)).says(must("moving", "be in sbuf", COPY_FIRST)),
    broken("integers", stationary=Sbuf(4, 4, dtype=nl.int8))
    .says(one_type("stationary", "bfloat16, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, tfloat32"))
    .fixed(stationary=Sbuf(4, 4, dtype=nl.bfloat16), moving=Sbuf(4, 4, dtype=nl.float8_e4m3)),
    broken("float32 with a narrow type", moving=Sbuf(4, 4, dtype=nl.bfloat16))
    .says("if one of 'stationary' and 'moving' is float32 or tfloat32, both are; got {stationary} and {moving}")
    .fixed(moving=Sbuf(4, 4, dtype=nl.tfloat32)),
    broken("type of dst", dst=Psum(4, 4, dtype=nl.bfloat16)).says(must("dst", "be float32 on trn2")).fixed(on="trn3"),
    legal(nisa.nc_matmul, on="trn3", dst=Psum(4, 4), stationary=Sbuf(4, 4), moving=Sbuf(4, 4)),
    broken("type of dst on trn3", dst=Psum(4, 4, dtype=nl.float16)).says(must("dst", "be bfloat16 or float32 on trn3")),
    legal(nisa.nc_matmul, Psum(4, 4), Sbuf(4, 4, dtype=nl.float8_e4m3fn), Sbuf(4, 4, dtype=nl.float8_e5m2), on="trn3"),
    broken("float8_e4m3fn before trn3", on="trn2").says(
        "float8_e4m3fn needs trn3, and cannot be mixed with float8_e4m3"
    ),
    broken("float8_e4m3fn with float8_e4m3", moving=Sbuf(4, 4, dtype=nl.float8_e4m3))
    .says("float8_e4m3fn needs trn3, and cannot be mixed with float8_e4m3")
    .fixed(moving=Sbuf(4, 4, dtype=nl.float8_e4m3fn)),
    legal(nisa.nc_matmul, dst=Psum(4, 1024)[:, 512:769], stationary=Sbuf(4, 4), moving=Sbuf(4, 257)),
    broken("contraction", dst=Psum(4, 4), moving=Sbuf(8, 4))
    .says("operands 'stationary' and 'moving' must have the same partition dimension, got 4 and 8")
    .fixed(stationary=Sbuf(8, 4)),
    broken("columns of stationary", dst=Psum(128, 4), stationary=Sbuf(4, 129), moving=Sbuf(4, 4))
    .says(must("stationary", "fit a tile of 128 rows and 128 columns"))
    .fixed(stationary=Sbuf(4, 128)),
    broken("columns of moving", dst=Psum(4, 513), moving=Sbuf(4, 513))
    .says("operand 'moving' must have at most 512 free elements, got 513")
    .fixed(dst=Psum(4, 512), moving=Sbuf(4, 512)),
    broken("across two banks", dst=Psum(4, 1024)[:, 256:513]).says(ONE_BANK.format(256, 512)),
    legal(nisa.nc_matmul, on="trn3", dst=Psum(4, 1024)[:, 0:1024:2], stationary=Sbuf(4, 4), moving=Sbuf(4, 512)),
    broken("across two banks, on trn3", on="trn2").says(ONE_BANK.format(0, 1022)),
    broken("columns of moving on trn3, float32", dst=Psum(4, 4096), moving=Sbuf(4, 4097))
    .says("operand 'moving' must have at most 4096 free elements, got 4097")
    .fixed(moving=Sbuf(4, 4096)),
    broken("columns of moving on trn3, bfloat16", dst=Psum(4, 8192, dtype=nl.bfloat16), moving=Sbuf(4, 8193))
    .says("operand 'moving' must have at most 8192 free elements, got 8193")
    .fixed(moving=Sbuf(4, 8192)),
    legal(nisa.nc_matmul, dst=Psum(8, 4), stationary=Sbuf(16, 8), moving=Sbuf(16, 4)),
    broken("shape of dst", dst=Psum(4, 8)).says(must("dst", "be of shape (8, 4)")),
    broken("rows of dst", dst=Psum(4, 4)).says(must("dst", "be of shape (8, 4)")).fixed(stationary=Sbuf(16, 8)[:, 0:4]),
    broken("columns of dst", dst=Psum(8, 8)).says(must("dst", "be of shape (8, 4)")).fixed(dst=Psum(8, 8)[:, 0:4]),
    legal(nisa.nc_matmul, dst=Psum(4, 4), stationary=Sbuf(4, 4), moving=Sbuf(4, 4)),
    broken("stationary hint", stationary=Sbuf(4, 4, value=2), is_stationary_onezero=True)
    .says("is_stationary_onezero=True, but operand 'stationary' holds values other than 0 and 1")
    .fixed(stationary=Sbuf(4, 4, value=1), moving=Sbuf(4, 4, value=2)),
    broken("moving hint", moving=Sbuf(4, 4, value=0.5), is_moving_onezero=True)
    .says("is_moving_onezero=True, but operand 'moving' holds values other than 0 and 1")
    .fixed(stationary=Sbuf(4, 4, value=0.5), moving=Sbuf(4, 4)),
    legal(nisa.nc_matmul, Psum(4, 4), Sbuf(4, 2, 4, dtype=FP8), Sbuf(4, 2, 4, dtype=FP8), perf_mode=DOUBLE_ROW),
    broken("perf_mode", perf_mode="double_column").says(
        "perf_mode must be a member of nki.isa.matmul_perf_mode, got 'double_column'"
    ),
    broken("double rows on trn1", on="trn1").says(
        "perf_mode=double_row needs trn2 or newer and float8 operands, got [float8_e4m3]"
    ),
    broken("double rows of bfloat16", moving=Sbuf(4, 2, 4, dtype=nl.bfloat16))
    .says("perf_mode=double_row needs trn2 or newer and float8 operands, got [bfloat16, float8_e4m3]")
    .fixed(moving=Sbuf(4, 2, 4, dtype=nl.float8_e5m2)),
    broken("double rows without pairs", stationary=Sbuf(4, 4, dtype=FP8))
    .says("perf_mode=double_row needs 'stationary' of shape [K, 2, free], got {stationary}")
    .fixed(stationary=Sbuf(4, 8, dtype=FP8).reshape((4, 2, 4))),
    broken("double rows without a free dimension", dst=Psum(1, 4), stationary=Sbuf(4, 2, dtype=FP8))
    .says("perf_mode=double_row needs 'stationary' of shape [K, 2, free], got {stationary}")
    .fixed(stationary=Sbuf(4, 2, 1, dtype=FP8)),
    broken("double rows of threes", moving=Sbuf(4, 3, 4, dtype=FP8))
    .says("perf_mode=double_row needs 'moving' of shape [K, 2, free], got {moving}")
    .fixed(moving=Sbuf(4, 3, 4, dtype=FP8)[:, 0:2]),
    broken("double rows in column tiles", tile_position=(0, 0), tile_size=(128, 64))
    .says("perf_mode=double_row cannot be combined with column tiling")
    .fixed(tile_size=(64, 128)),
    legal(nisa.nc_matmul, Psum(2, 1), Sbuf(1, 2), lazily(unit_rectangle, 1, 1), is_transpose=True),
    broken("transposition with a rectangle", dst=Psum(2, 2), moving=lazily(unit_rectangle, 1, 2)).says(
        "is_transpose=True needs an identity matrix as 'moving'"
    ),
    legal_kernel("nisa.nc_matmul", tiled, position=(64, 0), size=(64, 128)),
    broken("rows of a tile", position=(0, 0), size=(32, 128), rows=33)
    .says("operand 'stationary' must fit a tile of 32 rows and 128 columns, got tensor [33, 16] float32 in sbuf")
    .fixed(size=(64, 128)),
    broken("columns of a tile", position=(0, 0), size=(128, 32), columns=33)
    .says("operand 'stationary' must fit a tile of 128 rows and 32 columns, got tensor [16, 33] float32 in sbuf")
    .fixed(size=(128, 64)),
    broken("tile_position alone", position=(0, 0), size=())
    .says("tile_position and tile_size must both be set, got (0, 0) and ()")
    .fixed(position=()),
    broken("tile_size alone", position=()).says("tile_position and tile_size must both be set, got () and (64, 128)"),
    broken("one-dimensional tiles", position=(0,), size=(64,))
    .says("tile_position and tile_size are pairs (row, column), got (0,) and (64,)")
    .fixed(position=(0, 0), size=(64, 128)),
    broken("tiles that are numbers", position=0, size=64)
    .says("tile_position and tile_size must both be set, got 0 and 64")
    .fixed(position=(0, 0), size=(64, 128)),
    *(
        broken("tiles that are no pairs", position=position, size=size)
        .says(f"tile_position and tile_size are pairs (row, column), got {position} and {size}")
        .fixed(position=(0, 0), size=(64, 128))
        for position, size in ((64, (64, 128)), ((0, 0), 64), ((0,), (64, 128)), ((0, 0), (64, 128, 1)))
    ),
    legal_kernel("nisa.nc_matmul", transposing, dtype=nl.float16),
    broken("transposed type", dtype=nl.bfloat16, result=nl.float32)
    .says(
        "is_transpose=True needs 'dst' of the type of 'stationary', two or four bytes wide; got tensor [1, 1] "
        "float32 in psum and tensor [1, 1] bfloat16 in sbuf"
    )
    .fixed(result=nl.bfloat16),
    broken("transposed type on trn1, where it is an ordinary matmul", on="trn1", dtype=nl.bfloat16, result=nl.bfloat16)
    .says("operand 'dst' must be float32 on trn1, got tensor [1, 1] bfloat16 in psum")
    .fixed(result=nl.float32),
    broken("transposed float8", dtype=nl.float8_e4m3).says(
        "is_transpose=True needs 'dst' of the type of 'stationary', two or four bytes wide; got tensor [1, 1] "
        "float8_e4m3 in psum and tensor [1, 1] float8_e4m3 in sbuf"
    ),
    legal_kernel("nisa.nc_matmul", transposing, moving_value=1),
    broken("transposition without an identity", moving_value=2).says(
        "is_transpose=True needs an identity matrix as 'moving'"
    ),
    legal_kernel("nisa.nc_matmul", transposing, accumulate=False),
    broken("accumulated transposition", accumulate=True).says(
        "is_transpose=True moves bits and cannot accumulate, got accumulate=True"
    ),
)
def test_matmul_rules(rule: Rule) -> None:
    check_rule(rule)


# -- nc_transpose ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "source", "target", "shape"),
    [
        (ENGINE.tensor, nl.sbuf, PSUM, (128, 128)),
        (ENGINE.tensor, nl.sbuf, PSUM, (5, 100)),
        (ENGINE.vector, nl.sbuf, nl.sbuf, (32, 32)),
        (ENGINE.vector, nl.sbuf, PSUM, (7, 3)),
        (ENGINE.vector, PSUM, nl.sbuf, (1, 32)),
        (ENGINE.vector, PSUM, PSUM, (32, 2)),
        (ENGINE.unknown, nl.sbuf, PSUM, (100, 128)),
        (ENGINE.unknown, nl.sbuf, nl.sbuf, (8, 16)),
    ],
)
def test_transpose(engine: Any, source: Any, target: Any, shape: Any) -> None:
    values = normal(*shape)
    result = run(
        lambda dst, data: nisa.nc_transpose(dst, data, engine=engine),
        [Tile(values, buffer=source)],
        Result(shape[::-1], nl.float32, target),
    )
    assert result.tolist() == values.T.tolist()


@pytest.mark.parametrize("engine", [ENGINE.tensor, ENGINE.vector], ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    "dtype", [nl.int8, nl.uint16, nl.int32, nl.uint32, nl.bfloat16, nl.float16, nl.float32, nl.tfloat32, nl.float8_e4m3]
)
def test_transpose_takes_every_type(dtype: Any, engine: Any) -> None:
    values = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    result = run(
        lambda dst, data: nisa.nc_transpose(dst, data, engine=engine),
        [Tile(values, dtype)],
        Result((3, 2), dtype, PSUM),
    )
    assert result.astype(np.float32).tolist() == values.T.tolist()


@pytest.mark.parametrize("engine", [ENGINE.tensor, ENGINE.vector], ids=lambda engine: engine.name)
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_transpose_moves_bits(target: str, engine: Any) -> None:
    result = run(
        lambda dst, data: nisa.nc_transpose(dst, data, engine=engine),
        [BITS.view(np.float32)],
        Result((3, 2), nl.float32, PSUM),
        target=target,
    )
    assert result.view(np.uint32).tolist() == BITS.T.tolist()


def test_transpose_on_the_tensor_engine_of_trn1_is_a_product() -> None:
    """NaN and infinity spread over their row of the result there; the Vector engine moves bits."""
    values = np.array([[1, math.nan, math.inf], [2, 3, 4]], np.float32)
    for engine in (ENGINE.tensor, ENGINE.vector):
        result = run(
            lambda dst, data: nisa.nc_transpose(dst, data, engine=engine),  # noqa: B023
            [values],
            Result((3, 2), nl.float32, PSUM),
            target="trn1",
        )
        if engine is ENGINE.vector:
            assert np.array_equal(result, values.T, equal_nan=True)
        else:
            assert result[0].tolist() == [1, 2]
            assert np.isnan(result[1]).all()
            assert result[2, 0] == math.inf and math.isnan(result[2, 1])


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("engine", [ENGINE.tensor, ENGINE.vector], ids=lambda engine: engine.name)
def test_transpose_keeps_integers_that_no_float32_holds(engine: Any, target: str) -> None:
    values = np.array([[2**24 + 1, -(2**31)], [2**31 - 1, -1]], np.int32)
    result = run(
        lambda dst, data: nisa.nc_transpose(dst, data, engine=engine),
        [values],
        Result((2, 2), nl.int32, PSUM),
        target=target,
    )
    assert result.tolist() == values.T.tolist()


def test_transpose_flattens_the_free_axes() -> None:
    values = normal(4, 2, 3)
    result = run(nisa.nc_transpose, [values], Result((6, 2, 2), nl.float32, PSUM))
    assert result.reshape(6, 4).tolist() == values.reshape(4, 6).T.tolist()


def test_transpose_engines() -> None:
    assert engine_of(lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4))) == "tensor"
    assert engine_of(lambda: nisa.nc_transpose(tile(4, 4), tile(4, 4))) == "vector"
    assert engine_of(lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4), engine=ENGINE.vector)) == "vector"
    assert engine_of(lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4))) == "tensor"


@rules(
    legal(nisa.nc_transpose, dst=Psum(4, 4, dtype=nl.bfloat16), data=Sbuf(4, 4, dtype=nl.bfloat16)),
    broken("type", dst=Psum(4, 4)).says("operand 'dst' must have the type of 'data', got {dst} and {data}"),
    broken("shape", dst=Psum(4, 8), data=Sbuf(4, 8)).says(must("dst", "be of shape (8, 4)")).fixed(dst=Psum(8, 4)),
    legal(nisa.nc_transpose, dst=Psum(128, 4), data=Sbuf(4, 128), engine=ENGINE.tensor),
    broken("size on Tensor", data=Sbuf(4, 129)).says(must("data", "be at most [128, 128] on the tensor engine")),
    legal(nisa.nc_transpose, dst=Psum(33, 4), data=Sbuf(4, 33), engine=ENGINE.tensor),
    broken("columns on Vector", engine=ENGINE.vector).says(must("data", "be at most [32, 32] on the vector engine")),
    legal(nisa.nc_transpose, dst=Psum(4, 1024)[:, 512:516], data=Sbuf(4, 4)),
    broken("rows on Vector", dst=Sbuf(4, 33), data=Sbuf(33, 4))
    .says(must("data", "be at most [32, 32] on the vector engine"))
    .fixed(dst=Sbuf(4, 32), data=Sbuf(32, 4)),
    broken("Tensor into SBUF", dst=Sbuf(4, 4), engine=ENGINE.tensor)
    .says("the Tensor engine transposes from sbuf to psum, got {data} and {dst}")
    .fixed(engine=ENGINE.vector),
    broken("Tensor from PSUM", dst=Psum(4, 4), data=Psum(4, 4), engine=ENGINE.tensor)
    .says("the Tensor engine transposes from sbuf to psum, got {data} and {dst}")
    .fixed(engine=ENGINE.vector),
    broken("bank", dst=Psum(4, 1024)[:, 510:514]).says(ONE_BANK.format(510, 513)),
    broken("bank, on Vector", dst=Psum(4, 1024)[:, 510:514], engine=ENGINE.tensor)
    .says(ONE_BANK.format(510, 513))
    .fixed(engine=ENGINE.vector),
    broken("bank, on trn3", dst=Psum(4, 1024)[:, 510:514]).says(ONE_BANK.format(510, 513)).fixed(on="trn3"),
    broken("engine", dst=Psum(4, 4), engine=ENGINE.gpsimd)
    .says("engine must be one of nki.isa.engine.tensor, nki.isa.engine.vector, got nki.isa.engine.gpsimd")
    .fixed(engine=ENGINE.tensor),
)
def test_transpose_rules(rule: Rule) -> None:
    check_rule(rule)
