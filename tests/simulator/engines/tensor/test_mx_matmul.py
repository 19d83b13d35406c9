# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`nc_matmul_mx`: products of MX matrices, accumulation, scales, row tiles, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl

from ...kernels import (
    Body,
    Result,
    engine_of,
    execute,
    load,
    normal,
    refusal,
    run,
    store,
    tile,
)
from ...made import Made, Psum, Sbuf
from ...rules import Rule, broken, check_rule, legal, legal_kernel, rules
from ...sentences import needs
from .mx_reference import FIELDS, MX, MXFP8, SCALES, TABLES, Matrix, check_product

PSUM = nl.psum
UNINITIALIZED = nkilib.simulator.UninitializedReadError
BF16, E4M3, U8 = nl.bfloat16, nl.float8_e4m3fn_x4, nl.uint8


def random_matrix(partitions: int, columns: int, dtype: Any, seed: int = 0, spread: int = 6) -> Matrix:
    """Finite elements of every kind, and scales from 2**-spread to 2**spread."""
    rng = np.random.default_rng(seed)
    table = TABLES[str(dtype)]
    bits = rng.choice(np.flatnonzero(np.isfinite(table)), (partitions, columns, 4)).astype(np.int64)
    width = 1 + sum(FIELDS[str(dtype)])
    words = sum(bits[:, :, place] << width * place for place in range(4))
    return Matrix(words, dtype, rng.integers(127 - spread, 128 + spread, (partitions // 8, columns)))


def filled(partitions: int, columns: int, bits: int, dtype: Any, scale: int = 127) -> Matrix:
    """A matrix of one element and one scale."""
    width = 1 + sum(FIELDS[str(dtype)])
    word = sum(bits << width * place for place in range(4))
    return Matrix(np.full((partitions, columns), word), dtype, np.full((partitions // 8, columns), scale))


def multiplied(
    left: Matrix,
    right: Matrix,
    dtype: Any = nl.float32,
    scale_dtypes: tuple[Any, Any] = (nl.uint8, nl.uint8),
    starts: tuple[int, int] = (0, 0),
    **settings: Any,
) -> Any:
    """Return what `nc_matmul_mx` leaves in a new PSUM tile."""

    def kernel(arrays: list[Any]) -> Any:
        x, x_scale = left.loaded(arrays[0], arrays[1], scale_dtypes[0], starts[0])
        y, y_scale = right.loaded(arrays[2], arrays[3], scale_dtypes[1], starts[1])
        dst = nl.ndarray((x.shape[1], y.shape[1]), dtype, PSUM)
        nisa.nc_matmul_mx(dst, x, y, x_scale, y_scale, **settings)
        return store(dst)

    with nkilib.simulator.using(target="trn3"):
        return nki.jit(kernel)([left.words, left.scales, right.words, right.scales])


# -- nc_matmul_mx: the product ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", MX)
@pytest.mark.parametrize("left", MX)
def test_every_pair_of_types(left: Any, right: Any) -> None:
    stationary, moving = random_matrix(64, 6, left), random_matrix(64, 5, right, seed=1)
    check_product(multiplied(stationary, moving), stationary, moving)


@pytest.mark.parametrize("shape", [(32, 2, 1), (64, 128, 3), (96, 4, 7), (128, 128, 512)], ids=str)
def test_every_number_of_quadrants(shape: tuple[int, int, int]) -> None:
    """`(K, M, N)`; the contraction has 4 K elements."""
    partitions, rows, columns = shape
    stationary = random_matrix(partitions, rows, nl.float8_e4m3fn_x4)
    moving = random_matrix(partitions, columns, nl.float4_e2m1fn_x4, seed=1)
    check_product(multiplied(stationary, moving), stationary, moving)


def test_product_by_hand() -> None:
    """Ones times ones, 4 of them in each of 64 partitions; the scales of block b are 2**b and, in one column, 2**-b.

    32 elements a block: 32 * (1 + 2 + ... + 128) = 32 * 255, and 32 * 8 where the scales cancel.
    """
    ones_e4m3, ones_fp4 = 0x38, 0x2  # 0 0111 000 and 0 01 0
    stationary, moving = filled(64, 2, ones_e4m3, nl.float8_e4m3fn_x4), filled(64, 2, ones_fp4, nl.float4_e2m1fn_x4)
    stationary.scales[:] = 127 + np.arange(8)[:, None]
    moving.scales[:, 1] = 127 - np.arange(8)
    assert multiplied(stationary, moving).tolist() == [[32 * 255, 32 * 8]] * 2


def test_the_elements_of_a_word_are_combined_in_order() -> None:
    """(1, 2, 3, 4) . (1, 0, 0, 0), (0, 1, 0, 0), ...: each word has four elements, the first in the lowest bits."""
    one, two, three, four = 0x2, 0x4, 0x5, 0x6
    stationary, moving = filled(32, 2, 0, nl.float4_e2m1fn_x4), filled(32, 4, 0, nl.float4_e2m1fn_x4)
    stationary.words[5] = one | two << 4 | three << 8 | four << 12
    moving.words[5] = [one, one << 4, one << 8, one << 12]
    assert multiplied(stationary, moving).tolist() == [[1, 2, 3, 4]] * 2


def test_the_contraction_is_that_of_a_matrix_in_four_parts() -> None:
    """The guide's layout: rows p, K + p, 2 K + p and 3 K + p of a (4 K)-row matrix share the words of partition p."""
    matrix, other = np.arange(128 * 2).reshape(128, 2) % 7 - 3.0, np.arange(128 * 3).reshape(128, 3) % 5 - 2.0

    def packed(whole: Any) -> Matrix:
        table = TABLES["float8_e5m2_x4"][:252]  # without NaN
        bits = np.array([[int(np.flatnonzero(table == number)[0]) for number in row] for row in whole])
        parts = bits.reshape(4, 32, -1)
        words = sum(parts[place] << 8 * place for place in range(4))
        return Matrix(words, nl.float8_e5m2_x4, np.full((4, whole.shape[1]), 127))

    assert multiplied(packed(matrix), packed(other)).tolist() == (matrix.T @ other).tolist()


@pytest.mark.parametrize("right", SCALES)
@pytest.mark.parametrize("left", SCALES)
def test_types_of_scales(left: Any, right: Any) -> None:
    stationary = random_matrix(64, 4, nl.float8_e5m2_x4)
    moving = random_matrix(64, 3, nl.float8_e4m3fn_x4, seed=1)
    check_product(multiplied(stationary, moving, scale_dtypes=(left, right)), stationary, moving)


@pytest.mark.parametrize("starts", [(0, 4), (4, 8), (12, 0)])
def test_scales_are_read_from_their_offset_in_each_quadrant(starts: tuple[int, int]) -> None:
    stationary = random_matrix(96, 4, nl.float4_e2m1fn_x4)
    moving = random_matrix(96, 3, nl.float8_e4m3fn_x4, seed=1)
    check_product(multiplied(stationary, moving, starts=starts), stationary, moving)


def test_scales_that_leave_the_range_of_float32_alone() -> None:
    """448 * 2**127 has no float32, but 448 * 2**127 * 2**-9 * 2**-127 is 0.875: 128 products of it are 112."""
    largest, smallest = 0x7E, 0x01
    stationary = filled(32, 2, largest, nl.float8_e4m3fn_x4, scale=254)
    moving = filled(32, 1, smallest, nl.float8_e4m3fn_x4, scale=0)
    assert multiplied(stationary, moving).tolist() == [[112], [112]]


def test_a_product_beyond_float32_is_infinite() -> None:
    stationary = filled(32, 2, 0x7E, nl.float8_e4m3fn_x4, scale=200)
    for bits, expected in ((0x38, math.inf), (0xB8, -math.inf)):
        moving = filled(32, 1, bits, nl.float8_e4m3fn_x4, scale=200)
        assert multiplied(stationary, moving).tolist() == [[expected], [expected]]


def test_special_values() -> None:
    """The scale 255, NaN of either type and infinity of e5m2 reach the products of their column only."""
    stationary = filled(32, 4, 0x3C, nl.float8_e5m2_x4)  # 1 = 0 01111 00
    stationary.scales[2, 0] = 255
    stationary.words[7, 1] = 0x3C3C7E3C  # one NaN
    stationary.words[8, 2] = 0xFC3C3C3C  # one -infinity
    moving = filled(32, 2, 0x38, nl.float8_e4m3fn_x4)
    result = multiplied(stationary, moving)
    assert np.isnan(result[0:2]).all()
    assert result[2:].tolist() == [[-math.inf] * 2, [128, 128]]
    moving.words[0, 1] = 0x3838387F  # NaN of e4m3
    assert np.isnan(multiplied(stationary, moving)[3]).tolist() == [False, True]


def test_results_in_bfloat16() -> None:
    stationary = random_matrix(64, 6, nl.float8_e4m3fn_x4)
    moving = random_matrix(64, 5, nl.float8_e5m2_x4, seed=1)
    result = multiplied(stationary, moving, nl.bfloat16)
    assert result.dtype == ml_dtypes.bfloat16
    wide = multiplied(stationary, moving)
    assert result.tolist() == wide.astype(ml_dtypes.bfloat16).tolist() != wide.tolist()


@pytest.mark.parametrize(("dtype", "columns"), [(nl.float32, 4096), (nl.bfloat16, 8192)])
def test_a_product_fills_psum(dtype: Any, columns: int) -> None:
    stationary = random_matrix(32, 2, nl.float4_e2m1fn_x4, spread=0)
    moving = random_matrix(32, columns, nl.float4_e2m1fn_x4, seed=1, spread=0)
    result = multiplied(stationary, moving, dtype)
    reference = np.einsum("kiq,kjq->ij", stationary.values, moving.values)
    np.testing.assert_array_equal(
        result, reference.astype(dtype.numpy)
    )  # multiples of 1/4 below 2**14: float32 is exact


def test_several_free_dimensions_count_as_one() -> None:
    stationary = random_matrix(32, 12, nl.float8_e4m3fn_x4)
    moving = random_matrix(32, 20, nl.float8_e4m3fn_x4, seed=1)

    def kernel(arrays: list[Any]) -> Any:
        x, x_scale = stationary.loaded(*arrays[:2])
        y, y_scale = moving.loaded(*arrays[2:])
        dst = nl.ndarray((4, 5, 2), nl.float32, PSUM)
        nisa.nc_matmul_mx(
            dst,
            x.reshape((32, 3, 4))[:, 0:2, 0:4:2],
            y.reshape((32, 2, 10))[:, :, 5:],
            x_scale.reshape((4, 3, 4))[:, 0:2, 0:4:2],
            y_scale.reshape((4, 2, 10))[:, :, 5:],
        )
        return store(dst)

    with nkilib.simulator.using(target="trn3"):
        result = nki.jit(kernel)([stationary.words, stationary.scales, moving.words, moving.scales])
    left = stationary.values.reshape(32, 3, 4, 4)[:, 0:2, 0:4:2].reshape(32, 4, 4)
    right = moving.values.reshape(32, 2, 10, 4)[:, :, 5:].reshape(32, 10, 4)
    np.testing.assert_allclose(result.reshape(4, 10), np.einsum("kiq,kjq->ij", left, right), rtol=2**-24, atol=1e-9)


def test_a_gathered_matrix_takes_its_scales_along() -> None:
    """Tensor indirection of a pair: columns 5, 0, 3 and 0 of the words and of their scales, by one index."""
    stationary = random_matrix(32, 6, nl.float8_e4m3fn_x4)
    moving = random_matrix(32, 3, nl.float8_e5m2_x4, seed=1)
    columns = [5, 0, 3, 0]

    def kernel(arrays: list[Any], offsets: Any) -> Any:
        x, y = load(arrays[0].view(stationary.dtype)), load(arrays[2].view(moving.dtype))
        x_scale, y_scale = nl.ndarray((32, 6), nl.uint8), load(arrays[3])  # rows 4 to 31 are never written
        nisa.dma_copy(x_scale[0:4], arrays[1])
        index = load(offsets)
        dst = nl.ndarray((4, 3), nl.float32, PSUM)
        nisa.nc_matmul_mx(dst, x.indirect(index, 4), y, x_scale.indirect(index, 4), y_scale)
        return store(dst)

    offsets = np.resize(np.array(columns, np.int32), (32, 1))
    with nkilib.simulator.using(target="trn3"):
        result = nki.jit(kernel)([stationary.words, stationary.scales, moving.words, moving.scales], offsets)
    taken = Matrix(stationary.words[:, columns], stationary.dtype, stationary.scales[:, columns])
    check_product(result, taken, moving)


@pytest.mark.parametrize(("position", "size"), [((0, 0), (64, 128)), ((64, 0), (64, 128)), ((96, 0), (32, 128))])
def test_row_tiles(position: Any, size: Any) -> None:
    stationary = random_matrix(32, 4, nl.float8_e4m3fn_x4)
    moving = random_matrix(32, 3, nl.float8_e4m3fn_x4, seed=1)
    check_product(multiplied(stationary, moving, tile_position=position, tile_size=size), stationary, moving)


# -- nc_matmul_mx: accumulation, and what it reads -------------------------------------------------------------------


def accumulated(*flags: Any, dtype: Any = nl.float32) -> float:
    """128 times 1 in each call with `accumulate=flag`: what an element of PSUM holds after the last one."""

    def kernel(arrays: list[Any]) -> Any:
        x, x_scale = ones.loaded(*arrays)
        dst = nl.ndarray((2, 2), dtype, PSUM)
        for flag in flags:
            nisa.nc_matmul_mx(dst, x, x, x_scale, x_scale, accumulate=flag)
        return store(dst)

    ones = filled(32, 2, 0x38, nl.float8_e4m3fn_x4)
    with nkilib.simulator.using(target="trn3"):
        return float(nki.jit(kernel)([ones.words, ones.scales])[1, 0])


@pytest.mark.parametrize("dtype", [nl.float32, nl.bfloat16])
def test_accumulate(dtype: Any) -> None:
    assert accumulated(None, dtype=dtype) == 128
    assert accumulated(None, None, None, dtype=dtype) == 384
    assert accumulated(False, False, dtype=dtype) == 128
    assert accumulated(False, True, True, dtype=dtype) == 384
    assert accumulated(None, True, False, dtype=dtype) == 128


def test_accumulation_in_bfloat16_rounds_at_each_call() -> None:
    """128 k is exact up to k = 256; then steps are 256, and ties go to the even number, back down."""
    assert accumulated(*[None] * 300, dtype=nl.bfloat16) == 128 * 256
    assert accumulated(*[None] * 300) == 128 * 300


def test_it_adds_to_the_product_of_nc_matmul_and_the_other_way_round() -> None:
    def body(result: Any, words: Any, scales: Any) -> None:
        words = words.view(nl.float8_e4m3fn_x4)
        nisa.nc_matmul(result, tile(2, 2, value=1), tile(2, 2, value=3))
        nisa.nc_matmul_mx(result, words, words, scales, scales, accumulate=True)
        nisa.nc_matmul(result, tile(2, 2, value=1), tile(2, 2, value=3), accumulate=True)

    ones = filled(32, 2, 0x38, nl.float8_e4m3fn_x4)
    result = run(body, [ones.words, ones.scales], Result((2, 2), nl.float32, PSUM), target="trn3")
    assert (result == 6 + 128 + 6).all()


def test_nothing_but_the_rows_of_scales_needs_a_value() -> None:
    """`loaded` writes rows 0..3 and 32..35 of 64. The same with three of the last four is refused."""

    def body(written: int) -> Body:
        def kernel() -> None:
            words = tile(64, 2, dtype=nl.float8_e4m3fn_x4)
            whole, part = tile(64, 2, dtype=nl.uint8), nl.ndarray((64, 2), nl.uint8)
            nisa.memset(part[0:4], 127)
            nisa.memset(part[32 : 32 + written], 127)
            nisa.nc_matmul_mx(nl.ndarray((2, 2), nl.float32, PSUM), words, words, whole, part)

        return kernel

    execute(body(4), "trn3")
    assert refusal(body(3), "trn3", error=UNINITIALIZED) == (
        "nisa.nc_matmul_mx: operand 'moving_scale': 2 of the 16 elements of tensor [2, 4, 2] uint8 in sbuf were never "
        "written"
    )


@pytest.mark.parametrize(("dtype", "is_nan"), [(nl.uint8, False), (nl.float8_e8m0fnu, True)])
def test_unwritten_scales_read_as_the_sentinel_of_their_type(dtype: Any, is_nan: bool) -> None:
    """NaN in E8M0; 4 in uint8, the scale 2**(4 - 127)."""

    def body(result: Any, words: Any) -> None:
        words = words.view(nl.float8_e4m3fn_x4)
        scale = tile(4, 2, dtype=nl.uint8, value=127)
        nisa.nc_matmul_mx(result, words, words, nl.ndarray((4, 2), dtype), scale)

    with nkilib.simulator.using(uninitialized="nan"):
        words = filled(32, 2, 0x38, nl.float8_e4m3fn_x4).words
        result = run(body, [words], Result((2, 2), nl.float32, PSUM), target="trn3")
    assert np.isnan(result).all() if is_nan else (result == 128 * 2.0 ** (4 - 127)).all()


def test_nc_matmul_mx_runs_on_the_tensor_engine() -> None:
    assert engine_of(matmul(), "trn3") == "tensor"


def matmul(
    stationary: tuple[int, ...] = (32, 4),
    moving: tuple[int, ...] = (32, 6),
    dst: tuple[int, ...] = (4, 6),
    *,
    types: tuple[Any, Any, Any] = (E4M3, E4M3, nl.float32),
    scale_types: tuple[Any, Any] = (U8, U8),
    scales: tuple[tuple[int, ...], ...] | None = None,
    start: int = 0,
    buffers: tuple[Any, Any] = (nl.sbuf, PSUM),
    **settings: Any,
) -> Body:
    """A kernel of one `nc_matmul_mx` of zeros; its scales start at partition `start` of larger tiles."""

    def kernel() -> None:
        shapes = scales or (stationary, moving)
        x, y = tile(*stationary, dtype=types[0], buffer=buffers[0]), tile(*moving, dtype=types[1])
        x_scale, y_scale = (
            tile(start + shape[0], *shape[1:], dtype=dtype)[start:]
            for shape, dtype in zip(shapes, scale_types, strict=True)
        )
        nisa.nc_matmul_mx(nl.ndarray(dst, types[2], buffers[1]), x, y, x_scale, y_scale, **settings)

    return kernel


@pytest.mark.parametrize("name", ["stationary", "moving"])
def test_matrices_start_where_engines_can_access_them(name: str) -> None:
    def body(start: int) -> Body:
        def kernel() -> None:
            large = {"stationary": tile(64, 4, dtype=E4M3), "moving": tile(64, 6, dtype=E4M3)}
            x, y = ((large[key][start : start + 32] if key == name else large[key][0:32]) for key in large)
            nisa.nc_matmul_mx(nl.ndarray((4, 6), nl.float32, PSUM), x, y, tile(4, 4, dtype=U8), tile(4, 6, dtype=U8))

        return kernel

    assert refusal(body(16), "trn3").startswith(
        f"nisa.nc_matmul_mx: operand {name!r}: an access to 32 partitions must start at partition 0 or 32 or 64 or 96, "
        "got a start at 16"
    )
    execute(body(32), "trn3")


PACKED = "float4_e2m1fn_x4, float8_e4m3fn_x4, float8_e5m2_x4"
STATIONARY = "operand 'stationary' must {}, got tensor {} float8_e4m3fn_x4 in sbuf"
MOVING = "operand 'moving' must {}, got tensor {} float8_e4m3fn_x4 in sbuf"
WRONG_SCALES = (
    "operand '{0}_scale' must have {1} elements in a partition, and at least {2} partitions for the {3} of '{0}': 4 "
    "scales for each 32 partitions, where these start; got tensor {4} uint8 in sbuf"
)
ROW_TILE = (
    "a row tile has 32, 64 or 128 rows and starts at a multiple of them inside 128, got "
    "tile_position={tile_position}, tile_size={tile_size}"
)
ROW_TILES_ONLY = (
    "nc_matmul_mx has row tiles only: tile_position=(row, 0) and tile_size=(rows, 128), got "
    "tile_position={tile_position}, tile_size={tile_size}"
)


def scaled(scale: Made) -> dict[str, Made]:
    """Both scales, which are alike."""
    return {"stationary_scale": scale, "moving_scale": scale}


OPERANDS = Psum(4, 4, value=None), Sbuf(32, 4, dtype=E4M3), Sbuf(32, 4, dtype=E4M3)


@rules(
    legal_kernel("nisa.nc_matmul_mx", matmul, on="trn3"),
    broken("trn3", on="trn2", types=(nl.float8_e5m2_x4, E4M3, nl.float32))
    .says(needs("gen4", "trn2 (gen3)"))
    .fixed(on="trn3"),
    broken("stationary type", types=(nl.uint32, E4M3, nl.float32)).says(
        f"operand 'stationary' must have one of the types {PACKED}, got tensor [32, 4] uint32 in sbuf"
    ),
    broken("moving type", types=(E4M3, nl.float8_e4m3fn, nl.float32)).says(
        f"operand 'moving' must have one of the types {PACKED}, got tensor [32, 6] float8_e4m3fn in sbuf"
    ),
    broken("result type", types=(E4M3, E4M3, nl.float16))
    .says("operand 'dst' must have one of the types bfloat16, float32, got tensor [4, 6] float16 in psum")
    .fixed(types=(E4M3, E4M3, nl.bfloat16)),
    broken("scale type", scale_types=(nl.int8, U8))
    .says(
        "operand 'stationary_scale' must have one of the types float8_e8m0fnu, uint8, got tensor [32, 4] int8 in sbuf"
    )
    .fixed(scale_types=(nl.float8_e8m0fnu, U8)),
    broken("inputs in SBUF", buffers=(PSUM, PSUM)).says(
        "operand 'stationary' must be in sbuf, got tensor [32, 4] float8_e4m3fn_x4 in psum; copy it to sbuf "
        "first, with nisa.tensor_copy"
    ),
    broken("results in PSUM", buffers=(nl.sbuf, nl.sbuf)).says(
        "operand 'dst' must be in psum, got tensor [4, 6] float32 in sbuf"
    ),
    broken("partitions in 32s", stationary=(16, 4), moving=(16, 6))
    .says(STATIONARY.format("have a multiple of 32 partitions", "[16, 4]"))
    .fixed(stationary=(96, 4), moving=(96, 6)),
    broken("the same partitions", stationary=(64, 4), moving=(32, 6))
    .says("operands 'stationary' and 'moving' must have the same partition dimension, got 64 and 32")
    .fixed(moving=(64, 6)),
    broken("an even number of stationary elements", stationary=(32, 5), dst=(5, 6))
    .says(STATIONARY.format("have an even number of free elements", "[32, 5]"))
    .fixed(stationary=(32, 6), dst=(6, 6)),
    broken("stationary elements", stationary=(32, 130), dst=(128, 6))
    .says(STATIONARY.format("fit a tile of 128 rows and 128 columns", "[32, 130]"))
    .fixed(stationary=(32, 128)),
    broken("moving elements for float32", moving=(32, 4097), dst=(4, 4096))
    .says(MOVING.format("have at most 4096 free elements for 'dst' of float32", "[32, 4097]"))
    .fixed(moving=(32, 4096)),
    broken("moving elements for bfloat16", moving=(32, 8193), dst=(4, 8192), types=(E4M3, E4M3, BF16))
    .says(MOVING.format("have at most 8192 free elements for 'dst' of bfloat16", "[32, 8193]"))
    .fixed(moving=(32, 8192)),
    *(
        broken("dst shape", dst=shape)
        .says(f"operand 'dst' must be of shape (4, 6), got tensor {list(shape)} float32 in psum")
        .fixed(dst=(4, 2, 3))
        for shape in ((6, 4), (5, 6), (4, 5))
    ),
    broken("scales are not contiguous", stationary=(128, 4), moving=(128, 6), scales=((16, 4), (128, 6)))
    .says(WRONG_SCALES.format("stationary", 4, 100, 128, "[16, 4]"))
    .fixed(scales=((100, 4), (128, 6))),
    broken("scale elements", scales=((4, 4), (4, 8)))
    .says(WRONG_SCALES.format("moving", 6, 4, 32, "[4, 8]"))
    .fixed(scales=((4, 4), (4, 6))),
    broken("scale offset", scales=((4, 4), (4, 6)), start=1)
    .says(
        "operand 'stationary_scale' must start at partition 0, 4, 8 or 12 of 32, got a start at 1 of tensor [4, "
        "4] uint8 in sbuf"
    )
    .fixed(start=8),
    broken("accumulate=True", accumulate=True)
    .says(
        "accumulate=True needs 'dst' to hold a matmul result; 24 of the 24 elements of tensor [4, 6] float32 in "
        "psum were not written by a matmul, start with accumulate=False"
    )
    .fixed(accumulate=False),
    broken("tile_size without tile_position", tile_size=(32, 128))
    .says("tile_position and tile_size must both be set, got None and (32, 128)")
    .fixed(tile_position=(0, 0)),
    legal_kernel("nisa.nc_matmul_mx", matmul, on="trn3", tile_size=(32, 128), tile_position=(0, 0)),
    *(
        broken("pairs", tile_size=size, tile_position=position).says(
            "tile_position and tile_size are pairs (row, column), got {tile_position} and {tile_size}"
        )
        for position, size in (((0, 0, 0), (32, 128)), ((0, 0), (32, 128, 1)), (32, (32, 128)), ((0, 0), 32))
    ),
    broken("no column tiles", tile_size=(32, 64)).says(ROW_TILES_ONLY),
    broken("no start column", tile_position=(0, 32)).says(ROW_TILES_ONLY).fixed(tile_position=(32, 0)),
    broken("a matrix fits its row tile", stationary=(64, 4), moving=(64, 6))
    .says(STATIONARY.format("fit a tile of 32 rows and 128 columns", "[64, 4]"))
    .fixed(tile_size=(64, 128)),
    broken("row tile sizes", tile_size=(96, 128)).says(ROW_TILE).fixed(tile_size=(64, 128)),
    broken("row tile starts", tile_size=(64, 128), tile_position=(32, 0)).says(ROW_TILE).fixed(tile_size=(32, 128)),
    broken("row tiles are inside the array", tile_size=(64, 128), tile_position=(128, 0))
    .says(ROW_TILE)
    .fixed(tile_position=(64, 0)),
    legal(nisa.nc_matmul_mx, *OPERANDS, *[Sbuf(8, 4, dtype=U8)[0:4]] * 2, on="trn3"),
    broken("scales in every other partition", **scaled(Sbuf(8, 4, dtype=U8)[0:8:2])).says(
        "operand 'stationary_scale': an access must take partitions that follow each other, got every 2th of "
        "{stationary_scale}"
    ),
    legal(nisa.nc_matmul_mx, *OPERANDS, *[Sbuf(4, 2, 2, dtype=U8)] * 2, on="trn3"),
    broken("scales of too many dimensions", **scaled(Sbuf(4, 4, dtype=U8).reshape((4, 2, 2, 1, 1, 1)))).says(
        "operand 'stationary_scale': at most 4 free dimensions, got {stationary_scale}"
    ),
)
def test_nc_matmul_mx_rules(rule: Rule) -> None:
    check_rule(rule)


# -- with quantize_mx -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", MXFP8)
def test_the_product_of_quantized_matrices(dtype: Any) -> None:
    """Matrices of 256 x 6 and 256 x 10 bfloat16 are laid out, quantized and multiplied on chip.

    The result is the product of what `quantize_mx` left, and near that of the matrices: an element is off by at
    most half a unit in its last place, 2**-4 (e4m3) or 2**-3 (e5m2) of it, a product by little more than twice
    that.
    """
    left, right = normal(256, 6).astype(ml_dtypes.bfloat16), normal(256, 10, seed=1).astype(ml_dtypes.bfloat16)

    def body(product: Any, words: Any, scales: Any, other_words: Any, other_scales: Any, *sources: Any) -> None:
        packed = nl.ndarray((64, 10), nl.uint8)  # the scales of both
        nisa.quantize_mx(words, sources[0], packed[:, 0:6])
        nisa.quantize_mx(other_words, sources[1], packed[4:])
        nisa.nc_matmul_mx(product, words, other_words, packed[:, 0:6], packed[4:])
        for quadrant in range(2):
            for copy, start in ((scales, 0), (other_scales, 4)):
                rows = packed[32 * quadrant + start : 32 * quadrant + start + 4, 0 : copy.shape[1]]
                nisa.dma_copy(copy[4 * quadrant : 4 * quadrant + 4], rows)

    product, words, scales, other_words, other_scales = run(
        body,
        [matrix.reshape(4, 64, -1).transpose(1, 2, 0).reshape(64, -1).copy() for matrix in (left, right)],
        Result((6, 10), nl.float32, PSUM),
        Result((64, 6), dtype),
        Result((8, 6), nl.uint8),
        Result((64, 10), dtype),
        Result((8, 10), nl.uint8),
        target="trn3",
    )
    check_product(product, Matrix(words, dtype, scales), Matrix(other_words, dtype, other_scales))
    left, right = left.astype(np.float64), right.astype(np.float64)
    half_unit = 2.0**-4 if dtype == nl.float8_e4m3fn_x4 else 2.0**-3
    assert (np.abs(product - left.T @ right) <= 2.1 * half_unit * (np.abs(left).T @ np.abs(right))).all()
