# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`rng`, `rand2`, `dropout`, `set_rng_seed`, `rand_set_state`, `rand_get_state`.

The documentation defines no numbers. What is tested is the structure (which elements are equal to which, ranges, types)
exactly, and distributions within bounds of five or more standard deviations; as nothing is seeded by time, a test that
passes once passes always.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.nki import nisa, nl

from ...kernels import Result, Tile, engine_of, execute, refusal, run, tile
from ...made import Hbm, Psum, Sbuf, lazily
from ...rules import Rule, broken, check_rule, legal, rules
from ...sentences import COPY_FIRST, FLOATS, must, one_each, one_type, out_of_reach, same_elements

VECTOR, GPSIMD = nisa.engine.vector, nisa.engine.gpsimd
UINT32 = nl.uint32
INTEGERS = [nl.int8, nl.int16, nl.int32, nl.uint8, nl.uint16, nl.uint32]
UNIFORM = [*INTEGERS, nl.float8_e4m3, nl.float8_e5m2, nl.float16, nl.bfloat16, nl.float32, nl.tfloat32]


def drawn(
    shape: Any, dtype: Any = UINT32, buffer: Any = nl.sbuf, engine: Any = VECTOR, target: str = "trn2", seed: Any = None
) -> Any:
    """Return the numbers that one `rng` draws, after seeding the Vector engine if a seed is given."""

    def body(dst: Any) -> None:
        if seed is not None:
            nisa.set_rng_seed(tile(1, 1, dtype=UINT32, value=seed))
        nisa.rng(dst, engine)

    return run(body, [], Result(shape, dtype, buffer), target=target)


# rng


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_every_element_has_32_bits_of_its_own(target: str) -> None:
    bits = drawn((128, 64), target=target)
    assert bits.dtype == np.uint32
    # Fewer than 0.01 equal pairs are expected among 8192 numbers of 32 bits.
    assert np.unique(bits).size >= bits.size - 1
    assert bits.min() < 2**26 and bits.max() > 2**32 - 2**26


@pytest.mark.parametrize("engine", [VECTOR, GPSIMD])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_narrow_type_takes_the_low_bits(dtype: Any, engine: Any) -> None:
    bits, narrow = drawn((4, 37), engine=engine), drawn((4, 37), dtype, engine=engine)
    unsigned = narrow.view(f"u{narrow.itemsize}")
    np.testing.assert_array_equal(unsigned, bits & (2 ** (8 * narrow.itemsize) - 1))


def test_the_numbers_are_uniform() -> None:
    """Chi-square of 65536 numbers in 256 classes: mean 255, standard deviation 22.6, here within 5 of them."""
    counts = np.bincount(drawn((128, 512)).reshape(-1) >> 24, minlength=256)
    assert abs(((counts - 256.0) ** 2 / 256).sum() - 255) < 5 * 22.6


def test_uniform_numbers_by_the_documented_normalization() -> None:
    """16 bits divided by 2^16 - 1 span 0 to 1; the mean is 1/2 within 5 standard deviations, sqrt(1/12/65536)."""

    def body(dst: Any) -> None:
        bits = nl.ndarray(dst.shape, nl.uint16)
        nisa.rng(bits)
        nisa.tensor_scalar(dst, bits, nl.multiply, 1 / (2**16 - 1))

    values = run(body, [], Result((128, 512)))
    assert 0 <= values.min() < 0.001 and 0.999 < values.max() <= 1
    assert abs(values.mean() - 0.5) < 5 * (1 / 12 / values.size) ** 0.5


def test_a_run_repeats_without_a_seed() -> None:
    np.testing.assert_array_equal(drawn((8, 16)), drawn((8, 16)))


def test_a_second_draw_goes_on() -> None:
    def body(first: Any, second: Any) -> None:
        nisa.rng(first)
        nisa.rng(second)

    first, second = run(body, [], Result((8, 16), UINT32), Result((8, 16), UINT32))
    assert not np.isin(second, first).any()


