# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`quantize_mx`: scales, elements, where they are put, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nkilib.simulator
from nkilib.nki import nisa, nl

from ...kernels import Body, Result, Tile, engine_of, execute, normal, refusal, run, tile
from ...rules import Rule, broken, check_rule, legal_kernel, rules
from ...sentences import COPY_FIRST, needs
from .mx_reference import LARGEST_EXPONENT, MXFP8, SCALES, TABLES, elements

PSUM = nl.psum
UNINITIALIZED = nkilib.simulator.UninitializedReadError
BF16, E4M3, U8 = nl.bfloat16, nl.float8_e4m3fn_x4, nl.uint8


def dense_scales(scales: Any, partitions: int) -> Any:
    """Rows 32 q + 0..3 of a tile of scales, one for each 8 of the partitions."""
    return np.concatenate([scales[start : start + 4] for start in range(0, partitions, 32)])


def quantized(source: Any, dtype: Any = nl.float8_e4m3fn_x4, src_dtype: Any = nl.bfloat16) -> tuple[Any, Any]:
    """The words and the scales (K / 8, N) that `quantize_mx` makes of `source` (K, 4 N)."""
    partitions, columns = source.shape[0], source.shape[1] // 4

    def body(dst: Any, scale: Any, src: Any) -> None:
        nisa.memset(scale, 0)
        nisa.quantize_mx(dst, src, scale)

    words, scales = run(
        body,
        [Tile(source, src_dtype)],
        Result((partitions, columns), dtype),
        Result((partitions, columns), nl.uint8),
        target="trn3",
    )
    return words, dense_scales(scales, partitions)


def block(*numbers: float) -> Any:
    """32 partitions x 4 elements: a block with the given numbers in its first row, zeros else."""
    source = np.zeros((32, 4), np.float32)
    source[0, : len(numbers)] = numbers
    return source


def first_elements(words: Any) -> list[str]:
    """The four elements of the first word, in hexadecimal."""
    return [f"{word:02X}" for word in words[0:1, 0:1].view(np.uint8)[0].tolist()]


# -- quantize_mx: scales and elements by hand ------------------------------------------------------------------------


@pytest.mark.parametrize("src_dtype", [nl.bfloat16, nl.float16])
def test_a_block_by_hand_in_e4m3(src_dtype: Any) -> None:
    """floor(log2(3)) - (8 - 1) = -6, that is 121; the elements are 192 = 1.5 * 2**7, 64 = 2**6 and -32 = -(2**5)."""
    words, scales = quantized(block(3, 1, -0.5), nl.float8_e4m3fn_x4, src_dtype)
    assert scales[:, 0].tolist() == [127 - 6, 0, 0, 0]
    assert first_elements(words) == ["74", "68", "E0", "00"]  # 0 1110 100, 0 1101 000, 1 1100 000, 0
    assert not words[1:].any()


def test_a_block_by_hand_in_e5m2() -> None:
    """floor(log2(3)) - (15 - 1) = -13, that is 114; the elements are 1.5 * 2**14, 2**13 and -(2**12)."""
    words, scales = quantized(block(3, 1, -0.5), nl.float8_e5m2_x4)
    assert scales[:, 0].tolist() == [127 - 13, 0, 0, 0]
    assert first_elements(words) == ["76", "70", "EC", "00"]  # 0 11101 10, 0 11100 00, 1 11011 00, 0


@pytest.mark.parametrize(("dtype", "scale"), [(nl.float8_e4m3fn_x4, 127 - 7), (nl.float8_e5m2_x4, 127 - 14)])
def test_the_scale_is_twice_that_of_the_ocp_algorithm(dtype: Any, scale: int) -> None:
    """OCP's conversion takes 2**-8 and 2**-15 for the largest magnitude 1; the sign does not matter."""
    for largest, step in ((1.0, 0), (1.9921875, 0), (-1.0, 0), (-1.9921875, 0), (2.0, 1), (0.99609375, -1)):
        _, scales = quantized(block(largest, 0.25), dtype)
        assert scales[0, 0] == scale + step


