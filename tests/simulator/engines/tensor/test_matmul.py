"""`nc_matmul` and `nc_transpose`: products, accumulation, tiling, types of each generation, transposition of bits."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Rule, Tile, check_rule, engine_of, execute, normal, refusal, rules, run, tile

PSUM = nl.psum
DOUBLE_ROW = nisa.matmul_perf_mode.double_row
ENGINE = nisa.engine


def psum(*shape: int, dtype: Any = nl.float32) -> Any:
    """In a kernel: a new PSUM tile, unwritten."""
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
    result = run(
        lambda dst, x, y: nisa.nc_matmul(dst, x, y), [stationary, moving], Result((rows, columns), nl.float32, PSUM)
    )
    assert result.tolist() == exact(stationary, moving)


def test_product_by_hand() -> None:
    """[[1, 2], [3, 4]].T @ [[5, 6], [7, 8]]."""
    stationary, moving = np.array([[1, 2], [3, 4]], np.float32), np.array([[5, 6], [7, 8]], np.float32)
    result = run(lambda dst, x, y: nisa.nc_matmul(dst, x, y), [stationary, moving], Result((2, 2), nl.float32, PSUM))
    assert result.tolist() == [[26, 30], [38, 44]]


def test_several_free_dimensions_count_as_one() -> None:
    stationary, moving = integers(4, 2, 3), integers(4, 5, 2, seed=1)
    result = run(lambda dst, x, y: nisa.nc_matmul(dst, x, y), [stationary, moving], Result((6, 2, 5), nl.float32, PSUM))
    assert result.reshape(6, 10).tolist() == exact(stationary.reshape(4, 6), moving.reshape(4, 10))


TYPES = [nl.float8_e4m3, nl.float8_e5m2, nl.bfloat16, nl.float16]


@pytest.mark.parametrize("moving_type", TYPES)
@pytest.mark.parametrize("stationary_type", TYPES)
def test_narrow_types_mix(stationary_type: Any, moving_type: Any) -> None:
    stationary, moving = integers(16, 4, high=4), integers(16, 3, seed=1, high=4)
    result = run(
        lambda dst, x, y: nisa.nc_matmul(dst, x, y),
        [Tile(stationary, stationary_type), Tile(moving, moving_type)],
        Result((4, 3), nl.float32, PSUM),
    )
    assert result.tolist() == exact(stationary, moving)


@pytest.mark.parametrize("types", [(nl.float32, nl.tfloat32), (nl.tfloat32, nl.float32), (nl.tfloat32, nl.tfloat32)])
def test_wide_types_mix(types: Any) -> None:
    stationary, moving = integers(16, 4), integers(16, 3, seed=1)
    result = run(
        lambda dst, x, y: nisa.nc_matmul(dst, x, y),
        [Tile(stationary, types[0]), Tile(moving, types[1])],
        Result((4, 3), nl.float32, PSUM),
    )
    assert result.tolist() == exact(stationary, moving)


def test_accumulation_is_float32() -> None:
    """128 products of bfloat16 numbers near 1: within float32 rounding of the exact sum, far finer than bfloat16."""
    stationary = (1 + normal(128, 16, scale=0.1)).astype(ml_dtypes.bfloat16)
    moving = (1 + normal(128, 32, seed=1, scale=0.1)).astype(ml_dtypes.bfloat16)
    result = run(lambda dst, x, y: nisa.nc_matmul(dst, x, y), [stationary, moving], Result((16, 32), nl.float32, PSUM))
    truth = stationary.astype(np.float64).T @ moving.astype(np.float64)
    assert np.abs(result / truth - 1).max() <= 128 * 2**-24


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


def fp8(*shape: int, dtype: Any = nl.float8_e4m3) -> Any:
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
    """In a kernel: ones on the diagonal, zeros elsewhere."""
    made = tile(rows, columns)
    nisa.memset(made[0:1, 0:1], 1)
    return made


@rules(
    Rule(
        "dst in PSUM",
        lambda: nisa.nc_matmul(tile(4, 4), tile(4, 4), tile(4, 4)),
        "nisa.nc_matmul: operand 'dst' must be in psum, got tensor [4, 4] float32 in sbuf",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4)),
    ),
    Rule(
        "stationary in SBUF",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, buffer=PSUM), tile(4, 4)),
        "nisa.nc_matmul: operand 'stationary' must be in sbuf, got tensor [4, 4] float32 in psum"
        "; copy it to sbuf first, with nisa.tensor_copy",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4)),
    ),
    Rule(
        "moving in SBUF",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4, buffer=PSUM)),
        "nisa.nc_matmul: operand 'moving' must be in sbuf, got tensor [4, 4] float32 in psum"
        "; copy it to sbuf first, with nisa.tensor_copy",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4)),
    ),
    Rule(
        "integers",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, dtype=nl.int8), tile(4, 4)),
        "nisa.nc_matmul: operand 'stationary' must have one of the types bfloat16, float16, float32, float8_e4m3, "
        "float8_e4m3fn, float8_e5m2, tfloat32, got tensor [4, 4] int8 in sbuf",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, dtype=nl.bfloat16), tile(4, 4, dtype=nl.float8_e4m3)),
    ),
    Rule(
        "float32 with a narrow type",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4, dtype=nl.bfloat16)),
        "nisa.nc_matmul: if one of 'stationary' and 'moving' is float32 or tfloat32, both are; got tensor [4, 4] "
        "float32 in sbuf and tensor [4, 4] bfloat16 in sbuf",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4, dtype=nl.tfloat32)),
    ),
    Rule(
        "type of dst",
        lambda: nisa.nc_matmul(psum(4, 4, dtype=nl.bfloat16), tile(4, 4), tile(4, 4)),
        "nisa.nc_matmul: operand 'dst' must be float32 on trn2, got tensor [4, 4] bfloat16 in psum",
        lambda: nisa.nc_matmul(psum(4, 4, dtype=nl.bfloat16), tile(4, 4), tile(4, 4)),
        corrected_target="trn3",
    ),
    Rule(
        "type of dst on trn3",
        lambda: nisa.nc_matmul(psum(4, 4, dtype=nl.float16), tile(4, 4), tile(4, 4)),
        "nisa.nc_matmul: operand 'dst' must be bfloat16 or float32 on trn3, got tensor [4, 4] float16 in psum",
        lambda: nisa.nc_matmul(psum(4, 4, dtype=nl.float32), tile(4, 4), tile(4, 4)),
        target="trn3",
    ),
    Rule(
        "float8_e4m3fn before trn3",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 4, dtype=nl.float8_e4m3fn), fp8(4, 4, dtype=nl.float8_e5m2)),
        "nisa.nc_matmul: float8_e4m3fn needs trn3, and cannot be mixed with float8_e4m3",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 4, dtype=nl.float8_e4m3fn), fp8(4, 4, dtype=nl.float8_e5m2)),
        corrected_target="trn3",
    ),
    Rule(
        "float8_e4m3fn with float8_e4m3",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 4, dtype=nl.float8_e4m3fn), fp8(4, 4, dtype=nl.float8_e4m3)),
        "nisa.nc_matmul: float8_e4m3fn needs trn3, and cannot be mixed with float8_e4m3",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 4, dtype=nl.float8_e4m3fn), fp8(4, 4, dtype=nl.float8_e4m3fn)),
        target="trn3",
    ),
    Rule(
        "contraction",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(8, 4)),
        "nisa.nc_matmul: operands 'stationary' and 'moving' must have the same partition dimension, got 4 and 8",
        lambda: nisa.nc_matmul(psum(4, 4), tile(8, 4), tile(8, 4)),
    ),
    Rule(
        "columns of stationary",
        lambda: nisa.nc_matmul(psum(128, 4), tile(4, 129), tile(4, 4)),
        "nisa.nc_matmul: operand 'stationary' must fit a tile of 128 rows and 128 columns, got tensor [4, 129] float32 "
        "in sbuf",
        lambda: nisa.nc_matmul(psum(128, 4), tile(4, 128), tile(4, 4)),
    ),
    Rule(
        "columns of moving",
        lambda: nisa.nc_matmul(psum(4, 513), tile(4, 4), tile(4, 513)),
        "nisa.nc_matmul: operand 'moving' must have at most 512 free elements, got 513",
        lambda: nisa.nc_matmul(psum(4, 512), tile(4, 4), tile(4, 512)),
    ),
    Rule(
        "across two banks",
        lambda: nisa.nc_matmul(psum(4, 1024)[:, 256:513], tile(4, 4), tile(4, 257)),
        "nisa.nc_matmul: operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements 256 to 512 "
        "of the partitions of tensor [4, 257] float32 in psum, in banks 0 and 1 of the tensor",
        lambda: nisa.nc_matmul(psum(4, 1024)[:, 512:769], tile(4, 4), tile(4, 257)),
    ),
    Rule(
        "across two banks, on trn3",
        lambda: nisa.nc_matmul(psum(4, 1024)[:, 0:1024:2], tile(4, 4), tile(4, 512)),
        "nisa.nc_matmul: operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements 0 to 1022 "
        "of the partitions of tensor [4, 512] float32 in psum, in banks 0 and 1 of the tensor",
        lambda: nisa.nc_matmul(psum(4, 1024)[:, 0:1024:2], tile(4, 4), tile(4, 512)),
        corrected_target="trn3",
    ),
    Rule(
        "columns of moving on trn3, float32",
        lambda: nisa.nc_matmul(psum(4, 4096), tile(4, 4), tile(4, 4097)),
        "nisa.nc_matmul: operand 'moving' must have at most 4096 free elements, got 4097",
        lambda: nisa.nc_matmul(psum(4, 4096), tile(4, 4), tile(4, 4096)),
        target="trn3",
    ),
    Rule(
        "columns of moving on trn3, bfloat16",
        lambda: nisa.nc_matmul(psum(4, 8192, dtype=nl.bfloat16), tile(4, 4), tile(4, 8193)),
        "nisa.nc_matmul: operand 'moving' must have at most 8192 free elements, got 8193",
        lambda: nisa.nc_matmul(psum(4, 8192, dtype=nl.bfloat16), tile(4, 4), tile(4, 8192)),
        target="trn3",
    ),
    Rule(
        "shape of dst",
        lambda: nisa.nc_matmul(psum(4, 8), tile(16, 8), tile(16, 4)),
        "nisa.nc_matmul: operand 'dst' must be of shape (8, 4), got tensor [4, 8] float32 in psum",
        lambda: nisa.nc_matmul(psum(8, 4), tile(16, 8), tile(16, 4)),
    ),
    Rule(
        "rows of dst",
        lambda: nisa.nc_matmul(psum(4, 4), tile(16, 8), tile(16, 4)),
        "nisa.nc_matmul: operand 'dst' must be of shape (8, 4), got tensor [4, 4] float32 in psum",
        lambda: nisa.nc_matmul(psum(4, 4), tile(16, 8)[:, 0:4], tile(16, 4)),
    ),
    Rule(
        "columns of dst",
        lambda: nisa.nc_matmul(psum(8, 8), tile(16, 8), tile(16, 4)),
        "nisa.nc_matmul: operand 'dst' must be of shape (8, 4), got tensor [8, 8] float32 in psum",
        lambda: nisa.nc_matmul(psum(8, 8)[:, 0:4], tile(16, 8), tile(16, 4)),
    ),
    Rule(
        "rows of a tile",
        tiled((0, 0), (32, 128), rows=33),
        "nisa.nc_matmul: operand 'stationary' must fit a tile of 32 rows and 128 columns, got tensor [33, 16] float32 "
        "in sbuf",
        tiled((0, 0), (64, 128), rows=33),
    ),
    Rule(
        "columns of a tile",
        tiled((0, 0), (128, 32), columns=33),
        "nisa.nc_matmul: operand 'stationary' must fit a tile of 128 rows and 32 columns, got tensor [16, 33] float32 "
        "in sbuf",
        tiled((0, 0), (128, 64), columns=33),
    ),
    Rule(
        "tile_position alone",
        tiled((0, 0), ()),
        "nisa.nc_matmul: tile_position and tile_size must both be set, got (0, 0) and ()",
        tiled((), ()),
    ),
    Rule(
        "tile_size alone",
        tiled((), (64, 128)),
        "nisa.nc_matmul: tile_position and tile_size must both be set, got () and (64, 128)",
        tiled((64, 0), (64, 128)),
    ),
    Rule(
        "one-dimensional tiles",
        tiled((0,), (64,)),
        "nisa.nc_matmul: tile_position and tile_size are pairs (row, column), got (0,) and (64,)",
        tiled((0, 0), (64, 128)),
    ),
    Rule(
        "tiles that are numbers",
        tiled(0, 64),
        "nisa.nc_matmul: tile_position and tile_size must both be set, got 0 and 64",
        tiled((0, 0), (64, 128)),
    ),
    *(
        Rule(
            "tiles that are no pairs",
            tiled(position, size),
            f"nisa.nc_matmul: tile_position and tile_size are pairs (row, column), got {position} and {size}",
            tiled((0, 0), (64, 128)),
        )
        for position, size in ((64, (64, 128)), ((0, 0), 64), ((0,), (64, 128)), ((0, 0), (64, 128, 1)))
    ),
    Rule(
        "stationary hint",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, value=2), tile(4, 4), is_stationary_onezero=True),
        "nisa.nc_matmul: is_stationary_onezero=True, but operand 'stationary' holds values other than 0 and 1",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, value=1), tile(4, 4, value=2), is_stationary_onezero=True),
    ),
    Rule(
        "moving hint",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4, value=0.5), is_moving_onezero=True),
        "nisa.nc_matmul: is_moving_onezero=True, but operand 'moving' holds values other than 0 and 1",
        lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4, value=0.5), tile(4, 4), is_moving_onezero=True),
    ),
    Rule(
        "perf_mode",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), perf_mode="double_column"),
        "nisa.nc_matmul: perf_mode must be a member of nki.isa.matmul_perf_mode, got 'double_column'",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
    ),
    Rule(
        "double rows on trn1",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
        "nisa.nc_matmul: perf_mode=double_row needs trn2 or newer and float8 operands, got [float8_e4m3]",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
        target="trn1",
        corrected_target="trn2",
    ),
    Rule(
        "double rows of bfloat16",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4, dtype=nl.bfloat16), perf_mode=DOUBLE_ROW),
        "nisa.nc_matmul: perf_mode=double_row needs trn2 or newer and float8 operands, got [bfloat16, float8_e4m3]",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4, dtype=nl.float8_e5m2), perf_mode=DOUBLE_ROW),
    ),
    Rule(
        "double rows without pairs",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 4), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
        "nisa.nc_matmul: perf_mode=double_row needs 'stationary' of shape [K, 2, free], got tensor [4, 4] float8_e4m3 "
        "in sbuf",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 8).reshape((4, 2, 4)), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
    ),
    Rule(
        "double rows without a free dimension",
        lambda: nisa.nc_matmul(psum(1, 4), fp8(4, 2), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
        "nisa.nc_matmul: perf_mode=double_row needs 'stationary' of shape [K, 2, free], got tensor [4, 2] float8_e4m3 "
        "in sbuf",
        lambda: nisa.nc_matmul(psum(1, 4), fp8(4, 2, 1), fp8(4, 2, 4), perf_mode=DOUBLE_ROW),
    ),
    Rule(
        "double rows of threes",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 3, 4), perf_mode=DOUBLE_ROW),
        "nisa.nc_matmul: perf_mode=double_row needs 'moving' of shape [K, 2, free], got tensor [4, 3, 4] float8_e4m3 "
        "in sbuf",
        lambda: nisa.nc_matmul(psum(4, 4), fp8(4, 2, 4), fp8(4, 3, 4)[:, 0:2], perf_mode=DOUBLE_ROW),
    ),
    Rule(
        "double rows in column tiles",
        lambda: nisa.nc_matmul(
            psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), tile_position=(0, 0), tile_size=(128, 64), perf_mode=DOUBLE_ROW
        ),
        "nisa.nc_matmul: perf_mode=double_row cannot be combined with column tiling",
        lambda: nisa.nc_matmul(
            psum(4, 4), fp8(4, 2, 4), fp8(4, 2, 4), tile_position=(0, 0), tile_size=(64, 128), perf_mode=DOUBLE_ROW
        ),
    ),
    Rule(
        "transposed type",
        transposing(nl.bfloat16, nl.float32),
        "nisa.nc_matmul: is_transpose=True needs 'dst' of the type of 'stationary', two or four bytes wide; got tensor "
        "[1, 1] float32 in psum and tensor [1, 1] bfloat16 in sbuf",
        transposing(nl.bfloat16, nl.bfloat16),
    ),
    Rule(
        "transposed type on trn1, where it is an ordinary matmul",
        transposing(nl.bfloat16, nl.bfloat16),
        "nisa.nc_matmul: operand 'dst' must be float32 on trn1, got tensor [1, 1] bfloat16 in psum",
        transposing(nl.bfloat16, nl.float32),
        target="trn1",
    ),
    Rule(
        "transposed float8",
        transposing(nl.float8_e4m3),
        "nisa.nc_matmul: is_transpose=True needs 'dst' of the type of 'stationary', two or four bytes wide; got tensor "
        "[1, 1] float8_e4m3 in psum and tensor [1, 1] float8_e4m3 in sbuf",
        transposing(nl.float16),
    ),
    Rule(
        "transposition without an identity",
        transposing(moving_value=2),
        "nisa.nc_matmul: is_transpose=True needs an identity matrix as 'moving'",
        transposing(moving_value=1),
    ),
    Rule(
        "transposition with a rectangle",
        lambda: nisa.nc_matmul(psum(2, 2), tile(1, 2), unit_rectangle(1, 2), is_transpose=True),
        "nisa.nc_matmul: is_transpose=True needs an identity matrix as 'moving'",
        lambda: nisa.nc_matmul(psum(2, 1), tile(1, 2), unit_rectangle(1, 1), is_transpose=True),
    ),
    Rule(
        "accumulated transposition",
        transposing(accumulate=True),
        "nisa.nc_matmul: is_transpose=True moves bits and cannot accumulate, got accumulate=True",
        transposing(accumulate=False),
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
    result = run(lambda dst, data: nisa.nc_transpose(dst, data), [values], Result((6, 2, 2), nl.float32, PSUM))
    assert result.reshape(6, 4).tolist() == values.reshape(4, 6).T.tolist()


def test_transpose_engines() -> None:
    assert engine_of(lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4))) == "tensor"
    assert engine_of(lambda: nisa.nc_transpose(tile(4, 4), tile(4, 4))) == "vector"
    assert engine_of(lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4), engine=ENGINE.vector)) == "vector"
    assert engine_of(lambda: nisa.nc_matmul(psum(4, 4), tile(4, 4), tile(4, 4))) == "tensor"


@rules(
    Rule(
        "type",
        lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4, dtype=nl.bfloat16)),
        "nisa.nc_transpose: operand 'dst' must have the type of 'data', got tensor [4, 4] float32 in psum and tensor "
        "[4, 4] bfloat16 in sbuf",
        lambda: nisa.nc_transpose(psum(4, 4, dtype=nl.bfloat16), tile(4, 4, dtype=nl.bfloat16)),
    ),
    Rule(
        "shape",
        lambda: nisa.nc_transpose(psum(4, 8), tile(4, 8)),
        "nisa.nc_transpose: operand 'dst' must be of shape (8, 4), got tensor [4, 8] float32 in psum",
        lambda: nisa.nc_transpose(psum(8, 4), tile(4, 8)),
    ),
    Rule(
        "size on Tensor",
        lambda: nisa.nc_transpose(psum(128, 4), tile(4, 129), engine=ENGINE.tensor),
        "nisa.nc_transpose: operand 'data' must be at most [128, 128] on the tensor engine, got tensor [4, 129] "
        "float32 in sbuf",
        lambda: nisa.nc_transpose(psum(128, 4), tile(4, 128), engine=ENGINE.tensor),
    ),
    Rule(
        "columns on Vector",
        lambda: nisa.nc_transpose(psum(33, 4), tile(4, 33), engine=ENGINE.vector),
        "nisa.nc_transpose: operand 'data' must be at most [32, 32] on the vector engine, got tensor [4, 33] float32 "
        "in sbuf",
        lambda: nisa.nc_transpose(psum(33, 4), tile(4, 33), engine=ENGINE.tensor),
    ),
    Rule(
        "rows on Vector",
        lambda: nisa.nc_transpose(tile(4, 33), tile(33, 4)),
        "nisa.nc_transpose: operand 'data' must be at most [32, 32] on the vector engine, got tensor [33, 4] float32 "
        "in sbuf",
        lambda: nisa.nc_transpose(tile(4, 32), tile(32, 4)),
    ),
    Rule(
        "Tensor into SBUF",
        lambda: nisa.nc_transpose(tile(4, 4), tile(4, 4), engine=ENGINE.tensor),
        "nisa.nc_transpose: the Tensor engine transposes from sbuf to psum, got tensor [4, 4] float32 in sbuf and "
        "tensor [4, 4] float32 in sbuf",
        lambda: nisa.nc_transpose(tile(4, 4), tile(4, 4), engine=ENGINE.vector),
    ),
    Rule(
        "Tensor from PSUM",
        lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4, buffer=PSUM), engine=ENGINE.tensor),
        "nisa.nc_transpose: the Tensor engine transposes from sbuf to psum, got tensor [4, 4] float32 in psum and "
        "tensor [4, 4] float32 in psum",
        lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4, buffer=PSUM), engine=ENGINE.vector),
    ),
    Rule(
        "bank",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 510:514], tile(4, 4)),
        "nisa.nc_transpose: operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements 510 to "
        "513 of the partitions of tensor [4, 4] float32 in psum, in banks 0 and 1 of the tensor",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 512:516], tile(4, 4)),
    ),
    Rule(
        "bank, on Vector",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 510:514], tile(4, 4), engine=ENGINE.tensor),
        "nisa.nc_transpose: operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements 510 to "
        "513 of the partitions of tensor [4, 4] float32 in psum, in banks 0 and 1 of the tensor",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 510:514], tile(4, 4), engine=ENGINE.vector),
    ),
    Rule(
        "bank, on trn3",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 510:514], tile(4, 4)),
        "nisa.nc_transpose: operand 'dst' must lie in one PSUM bank of 2048 bytes in a partition, got elements 510 to "
        "513 of the partitions of tensor [4, 4] float32 in psum, in banks 0 and 1 of the tensor",
        lambda: nisa.nc_transpose(psum(4, 1024)[:, 510:514], tile(4, 4)),
        corrected_target="trn3",
    ),
    Rule(
        "engine",
        lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4), engine=ENGINE.gpsimd),
        "nisa.nc_transpose: engine must be one of nki.isa.engine.tensor, nki.isa.engine.vector, got "
        "nki.isa.engine.gpsimd",
        lambda: nisa.nc_transpose(psum(4, 4), tile(4, 4), engine=ENGINE.tensor),
    ),
)
def test_transpose_rules(rule: Rule) -> None:
    check_rule(rule)