def test_partitions_are_lanes_whatever_the_tile() -> None:
    """Partition 32 draws lane 32's numbers, from a tile of 128 partitions as from one that starts there."""

    def body(dst: Any) -> None:
        nisa.memset(dst, 0)
        nisa.rng(dst[32:40])

    bits = run(body, [], Result((64, 8), UINT32))
    np.testing.assert_array_equal(bits[32:40], drawn((128, 8))[32:40])
    assert not bits[:32].any() and not bits[40:].any()


def test_shape_and_place_of_a_tile_do_not_matter() -> None:
    bits = drawn((3, 24))
    np.testing.assert_array_equal(drawn((3, 4, 6)).reshape(3, 24), bits)
    np.testing.assert_array_equal(drawn((3, 24), buffer=nl.psum), bits)

    def strided(dst: Any) -> None:
        nisa.memset(dst, 0)
        nisa.rng(dst[:, ::2])

    expected = np.zeros((3, 48), np.uint32)
    expected[:, ::2] = bits
    np.testing.assert_array_equal(run(strided, [], Result((3, 48), UINT32)), expected)


def test_one_partition_and_one_element() -> None:
    np.testing.assert_array_equal(drawn((1, 1)), drawn((128, 4))[:1, :1])


def test_engines_draw_numbers_of_their_own() -> None:
    def body(vector: Any, gpsimd: Any) -> None:
        nisa.rng(gpsimd, engine=GPSIMD)
        nisa.rng(vector)

    vector, gpsimd = run(body, [], Result((8, 16), UINT32), Result((8, 16), UINT32))
    assert not np.isin(vector, gpsimd).any()
    np.testing.assert_array_equal(vector, drawn((8, 16)))


def seeded_on_two_cores(seed: int | None) -> Any:
    def kernel() -> Any:
        result = nl.ndarray((2, 4, 8), UINT32, nl.shared_hbm)
        if seed is not None:
            nisa.set_rng_seed(tile(1, 1, dtype=UINT32, value=seed))
        bits = nl.ndarray((4, 8), UINT32)
        nisa.rng(bits)
        nisa.dma_copy(result[nl.program_id()], bits)
        return result

    return execute(kernel, cores=2)


def test_cores_differ_until_they_are_seeded_alike() -> None:
    first, second = seeded_on_two_cores(None)
    assert not np.isin(first, second).any()
    first, second = seeded_on_two_cores(5)
    np.testing.assert_array_equal(first, second)


def test_rng_runs_on_vector_or_gpsimd() -> None:
    assert engine_of(lambda: nisa.rng(nl.ndarray((2, 4), UINT32))) == "vector"
    assert engine_of(lambda: nisa.rng(nl.ndarray((2, 4), UINT32), engine=GPSIMD)) == "gpsimd"


# set_rng_seed


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    first = drawn((8, 16), seed=42)
    np.testing.assert_array_equal(drawn((8, 16), seed=42), first)
    for other in (drawn((8, 16), seed=43), drawn((8, 16))):
        assert not np.isin(other, first).any()


def test_a_seed_starts_over_in_every_lane() -> None:
    def body(first: Any, few: Any, second: Any) -> None:
        seed = tile(1, 1, dtype=UINT32, value=42)
        nisa.set_rng_seed(seed)
        nisa.rng(first)
        nisa.rng(few)  # now some lanes are further on than others
        nisa.set_rng_seed(src_seeds=seed)
        nisa.rng(second)

    first, _, second = run(body, [], Result((128, 8), UINT32), Result((4, 8), UINT32), Result((128, 8), UINT32))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("value", [np.int32(-2), np.float32(1.5), np.uint32(2**31 + 3)], ids=repr)
def test_a_seed_is_32_bits_of_any_type(value: Any, buffer: Any) -> None:
    def body(dst: Any, seed: Any) -> None:
        nisa.set_rng_seed(seed)
        nisa.rng(dst)

    bits = run(body, [Tile(np.array([[value]]), buffer=buffer)], Result((4, 8), UINT32))
    np.testing.assert_array_equal(bits, drawn((4, 8), seed=int(value.view(np.uint32))))