@pytest.mark.parametrize(("dtype", "top"), [(nl.float8_e4m3fn_x4, "78"), (nl.float8_e5m2_x4, "78")])
def test_the_largest_numbers_of_a_block_round_up_without_saturation(dtype: Any, top: str) -> None:
    """1.9921875 / X is 255 or 32640: they round to 256 = 2**8 (0 1111 000) and 32768 = 2**15 (0 11110 00)."""
    words, _ = quantized(block(1.9921875), dtype)
    assert first_elements(words)[0] == top


def test_elements_round_to_nearest_even() -> None:
    """The largest magnitude 128 makes X = 1. From 16 to 32 e4m3 has the even numbers: 17, 19 and 21 are ties.

    2**-9 is its smallest number: a half of it is a tie with 0, three quarters are nearer to 2**-9.
    """
    source = block(128, 17, 19, -21)
    source[1] = 16.5, 17.5, 18.5, 0.5 * 2.0**-9
    source[2] = 0.75 * 2.0**-9, 1.5 * 2.0**-9, 0, 2.5 * 2.0**-9
    words, scales = quantized(source)
    assert scales[0, 0] == 127
    expected = [[128, 16, 20, -20], [16, 18, 18, 0], [2**-9, 2 * 2**-9, 0, 2 * 2**-9]]
    assert elements(words, nl.float8_e4m3fn_x4)[0:3, 0].tolist() == expected


def test_a_block_of_zeros_has_the_smallest_scale_and_keeps_its_signs() -> None:
    for dtype in MXFP8:
        words, scales = quantized(block(0.0, -0.0), dtype)
        assert (scales == 0).all()
        assert first_elements(words) == ["00", "80", "00", "00"]


def test_a_scale_is_not_smaller_than_e8m0_allows() -> None:
    """2**-130, a subnormal bfloat16, asks for 2**-137: with 2**-127 it is the element 2**-3."""
    words, scales = quantized(block(2.0**-130, -(2.0**-133)))
    assert scales[0, 0] == 0
    assert elements(words, nl.float8_e4m3fn_x4)[0, 0].tolist() == [2**-3, -(2**-6), 0, 0]
    for exponent, scale in ((-120, 0), (-119, 1)):
        assert quantized(block(2.0**exponent))[1][0, 0] == scale


def test_the_largest_numbers_of_the_source_types() -> None:
    """65504 = 1.999 * 2**15 and 1.9921875 * 2**127."""
    for largest, src_dtype, exponent in ((65504, nl.float16, 15), (1.9921875 * 2.0**127, nl.bfloat16, 127)):
        words, scales = quantized(block(largest, -1.0), nl.float8_e4m3fn_x4, src_dtype)
        assert scales[0, 0] == 127 + exponent - 7
        assert elements(words, nl.float8_e4m3fn_x4)[0, 0, 0] == 256


def test_float16_subnormals_have_their_own_scale() -> None:
    words, scales = quantized(block(3 * 2.0**-24), nl.float8_e5m2_x4, nl.float16)
    assert scales[0, 0] == 127 - 23 - 14
    assert elements(words, nl.float8_e5m2_x4)[0, 0].tolist() == [1.5 * 2**14, 0, 0, 0]


@pytest.mark.parametrize("dtype", MXFP8)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_a_nan_or_an_infinity_makes_its_block_nan(special: float, dtype: Any) -> None:
    """The documentation is silent. NaN is the scale 255; the neighbouring blocks are what they would be."""
    source = np.ones((32, 8), np.float32)
    source[9, 2] = special
    words, scales = quantized(source, dtype)
    one = 127 - LARGEST_EXPONENT[str(dtype)] + 1
    assert scales.tolist() == [[one, one], [255, one], [one, one], [one, one]]
    is_nan = np.isnan(elements(words, dtype))
    assert is_nan[8:16, 0].all() and is_nan.sum() == 32


# -- quantize_mx against the definition ------------------------------------------------------------------------------