def test_a_seed_is_for_the_vector_engine_only() -> None:
    def body(dst: Any) -> None:
        nisa.set_rng_seed(tile(1, 1, dtype=UINT32, value=42))
        nisa.rng(dst, engine=GPSIMD)

    np.testing.assert_array_equal(run(body, [], Result((4, 8), UINT32)), drawn((4, 8), engine=GPSIMD))


# rand_get_state, rand_set_state

STATES = [(GPSIMD, 6, "trn2"), (GPSIMD, 6, "trn3"), (VECTOR, 24, "trn3")]


def draw_save_draw(engine: Any) -> Any:
    """Kernel: draw, save the state, draw, restore the state, draw."""

    def body(first: Any, state: Any, second: Any, third: Any) -> None:
        nisa.rng(first, engine)
        nisa.rand_get_state(state, engine)
        nisa.rng(second, engine)
        saved = nl.ndarray(state.shape, UINT32)
        nisa.tensor_copy(saved, state)
        nisa.rand_set_state(saved, engine)
        nisa.rng(third, engine)

    return body


@pytest.mark.parametrize(("engine", "words", "target"), STATES)
@pytest.mark.parametrize("columns", [16, 5])
def test_a_restored_state_continues_the_same_stream(engine: Any, words: int, target: str, columns: int) -> None:
    results = [Result((128, columns), UINT32)] * 3
    results.insert(1, Result((128, words), UINT32))
    first, state, second, third = run(draw_save_draw(engine), [], *results, target=target)
    np.testing.assert_array_equal(second, third)
    assert not np.isin(second, first).any()
    assert len(np.unique(state, axis=0)) == 128


def test_the_state_of_the_vector_engine_may_go_to_psum() -> None:
    results = [Result((128, 8), UINT32)] * 3
    results.insert(1, Result((128, 24), UINT32, nl.psum))
    _, _, second, third = run(draw_save_draw(VECTOR), [], *results, target="trn3")
    np.testing.assert_array_equal(second, third)


@pytest.mark.parametrize(("engine", "words", "target"), STATES)
def test_what_is_set_is_what_is_read_back(engine: Any, words: int, target: str) -> None:
    def body(state: Any, seeds: Any) -> None:
        nisa.rand_set_state(seeds, engine)
        nisa.rand_get_state(state, engine)

    seeds = np.random.default_rng(1).integers(0, 2**32, (128, words), np.uint32)
    np.testing.assert_array_equal(run(body, [seeds], Result((128, words), UINT32), target=target), seeds)


def test_lanes_with_equal_states_draw_equal_numbers() -> None:
    def body(dst: Any, seeds: Any) -> None:
        nisa.rand_set_state(seeds)
        nisa.rng(dst, engine=GPSIMD)

    seeds = np.tile(np.arange(1, 7, dtype=np.uint32), (128, 1))
    bits = run(body, [seeds], Result((128, 16), UINT32))
    assert (bits == bits[:1]).all() and np.unique(bits[0]).size == 16


def test_a_state_is_set_in_the_lanes_of_its_tile_only() -> None:
    def body(state: Any, seeds: Any) -> None:
        wide = tile(64, 6, dtype=UINT32)
        nisa.tensor_copy(wide[32:36], seeds)
        nisa.rand_set_state(wide[32:36])
        nisa.rand_get_state(state)

    def untouched(state: Any) -> None:
        nisa.rand_get_state(state)

    seeds = np.arange(24, dtype=np.uint32).reshape(4, 6)
    expected = run(untouched, [], Result((128, 6), UINT32))
    expected[32:36] = seeds
    np.testing.assert_array_equal(run(body, [seeds], Result((128, 6), UINT32)), expected)


def test_reading_a_state_does_not_change_it() -> None:
    def body(first: Any, second: Any) -> None:
        nisa.rand_get_state(first)
        nisa.rand_get_state(second)

    first, second = run(body, [], *[Result((128, 6), UINT32)] * 2)
    np.testing.assert_array_equal(first, second)


def test_the_state_instructions_run_on_the_engine_whose_state_it_is() -> None:
    assert engine_of(lambda: nisa.rand_get_state(nl.ndarray((4, 6), UINT32))) == "gpsimd"
    assert engine_of(lambda: nisa.rand_set_state(tile(4, 6, dtype=UINT32))) == "gpsimd"
    assert engine_of(lambda: nisa.rand_get_state(nl.ndarray((4, 24), UINT32), VECTOR), "trn3") == "vector"
    assert engine_of(lambda: nisa.rand_set_state(tile(4, 24, dtype=UINT32), VECTOR), "trn3") == "vector"
    assert engine_of(lambda: nisa.set_rng_seed(tile(1, 1, dtype=UINT32))) == "vector"


# rand2


def uniform(low: Any, high: Any, result: Result) -> Any:
    return run(lambda dst: nisa.rand2(dst, low, high), [], result, target="trn3")


def test_values_are_spread_evenly_between_the_bounds() -> None:
    """Mean and variance of 65536 values on [-3, 5], within 5 standard deviations; classes as for `rng`."""
    values = uniform(-3.0, 5.0, Result((128, 512))).astype(np.float64)
    assert -3 <= values.min() < -2.99 and 4.99 < values.max() <= 5
    assert abs(values.mean() - 1) < 5 * 8 / (12 * values.size) ** 0.5
    assert abs(values.var() - 64 / 12) < 5 * 64 * (1 / 180 / values.size) ** 0.5
    counts = np.histogram(values, bins=256, range=(-3, 5))[0]
    assert abs(((counts - 256.0) ** 2 / 256).sum() - 255) < 5 * 22.6


def test_a_value_is_the_lower_bound_plus_a_share_of_the_range() -> None:
    """The share is the 32 bits that `rng` would have drawn; float32 rounds once, by half a unit of 2^-22 below 8."""
    bits = drawn((4, 16), target="trn3").astype(np.float64) / 2**32
    np.testing.assert_allclose(uniform(-3.0, 5.0, Result((4, 16))), -3 + 8 * bits, rtol=0, atol=2.0**-22)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_bounds_may_differ_from_partition_to_partition(buffer: Any) -> None:
    low, high = np.array([[0.0], [10], [-1]], np.float32), np.array([[1.0], [12], [0]], np.float32)

    def body(dst: Any, low: Any, high: Any) -> None:
        nisa.rand2(dst, low, max=high)

    values = run(body, [Tile(low, buffer=buffer), Tile(high, buffer=buffer)], Result((3, 256)), target="trn3")
    assert (values >= low).all() and (values <= high).all()
    # The extremes of 256 values leave less than a twentieth of the range free but once in 10^5 runs.
    assert (values.min(axis=1) < (low + (high - low) / 20)[:, 0]).all()
    assert (values.max(axis=1) > (high - (high - low) / 20)[:, 0]).all()


def test_one_bound_may_be_a_number_and_the_other_a_tile() -> None:
    high = np.array([[1.0], [100]], np.float32)
    values = run(lambda dst, high: nisa.rand2(dst, 0, high), [high], Result((2, 64)), target="trn3")
    assert values[0].max() <= 1 < 50 < values[1].max() <= 100


@pytest.mark.parametrize("dtype", UNIFORM)
@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
def test_the_result_is_cast_to_the_type_of_dst(dtype: Any, buffer: Any) -> None:
    values = uniform(2.0, 6.0, Result((4, 64), dtype, buffer)).astype(np.float64)
    exact = uniform(2.0, 6.0, Result((4, 64))).astype(np.float64)
    # Half a step of the coarsest type between 4 and 8: float8_e5m2 counts in ones there, as integers do.
    assert np.abs(values - exact).max() <= 0.5
    assert len(np.unique(values)) >= 5


def test_a_range_that_only_float32_itself_spans() -> None:
    """The difference of the bounds exceeds the largest float32."""
    values = uniform(-3e38, 3e38, Result((128, 16)))
    assert np.isfinite(values).all() and values.min() < -2e38 and values.max() > 2e38