def check_quantized(source: Any, words: Any, scales: Any, dtype: Any) -> None:
    """Every scale is the documented power of two, every element the nearest of its type, the even one of two."""
    blocks = source.astype(np.float64).reshape(source.shape[0] // 8, 8, -1, 4)
    largest = np.abs(blocks).max(axis=(1, 3))
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(largest)) - (
            LARGEST_EXPONENT[str(dtype)] - 1
        )  # exact: 11 bits are far from a power
    exponent = np.maximum(exponent, -127)
    assert scales.tolist() == (exponent + 127).tolist()
    table = np.where(np.isfinite(TABLES[str(dtype)][:128]), TABLES[str(dtype)][:128], np.inf)
    exact = np.abs(blocks / np.ldexp(1.0, exponent.astype(int))[:, None, :, None])
    distance = np.abs(exact[..., None] - table)
    nearest = distance.min(axis=-1)
    bits = np.where(distance == nearest[..., None], np.arange(128), 1000)
    even = np.where(bits % 2 == 0, bits, 1000).min(axis=-1)
    expected = table[np.where(even < 1000, even, bits.min(axis=-1))]
    got = elements(words, dtype).reshape(blocks.shape)
    assert np.abs(got).tolist() == expected.tolist()
    assert (np.signbit(got) == np.signbit(blocks)).all()