def test_neighbouring_bounds_give_nothing_else() -> None:
    high = float(np.nextafter(np.float32(1), np.float32(2)))
    assert set(np.unique(uniform(1.0, high, Result((8, 64))))) == {np.float32(1), np.float32(high)}


# dropout


def test_the_rate_of_zeros_is_the_probability() -> None:
    """The rate among 65536 elements is within 5 standard deviations sqrt(p (1 - p) / n)."""
    data = np.ones((128, 512), np.float32)
    for prob in (0.1, 0.5, 0.75):
        kept = run(lambda dst, data, prob=prob: nisa.dropout(dst, data, prob), [data], Result(data.shape))
        assert set(np.unique(kept)) == {0, 1}
        assert abs((kept == 0).mean() - prob) < 5 * (prob * (1 - prob) / data.size) ** 0.5


def test_kept_elements_have_their_value_unscaled_and_in_place() -> None:
    data = np.arange(1, 4097, dtype=np.float32).reshape(8, 512)
    kept = run(lambda dst, data: nisa.dropout(dst, data, 0.5), [data], Result(data.shape))
    assert ((kept == 0) | (kept == data)).all()
    assert 0.4 < (kept == data).mean() < 0.6


def test_zeros_are_scattered_independently() -> None:
    """Neighbours, along a partition and across, are both zero with probability 1/4: sd 1/4 * sqrt(3 / 65536)."""
    data = np.ones((128, 512), np.float32)
    zero = run(lambda dst, data: nisa.dropout(dst, data, 0.5), [data], Result(data.shape)) == 0
    for both in (zero[:, 1:] & zero[:, :-1], zero[1:] & zero[:-1], zero[:, 4:] & zero[:, :-4]):
        assert abs(both.mean() - 0.25) < 0.01


@pytest.mark.parametrize("prob", [0, 0.0, 1, 1.0])
def test_probability_0_keeps_and_1_drops_everything(prob: float) -> None:
    data = np.full((128, 64), -2.5, np.float32)
    data[0, :3] = np.nan, np.inf, -np.inf
    result = run(lambda dst, data: nisa.dropout(dst, data, prob), [data], Result(data.shape))
    np.testing.assert_array_equal(result, np.zeros_like(data) if prob else data)


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.psum])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_a_tile_gives_each_partition_its_probability(dtype: Any, buffer: Any) -> None:
    data, prob = np.ones((4, 1024), np.float32), np.array([[0], [1], [0.25], [0.75]], dtype)
    body = lambda dst, data, prob: nisa.dropout(dst, data, prob)  # noqa: E731
    rates = (run(body, [Tile(data, buffer=buffer), Tile(prob, buffer=buffer)], Result(data.shape)) == 0).mean(axis=1)
    assert rates[0] == 0 and rates[1] == 1
    # sqrt(3/16 / 1024) is 0.0135.
    assert abs(rates[2] - 0.25) < 0.07 and abs(rates[3] - 0.75) < 0.07


def test_probabilities_of_a_tile_beyond_1_drop_all_and_below_0_none() -> None:
    prob = np.array([[7], [-1]], np.float32)
    result = run(nisa.dropout, [np.ones((2, 64), np.float32), prob], Result((2, 64)))
    assert not result[0].any() and result[1].all()


@pytest.mark.parametrize("dtype", [*INTEGERS, nl.bool_, nl.bfloat16, nl.float16, nl.tfloat32, nl.float8_e4m3])
def test_data_may_have_any_type(dtype: Any) -> None:
    data = np.ones((4, 64), np.float32)
    body = lambda dst, data: nisa.dropout(dst, data, tile(4, 1, value=0.5))  # noqa: E731
    result = run(body, [Tile(data, dtype)], Result((4, 64), dtype)).astype(np.float32)
    assert set(np.unique(result)) == {0, 1}


def test_large_integers_are_kept_exactly() -> None:
    data = np.full((4, 64), 2**31 - 1, np.int32)
    result = run(lambda dst, data: nisa.dropout(dst, data, 0.5), [data], Result((4, 64), nl.int32))
    assert set(np.unique(result)) == {0, 2**31 - 1}