@pytest.mark.parametrize("dtype", MXFP8)
@pytest.mark.parametrize("src_type", [ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("shape", [(32, 4), (64, 24), (128, 40)], ids=str)
def test_random_numbers(shape: tuple[int, int], src_type: Any, dtype: Any) -> None:
    """Normal numbers times powers of two from 2**-12 to 2**12, so that blocks and their elements differ widely."""
    powers = np.ldexp(1.0, np.random.default_rng(1).integers(-12, 13, shape))
    source = (normal(*shape) * powers).astype(src_type)
    words, scales = quantized(source, dtype, nl.bfloat16 if src_type is ml_dtypes.bfloat16 else nl.float16)
    assert words.dtype == np.uint32
    check_quantized(source, words, scales, dtype)


@given(st.lists(st.integers(0, 0xFFFF), min_size=32, max_size=32), st.sampled_from(MXFP8))
def test_any_finite_block(bits: list[int], dtype: Any) -> None:
    """All bit patterns of bfloat16 but those of NaN and infinity, whose exponent is all ones."""
    patterns = np.array([pattern if pattern >> 7 & 0xFF != 0xFF else 0 for pattern in bits], np.uint16)
    source = np.zeros((32, 4), ml_dtypes.bfloat16)
    source[8:16] = patterns.view(ml_dtypes.bfloat16).reshape(8, 4)
    words, scales = quantized(source, dtype)
    check_quantized(source, words, scales, dtype)


# -- quantize_mx: layouts --------------------------------------------------------------------------------------------


def ramp(partitions: int, columns: int) -> Any:
    """Block (r, c) holds one number, 2**(r + 2 c - 20): its scale tells where it is."""
    rows, places = np.arange(partitions)[:, None] // 8, np.arange(4 * columns)[None] // 4
    return np.ldexp(1.0, rows + 2 * places - 20).astype(np.float32)


def ramp_scales(partitions: int, columns: int) -> Any:
    """The E8M0 bits of the scales of `ramp` in e4m3."""
    return 127 - 20 - 7 + np.arange(partitions // 8)[:, None] + 2 * np.arange(columns)[None]


@pytest.mark.parametrize("scale_dtype", SCALES)
@pytest.mark.parametrize("partitions", [32, 64, 96, 128])
def test_scales_are_in_the_first_four_partitions_of_each_quadrant(partitions: int, scale_dtype: Any) -> None:
    """Rows 0..3, 32..35, ...; what else the tile holds stays."""

    def body(dst: Any, scale: Any, src: Any) -> None:
        nisa.memset(scale.view(nl.uint8), 9)
        nisa.quantize_mx(dst, src, scale)

    _, scales = run(
        body,
        [Tile(ramp(partitions, 3), nl.bfloat16)],
        Result((partitions, 3), nl.float8_e4m3fn_x4),
        Result((partitions, 3), scale_dtype),
        target="trn3",
    )
    expected = np.full((partitions, 3), 9)
    for quadrant in range(partitions // 32):
        expected[32 * quadrant : 32 * quadrant + 4] = ramp_scales(partitions, 3)[4 * quadrant : 4 * quadrant + 4]
    assert scales.view(np.uint8).tolist() == expected.tolist()


@pytest.mark.parametrize(("partitions", "scale_partitions"), [(32, 4), (32, 128), (64, 36), (128, 100)])
def test_a_tile_of_scales_may_end_behind_its_last_row(partitions: int, scale_partitions: int) -> None:
    def body(dst: Any, scale: Any, src: Any) -> None:
        nisa.memset(scale, 0)
        nisa.quantize_mx(dst, src, scale)

    _, scales = run(
        body,
        [Tile(ramp(partitions, 2), nl.bfloat16)],
        Result((partitions, 2), nl.float8_e4m3fn_x4),
        Result((scale_partitions, 2), nl.uint8),
        target="trn3",
    )
    assert dense_scales(scales, partitions).tolist() == ramp_scales(partitions, 2).tolist()


def test_scales_of_four_tensors_in_one_tile() -> None:
    """The offsets 0, 4, 8 and 12, by slices as in the documentation; tensor t is the ramp times 2**(10 t)."""

    def body(packed: Any, *sources: Any) -> None:
        nisa.memset(packed, 0)
        for number, source in enumerate(sources):
            nisa.quantize_mx(nl.ndarray((64, 2), nl.float8_e4m3fn_x4), source, packed[4 * number :, :])

    sources = [Tile(ramp(64, 2) * 2.0 ** (10 * number), nl.bfloat16) for number in range(4)]
    packed = run(body, sources, Result((64, 2), nl.uint8), target="trn3")
    for number in range(4):
        assert dense_scales(packed[4 * number :], 64).tolist() == (ramp_scales(64, 2) + 10 * number).tolist()
    assert not packed[16:32].any() and not packed[48:].any()


def test_only_rows_that_hold_scales_are_written() -> None:
    def body(partition: int) -> Body:
        def kernel() -> None:
            scale = nl.ndarray((64, 2), nl.uint8)
            nisa.quantize_mx(nl.ndarray((64, 2), nl.float8_e4m3fn_x4), tile(64, 8, dtype=nl.bfloat16, value=1), scale)
            nisa.dma_copy(nl.ndarray((1, 2), nl.uint8), scale[partition : partition + 1])

        return kernel

    for partition in (0, 3, 32, 35):
        execute(body(partition), "trn3")
    for partition in (4, 31, 36, 63):
        message = refusal(body(partition), "trn3", error=UNINITIALIZED)
        assert message.endswith("2 of the 2 elements of tensor [1, 2] uint8 in sbuf were never written")


def test_several_free_dimensions_and_strides() -> None:
    """`src` every other pair of a 4-D view, `dst` and `dst_scale` slices of larger tiles: as if all were dense."""
    source = normal(32, 2 * 3 * 2 * 8).reshape(32, 2, 3, 2, 8)

    def body(result: Any, scale_result: Any, src: Any) -> None:
        words, scale = nl.ndarray((32, 2, 7), nl.float8_e5m2_x4), nl.ndarray((128, 3, 6), nl.uint8)
        nisa.memset(scale, 0)
        nisa.quantize_mx(words[:, :, 1:7], src[:, :, :, 1, :], scale[0:32, 0:2, :])
        nisa.tensor_copy(result, words[:, :, 1:7])
        nisa.tensor_copy(scale_result, scale[0:4, 0:2, :])

    words, scales = run(
        body,
        [Tile(source, nl.bfloat16)],
        Result((32, 2, 6), nl.float8_e5m2_x4),
        Result((4, 2, 6), nl.uint8),
        target="trn3",
    )
    taken = source[:, :, :, 1].reshape(32, 48).astype(ml_dtypes.bfloat16)
    check_quantized(taken, words.reshape(32, 12), scales.reshape(4, 12), nl.float8_e5m2_x4)


def test_in_place() -> None:
    """`dst` and `dst_scale` are views of the memory of `src`, which is read first."""
    source = normal(32, 16).astype(ml_dtypes.bfloat16)

    def body(words: Any, scales: Any, src: Any) -> None:
        dst = src.view(nl.float8_e4m3fn_x4)  # 8 words, of which the first four take the data
        nisa.quantize_mx(dst[:, 0:4], src, dst.view(nl.uint8)[:, 16:20])
        nisa.tensor_copy(words, dst[:, 0:4])
        nisa.tensor_copy(scales, dst.view(nl.uint8)[0:4, 16:20])

    words, scales = run(body, [source], Result((32, 4), nl.float8_e4m3fn_x4), Result((4, 4), nl.uint8), target="trn3")
    check_quantized(source, words, scales, nl.float8_e4m3fn_x4)


def test_without_precise_floating_point_the_source_is_not_rounded() -> None:
    """1 + 2**-10 is 1 in bfloat16; e4m3 has the tie 17 / 16 between 1 and 9 / 8, which 2**-10 more decides."""
    source = block(1, 17 / 16 + 2.0**-10)
    for precise, expected in ((True, 1), (False, 9 / 8)):
        with nkilib.simulator.using(precise_fp=precise):
            words, scales = quantized(source)
        assert scales[0, 0] == 127 - 7
        assert elements(words, nl.float8_e4m3fn_x4)[0, 0, 1] / 128 == expected


def test_quantize_mx_runs_on_the_vector_engine() -> None:
    assert engine_of(quantize(), "trn3") == "vector"


def quantize(
    src: tuple[int, ...] = (32, 8),
    dst: tuple[int, ...] = (32, 2),
    scale: tuple[int, ...] = (4, 2),
    *,
    types: tuple[Any, Any, Any] = (nl.bfloat16, nl.float8_e4m3fn_x4, nl.uint8),
    buffers: tuple[Any, Any, Any] = (nl.sbuf, nl.sbuf, nl.sbuf),
    start: int = 0,
    step: int = 1,
) -> Body:
    """A kernel of one `quantize_mx`; its scales start at partition `start` of a larger tile."""

    def kernel() -> None:
        source = tile(*src, dtype=types[0], buffer=buffers[0], value=1)
        words = nl.ndarray(dst, types[1], buffers[1])
        scales = nl.ndarray((start + scale[0] * step, *scale[1:]), types[2], buffers[2])
        nisa.quantize_mx(words, source, scales[start::step])

    return kernel


IN_SBUF = "operand {!r} must be in sbuf, got tensor {} in psum"
ONE_TYPE = "operand {!r} must have one of the types {}, got tensor {} in sbuf"
DST_SHAPE = (
    "operand 'dst' must be of shape (32, 2), four elements of 'src' in each, got tensor {} float8_e4m3fn_x4 in sbuf"
)
SCALE_START = (
    "operand 'dst_scale' must start at partition 0, 4, 8 or 12 of 32, got a start at {start} of tensor [4, 2] uint8 in "
    "sbuf"
)
SCALE_SHAPE = (
    "operand 'dst_scale' must have {} elements in a partition, and at least {} partitions for the {} "
    "of 'src': 4 scales for each 32 partitions, where these start; got tensor {} uint8 in sbuf"
)


@rules(
    legal_kernel("nisa.quantize_mx", quantize, on="trn3"),
    broken("trn3", on="trn2").says(needs("gen4", "trn2 (gen3)")),
    broken("src in SBUF", buffers=(PSUM, nl.sbuf, nl.sbuf)).says(
        IN_SBUF.format("src", "[32, 8] bfloat16") + COPY_FIRST
    ),
    broken("dst in SBUF", buffers=(nl.sbuf, PSUM, nl.sbuf)).says(IN_SBUF.format("dst", "[32, 2] float8_e4m3fn_x4")),
    broken("dst_scale in SBUF", buffers=(nl.sbuf, nl.sbuf, PSUM)).says(IN_SBUF.format("dst_scale", "[4, 2] uint8")),
    broken("partitions in 32s", src=(48, 8), dst=(48, 2), scale=(48, 2))
    .says("operand 'src' must have a multiple of 32 partitions, got tensor [48, 8] bfloat16 in sbuf")
    .fixed(src=(64, 8), dst=(64, 2), scale=(64, 2)),
    broken("elements in fours", src=(32, 10))
    .says("operand 'src' must have a multiple of 4 elements in a partition, got tensor [32, 10] bfloat16 in sbuf")
    .fixed(src=(32, 2, 4)),
    broken("dst shape", dst=(32, 8)).says(DST_SHAPE.format("[32, 8]")).fixed(dst=(32, 1, 2)),
    broken("dst partitions", dst=(64, 2)).says(DST_SHAPE.format("[64, 2]")),
    broken("scale offset", start=2).says(SCALE_START).fixed(start=12),
    broken("scale offset within a quadrant", start=16).says(SCALE_START).fixed(start=32 + 8),
    broken("scale partitions", step=2).says(
        "operand 'dst_scale': an access must take partitions that follow each other, got every 2th of tensor [4, "
        "2] uint8 in sbuf"
    ),
    broken("source type", types=(nl.float32, E4M3, U8))
    .says(ONE_TYPE.format("src", "bfloat16, float16", "[32, 8] float32"))
    .fixed(types=(nl.float16, E4M3, U8)),
    broken("no FP4 results", types=(BF16, nl.float4_e2m1fn_x4, U8))
    .says(ONE_TYPE.format("dst", "float8_e4m3fn_x4, float8_e5m2_x4", "[32, 2] float4_e2m1fn_x4"))
    .fixed(types=(BF16, nl.float8_e5m2_x4, U8)),
    broken("scale type", types=(BF16, E4M3, nl.int8))
    .says(ONE_TYPE.format("dst_scale", "float8_e8m0fnu, uint8", "[4, 2] int8"))
    .fixed(types=(BF16, E4M3, nl.float8_e8m0fnu)),
    broken("scales are not contiguous", src=(128, 8), dst=(128, 2), scale=(16, 2))
    .says(SCALE_SHAPE.format(2, 100, 128, "[16, 2]"))
    .fixed(scale=(128, 2)),
    broken("scale elements", scale=(4, 8)).says(SCALE_SHAPE.format(2, 4, 32, "[4, 8]")).fixed(scale=(4, 2)),
)
def test_quantize_mx_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("name", ["dst", "src"])
def test_data_tiles_start_where_engines_can_access_them(name: str) -> None:
    def body(start: int) -> Body:
        def kernel() -> None:
            large = {"dst": nl.ndarray((64, 2), E4M3), "src": tile(64, 8, dtype=BF16)}
            tiles = {key: large[key][0:32] for key in large} | {name: large[name][start : start + 32]}
            nisa.quantize_mx(**tiles, dst_scale=nl.ndarray((4, 2), U8))

        return kernel

    assert refusal(body(8), "trn3").startswith(
        f"nisa.quantize_mx: operand {name!r}: an access to 32 partitions must start at partition 0 or 32 or 64 or 96, "
        f"got a start at 8"
    )
    execute(body(32), "trn3")


def test_scales_have_four_free_dimensions_at_most() -> None:
    def body(*free: int) -> Body:
        return lambda: nisa.quantize_mx(nl.ndarray((32, 2), E4M3), tile(32, 8, dtype=BF16), nl.ndarray((4, *free), U8))

    assert refusal(body(1, 1, 2, 1, 1), "trn3") == (
        "nisa.quantize_mx: operand 'dst_scale': at most 4 free dimensions, got tensor [4, 1, 1, 2, 1, 1] uint8 in sbuf"
    )
    execute(body(1, 1, 2, 1), "trn3")


def test_scales_are_in_the_quadrant_of_their_data() -> None:
    """The rule is for tensors of 128 partitions or with an address. Other tiles of scales are put where they belong."""

    def body(start: int, partitions: int, address: Any = None) -> Body:
        def kernel() -> None:
            source, words = nl.ndarray((128, 8), BF16, address=(0, 4096)), nl.ndarray((128, 2), E4M3, address=(0, 8192))
            nisa.memset(source, 0)
            scale = nl.ndarray((partitions, 2), U8, address=address)
            nisa.quantize_mx(words[64:96], source[64:96], scale[start : start + 4])

        return kernel

    assert refusal(body(4, 128, (0, 0)), "trn3") == (
        "nisa.quantize_mx: operand 'dst_scale' must start in the same 32 partitions as 'src', got a start at 4 of "
        "tensor [4, 2] uint8 in sbuf for one at 64 of tensor [32, 8] bfloat16 in sbuf"
    )
    assert "got a start at 4 of tensor [4, 2] uint8 in sbuf for one at 64" in refusal(body(4, 128), "trn3")
    execute(body(64 + 4, 128, (0, 0)), "trn3")
    execute(body(64 + 4, 128), "trn3")
    execute(body(4, 8), "trn3")
    assert "got a start at 36 of tensor [4, 2] uint8 in sbuf for one at 64" in refusal(body(4, 8, (32, 0)), "trn3")
    execute(body(4, 8, (64, 0)), "trn3")