def test_dst_may_be_data() -> None:
    data = np.arange(1, 257, dtype=np.float32).reshape(4, 64)

    def in_place(dst: Any, data: Any) -> None:
        nisa.dropout(data, data, 0.5)
        nisa.tensor_copy(dst, data)

    apart = run(lambda dst, data: nisa.dropout(dst, data, 0.5), [data], Result(data.shape))
    np.testing.assert_array_equal(run(in_place, [data], Result(data.shape)), apart)
    assert 0 < np.count_nonzero(apart) < data.size


def test_dst_may_overlap_data() -> None:
    """All of `data` is read before `dst` is written: with nothing dropped, the elements move by one."""

    def body(dst: Any, data: Any) -> None:
        nisa.dropout(data[:, 1:], data[:, :-1], 0.0)
        nisa.tensor_copy(dst, data)

    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    expected = np.concatenate([data[:, :1], data[:, :-1]], axis=1)
    np.testing.assert_array_equal(run(body, [data], Result((2, 6))), expected)


def test_shapes_may_differ_within_a_partition() -> None:
    data = np.arange(1, 49, dtype=np.float32).reshape(2, 4, 6)
    result = run(lambda dst, data: nisa.dropout(dst, data, 0.0), [data], Result((2, 24)))
    np.testing.assert_array_equal(result, data.reshape(2, 24))


def test_a_seed_repeats_what_is_dropped() -> None:
    def body(first: Any, second: Any, third: Any, data: Any) -> None:
        seed = tile(1, 1, dtype=UINT32, value=3)
        nisa.set_rng_seed(seed)
        nisa.dropout(first, data, 0.5)
        nisa.dropout(second, data, 0.5)
        nisa.set_rng_seed(seed)
        nisa.dropout(third, data, 0.5)

    first, second, third = run(body, [np.ones((8, 64), np.float32)], *[Result((8, 64))] * 3)
    np.testing.assert_array_equal(first, third)
    assert (first != second).any()


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_dropout_runs_on_the_vector_engine_of_every_generation(target: str) -> None:
    assert engine_of(lambda: nisa.dropout(tile(2, 4), tile(2, 4), 0.5), target) == "vector"


# refusals


def iota_column() -> Any:
    """A float32 tile [2, 1] of 2 and 1."""
    column = nl.ndarray((2, 1), nl.float32)
    nisa.iota(column, [[0, 1]], offset=2, channel_multiplier=-1)
    return column


def state_tile(columns: int, dtype: Any = UINT32, buffer: Any = nl.sbuf) -> Any:
    return tile(4, columns, dtype=dtype, buffer=buffer)


INT32_TILE = Sbuf(2, 4, dtype=nl.int32)


@rules(
    legal(nisa.rng, dst=Sbuf(2, 4, dtype=nl.int32)),
    broken("rng: type", dst=Sbuf(2, 4)).says(one_type("dst", "int16, int32, int8, uint16, uint32, uint8")),
    legal(nisa.rng, dst=Sbuf(2, 4, dtype=UINT32), engine=GPSIMD),
    broken("rng: engine", engine=nisa.engine.scalar)
    .says("engine must be one of nki.isa.engine.vector, nki.isa.engine.gpsimd, got nki.isa.engine.scalar")
    .fixed(engine=nisa.engine.unknown),
    broken("rng: GpSimd of trn1", on="trn1").says("engine=nki.isa.engine.gpsimd needs trn2 or newer"),
    broken("rng: GpSimd and PSUM", dst=Psum(2, 4, dtype=UINT32)).says(out_of_reach("dst")).fixed(engine=VECTOR),
    legal(nisa.rng, dst=Sbuf(2, 4, dtype=UINT32)),
    broken("rng: HBM", dst=Hbm(2, 4, dtype=UINT32, buffer=nl.shared_hbm)).says(must("dst", "be in psum or sbuf")),
    legal(nisa.set_rng_seed, src_seeds=Sbuf(2, 1, dtype=UINT32)[0:1]),
    broken("seed: shape", src_seeds=Sbuf(2, 1, dtype=UINT32)).says(must("src_seeds", "have shape [1, 1]")),
    legal(nisa.set_rng_seed, src_seeds=Sbuf(1, 1, dtype=nl.int32)),
    broken("seed: type", src_seeds=Sbuf(1, 1, dtype=nl.uint16)).says(one_type("src_seeds", "float32, int32, uint32")),
    legal(nisa.set_rng_seed, src_seeds=Sbuf(1, 1, dtype=nl.int32, value=42)),
    broken("seed: number", src_seeds=42).says("operand 'src_seeds' must be a tensor, got 42"),
    legal(nisa.rand_set_state, src_seeds=Sbuf(4, 6, dtype=nl.int32).view(UINT32)),
    broken("state: words of GpSimd", src_seeds=Sbuf(4, 24, dtype=UINT32))
    .says(must("src_seeds", "have shape [P, 6] for engine=nki.isa.engine.gpsimd"))
    .fixed(src_seeds=Sbuf(4, 6, dtype=UINT32)),
    broken("state: type", src_seeds=Sbuf(4, 6, dtype=nl.int32)).says(one_type("src_seeds", "uint32")),
    broken("set state from PSUM", on="trn3", src_seeds=Psum(4, 24, dtype=UINT32), engine=VECTOR)
    .says(must("src_seeds", "be in sbuf", COPY_FIRST))
    .fixed(src_seeds=Sbuf(4, 24, dtype=UINT32)),
    broken("set state of the Vector engine of trn2", src_seeds=Sbuf(4, 24, dtype=UINT32), engine=VECTOR)
    .says("engine=nki.isa.engine.vector needs trn3 or newer")
    .fixed(on="trn3"),
    legal(nisa.rand_get_state, dst=Sbuf(4, 6, dtype=nl.int32).view(UINT32)),
    broken("state: words of Vector", on="trn3", dst=Sbuf(4, 6, dtype=UINT32), engine=VECTOR)
    .says(must("dst", "have shape [P, 24] for engine=nki.isa.engine.vector"))
    .fixed(dst=Sbuf(4, 24, dtype=UINT32)),
    broken("state: two dimensions", dst=Sbuf(4, 6, dtype=UINT32).reshape((4, 2, 3)))
    .says(must("dst", "have shape [P, 6] for engine=nki.isa.engine.gpsimd"))
    .fixed(dst=Sbuf(4, 6, dtype=UINT32)),
    broken("state: two dimensions of which one is 1", dst=Sbuf(4, 6, dtype=UINT32).reshape((4, 6, 1)))
    .says(must("dst", "have shape [P, 6] for engine=nki.isa.engine.gpsimd"))
    .fixed(dst=Sbuf(4, 6, dtype=UINT32)),
    broken("state: type of what it is stored to", dst=Sbuf(4, 6, dtype=nl.int32)).says(one_type("dst", "uint32")),
    broken("get state of GpSimd in PSUM", on="trn3", dst=Psum(4, 6, dtype=UINT32))
    .says(out_of_reach("dst"))
    .fixed(dst=Psum(4, 24, dtype=UINT32), engine=VECTOR),
    broken("get state of the Vector engine of trn2", dst=Sbuf(4, 24, dtype=UINT32), engine=VECTOR)
    .says("engine=nki.isa.engine.vector needs trn3 or newer")
    .fixed(on="trn3"),
    legal(nisa.rand2, on="trn3", dst=Sbuf(2, 4), min=Sbuf(2, 1), max=1),
    broken("rand2: order of the bounds", min=1.0, max=1.0)
    .says("min must be less than max as float32, and both finite, got 1.0 and 1.0 in partition 0")
    .fixed(max=1.5),
    broken("rand2: order of the bounds as float32", min=1.0, max=1.0 + 1e-09)
    .says("min must be less than max as float32, and both finite, got 1.0 and 1.0 in partition 0")
    .fixed(max=1.0 + 1e-06),
    broken("rand2: order of the bounds in a partition", min=Sbuf(2, 1, value=1.5), max=lazily(iota_column))
    .says("min must be less than max as float32, and both finite, got 1.5 and 1.0 in partition 1")
    .fixed(min=Sbuf(2, 1, value=-1.5)),
    broken("rand2: finite bounds", min=0.0, max=float("inf"))
    .says("min must be less than max as float32, and both finite, got 0.0 and inf in partition 0")
    .fixed(max=3e38),
    broken("rand2: type", dst=Sbuf(2, 4, dtype=nl.float8_e4m3fn), min=0)
    .says(
        one_type(
            "dst",
            "bfloat16, float16, float32, float8_e4m3, float8_e5m2, int16, int32, int8, tfloat32, uint16, uint32, uint8",
        )
    )
    .fixed(dst=Sbuf(2, 4, dtype=nl.float8_e4m3)),
    broken("rand2: type of a bound", min=Sbuf(2, 1, dtype=nl.bfloat16)).says(one_type("min", "float32")),
    legal(nisa.rand2, on="trn3", dst=Sbuf(2, 4), min=0, max=Sbuf(2, 1, value=1)),
    broken("rand2: type of the other bound", max=Sbuf(2, 1, dtype=nl.int32, value=1)).says(one_type("max", "float32")),
    broken("rand2: shape of a bound", max=Sbuf(2, 2, value=1)).says(one_each("max", "dst")),
    legal(nisa.dropout, dst=Sbuf(2, 4), data=Sbuf(2, 4), prob=0.5),
    broken("dropout: probability", prob=1.5).says("prob must be a probability, in [0, 1], got 1.5").fixed(prob=1.0),
    broken("dropout: negative probability", prob=-0.5).says("prob must be a probability, in [0, 1], got -0.5"),
    broken("dropout: integers for prob", prob=Sbuf(2, 1, dtype=nl.int32))
    .says(one_type("prob", FLOATS))
    .fixed(prob=Sbuf(2, 1, dtype=nl.float8_e5m2)),
    broken("dropout: a type without zero", data=Sbuf(2, 4, dtype=nl.float8_e8m0fnu, value=1)).says(
        one_type(
            "data",
            "bfloat16, bool, float16, float32, float8_e4m3, float8_e4m3fn, float8_e5m2, int16, int32, int8, "
            "tfloat32, uint16, uint32, uint8",
        )
    ),
    broken("dropout: NaN", prob=float("nan")).says("prob must be a probability, in [0, 1], got nan").fixed(prob=0.0),
    broken("dropout: type of dst", dst=Sbuf(2, 4, dtype=nl.bfloat16)).says(
        "operands 'dst' and 'data' must have one type, got {dst} and {data}"
    ),
    broken("dropout: size", data=Sbuf(2, 5)).says(same_elements("dst", "data")).fixed(data=Sbuf(2, 5)[:, 1:]),
    broken("dropout: type of prob for integers", dst=INT32_TILE, data=INT32_TILE, prob=Sbuf(2, 1, dtype=nl.bfloat16))
    .says("operand 'prob' must be float32 for integer data, got {prob} and {data}")
    .fixed(prob=Sbuf(2, 1)),
    broken("dropout: shape of prob", prob=Sbuf(1, 1)).says(one_each("prob", "data")).fixed(prob=Sbuf(2, 1)),
)
def test_rules(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize(
    ("name", "body", "target", "needs", "device"),
    [
        ("rand2", lambda: nisa.rand2(tile(2, 4), 0, 1), "trn2", "gen4", "trn2 (gen3)"),
        ("rand2", lambda: nisa.rand2(tile(2, 4), 0, 1), "trn1", "gen4", "trn1 (gen2)"),
        ("rand_set_state", lambda: nisa.rand_set_state(state_tile(6)), "trn1", "gen3", "trn1 (gen2)"),
        ("rand_get_state", lambda: nisa.rand_get_state(state_tile(6)), "trn1", "gen3", "trn1 (gen2)"),
    ],
)
def test_generations(name: str, body: Any, target: str, needs: str, device: str) -> None:
    message = refusal(body, target)
    assert message.startswith(f"nisa.{name}: needs {needs} or newer; the target is {device}")
