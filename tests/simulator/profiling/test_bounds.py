# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bound of a stated piece of work, from hardware constants alone, with figures by hand; and the counted bound.

The counted one, of a kernel that does not state its work, is below what any kernel of the same instructions takes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward, inline
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import ModelParameters, Profile, Work, profile, spec, states_work, using
from nkilib.simulator.hardware.generations import TRN1, TRN2, TRN3, Generation
from nkilib.simulator.profiling.bounds import bounds_us
from nkilib.simulator.terms.dtypes import bfloat16, float32
from tests.simulator.profiling.why import faulty

# Elements of a [128, 1000000] tile: a million a lane.
ELEMENTS = 128_000_000


def bounds(work: Work, generation: Generation = TRN2, cores: int = 1, **assumptions: Any) -> dict[str, float]:
    return bounds_us(work, cores, generation, ModelParameters(**assumptions))


@pytest.mark.parametrize(
    ("generation", "rate"),
    [(TRN1, 16 * 17), (TRN2, 16 * 23), (TRN3, 16 * 33)],
)
def test_bytes_cross_hbm_at_the_rate_of_all_dma_engines(generation: Generation, rate: int) -> None:
    work = Work(hbm_bytes=1_000_000)
    assert bounds(work, generation) == pytest.approx({"dma": 1000 / rate})
    assert bounds(work, generation, cores=2) == pytest.approx({"dma": 500 / rate})


@pytest.mark.parametrize(
    ("generation", "dtype", "expected"),
    [
        (TRN1, bfloat16, {"scalar": 1e3 / 1.4}),
        (TRN2, bfloat16, {"scalar": 1e3 / 1.2}),
        (TRN2, float32, {"scalar": 1e3 / 1.2}),
        # trn3: Scalar takes two bf16 a cycle, Vector four; in float32 one, and two as is assumed.
        (TRN3, bfloat16, {"vector": 1e3 / 4 / 1.2}),
        (TRN3, float32, {"vector": 1e3 / 2 / 1.2}),
    ],
)
def test_exponentials_take_the_fastest_engine(generation: Generation, dtype: Any, expected: Any) -> None:
    assert bounds(Work(0, exponentials=ELEMENTS, dtype=dtype), generation) == pytest.approx(expected)


def test_the_assumed_rate_of_an_exponential_can_make_scalar_the_faster_one() -> None:
    work = Work(0, exponentials=ELEMENTS, dtype=float32)
    assert bounds(work, TRN3, fp32_exponential_cycles=2.0) == pytest.approx({"scalar": 1e3 / 1.2})


def test_maxima_in_both_readings() -> None:
    work = Work(0, maxima=ELEMENTS, dtype=bfloat16)
    assert bounds(work) == pytest.approx({"vector": 1e3 / 0.96})
    assert bounds(work, halves_bf16_max=True) == pytest.approx({"vector": 0.5e3 / 0.96})
    wide = Work(0, maxima=ELEMENTS, dtype=float32)
    assert bounds(wide, halves_bf16_max=True) == pytest.approx({"vector": 1e3 / 0.96})


def test_the_published_matmul_needs_its_time_on_the_tensor_engine() -> None:
    """27.96 ms for float32 4096 x 8192 x 8192 (nki/guides/tutorials/kernel-optimization.rst)."""
    results = bounds(Work(0, multiply_adds=4096 * 8192 * 8192, dtype=float32))
    assert results["tensor"] / 1000 == pytest.approx(27.96, rel=1e-3)
    assert bounds(Work(0, multiply_adds=4096 * 8192 * 8192, dtype=bfloat16))["tensor"] == results["tensor"] / 4


# Cross-entropy.

N, V = 4096, 129280


def forward(dtype: Any, exact_maximum: bool = True, **assumptions: Any) -> Profile:
    specs = spec((N, V), dtype), spec((N,), nl.int32)
    options = {"positions_per_batch": 128, "chunk_size": 16384, "dtype": dtype, "exact_maximum": exact_maximum}
    return profile(cross_entropy_forward[2], *specs, **options, parameters=ModelParameters(**assumptions))


def backward(dtype: Any) -> Profile:
    specs = spec((N, V), dtype), spec((N,), nl.int32), spec((N,), nl.float32)
    return profile(cross_entropy_backward[2], *specs, positions_per_batch=128, chunk_size=16384, dtype=dtype)


def test_the_speed_of_light_of_cross_entropy() -> None:
    """Nanoseconds a column of a [128, C] chunk: 1.042 for the maximum, 0.833 for exp, 0.696 for each bf16 byte pair."""
    columns = N / 2 / 128 * V / 1000  # thousands a core: microseconds
    exact = forward(nl.bfloat16)
    assert exact.bound_by == "vector" and exact.bound_us == pytest.approx(columns * 1.042, rel=1e-3)
    shifted = forward(nl.bfloat16, exact_maximum=False)
    assert shifted.bound_by == "scalar" and shifted.bound_us == pytest.approx(columns * 0.8333, rel=1e-3)
    halved = forward(nl.bfloat16, halves_bf16_max=True)
    assert halved.bound_by == "scalar" and halved.bound_us == pytest.approx(columns * 0.8333, rel=1e-3)
    wide = forward(nl.float32)
    assert wide.bound_by == "dma" and wide.bound_us == pytest.approx(columns * 1.391, rel=1e-3)
    for dtype, rate in ((nl.bfloat16, 1.391), (nl.float32, 2.783)):
        result = backward(dtype)
        assert result.bound_by == "dma" and result.bound_us == pytest.approx(columns * rate, rel=1e-3)


@pytest.mark.parametrize("make", [forward, backward])
@pytest.mark.parametrize("dtype", [nl.bfloat16, nl.float32])
def test_no_kernel_is_faster_than_its_bound(make: Any, dtype: Any) -> None:
    result = make(dtype)
    assert result.fraction_of_bound >= 1.0
    assert result.fraction_of_bound == result.time_us / result.bound_us


def test_the_bytes_that_must_cross_are_those_of_the_arguments() -> None:
    """Logits of 8 x 1,000 in bf16 are read and written back in place, or written as float32 to a new tensor."""
    logits = np.zeros((8, 1000), ml_dtypes.bfloat16)
    targets, lse = np.zeros(8, np.int32), np.full(8, np.log(1000), np.float32)
    rate = 368e3
    profiled = profile(cross_entropy_backward, logits.copy(), targets, lse, chunk_size=1000)
    assert profiled.bounds_us["dma"] == pytest.approx(8 * (1000 * 4 + 4 + 4) / rate)
    profiled = profile(cross_entropy_backward, logits, targets, lse, chunk_size=1000, dtype=nl.float32, inplace=False)
    assert profiled.bounds_us["dma"] == pytest.approx(8 * (1000 * 6 + 4 + 4) / rate)
    profiled = profile(cross_entropy_forward, logits, targets, chunk_size=1000, lse_dtype=nl.float32)
    assert profiled.bounds_us["dma"] == pytest.approx(8 * (1000 * 2 + 4 + 2 + 4) / rate)


# How a kernel states its work.


def test_a_kernel_states_its_work() -> None:
    @nki.jit
    @states_work(lambda x, times, **_: Work(hbm_bytes=times * x.shape[0] * 4))
    def load(x: Any, times: int = 3) -> None:
        nl.load(x)

    assert profile(load, spec((128, 1), nl.float32)).bounds_us == pytest.approx({"dma": 3 * 128 * 4 / 368e3})
    assert profile(load[2], spec((128, 1), nl.float32), times=5).bound_us == pytest.approx(5 * 128 * 4 / 736e3)
    assert profile(load, spec((128, 1), nl.float32), work=Work(368_000)).bound_us == 1.0


def test_a_kernel_that_states_none_has_no_bound() -> None:
    profiled = profile(nki.jit(lambda x: None), spec((128, 1), nl.float32))
    assert (profiled.bound_us, profiled.bound_by, profiled.fraction_of_bound) == (None, None, None)
    assert "bound: unknown" in str(profiled)


def test_wrong_arguments_are_the_launches_error() -> None:
    with pytest.raises(TypeError, match="cross_entropy_forward: missing a required argument: 'targets_hbm'"):
        profile(cross_entropy_forward, spec((8, 8), nl.float32))


GB_PER_S = 16 * 23.0
ROWS, COLUMNS = 256, 1024


def found(kernel: Any, *arguments: Any, cores: int = 1) -> Profile:
    return profile(nki.jit(kernel)[cores], *(arguments or (spec((ROWS, COLUMNS), nl.float32),)))


def dma_us(nbytes: int, cores: int = 1) -> Any:
    return pytest.approx(nbytes / (GB_PER_S * cores) / 1000)


def load(x: Any, first: int = 0) -> Any:
    tile = nl.ndarray((128, COLUMNS), x.dtype)
    nisa.dma_copy(tile, x[first : first + 128])
    return tile


def test_what_comes_in_and_what_goes_out_count_once() -> None:
    """The first half is loaded three times, the other half never; scratch in HBM is the kernel's own affair."""

    def kernel(x: Any) -> Any:
        result = nl.ndarray((128, COLUMNS), x.dtype, nl.shared_hbm)
        scratch = nl.ndarray((128, COLUMNS), x.dtype, nl.shared_hbm)
        for _ in range(3):
            tile = load(x)
            nisa.dma_copy(scratch, tile)
            nisa.dma_copy(tile, scratch)
            nisa.dma_copy(result, tile)
        return result

    profiled = found(kernel)
    assert profiled.bounds_us == {"dma": dma_us(2 * 128 * COLUMNS * 4)}
    assert (profiled.bound_by, profiled.is_bound_automatic) == ("dma", True)
    assert "counted from what the kernel did" in " ".join(str(profiled).split())


def test_an_output_that_is_passed_is_not_what_comes_in() -> None:
    def kernel(x: Any, out: Any) -> None:
        nisa.dma_copy(out[0:128], load(x))
        nisa.dma_copy(out[0:128], load(out))

    inputs = spec((ROWS, COLUMNS), nl.float32)
    assert found(kernel, inputs, inputs).bounds_us == {"dma": dma_us(2 * 128 * COLUMNS * 4)}


def test_what_is_updated_in_place_crosses_in_both_directions() -> None:
    def kernel(x: Any) -> Any:
        for first in (0, 128, 0):
            nisa.dma_copy(x[first : first + 128], load(x, first))
        return x

    assert found(kernel).bounds_us == {"dma": dma_us(2 * ROWS * COLUMNS * 4)}


def test_both_cores_may_read_the_same() -> None:
    def kernel(x: Any) -> Any:
        load(x)
        return x

    assert found(kernel, cores=2).bounds_us == {"dma": dma_us(128 * COLUMNS * 4, cores=2)}


def test_a_gather_brings_in_what_it_chooses() -> None:
    def kernel(x: Any) -> None:
        rows, tile = nl.ndarray((128, 1), nl.int32), nl.ndarray((128, 4), x.dtype)
        nisa.iota(rows, [[1, 1]], channel_multiplier=1)
        nisa.dma_copy(tile, x.ap([[COLUMNS, 128], [1, 4]], vector_offset=rows))

    assert found(kernel).bounds_us["dma"] == dma_us(128 * 4 * 4)


def test_iterations_that_are_left_out_bring_in_their_part() -> None:
    def kernel(x: Any) -> None:
        def body(i: Any) -> None:
            nisa.dma_copy(nl.ndarray((128, 16), x.dtype), x[nl.ds(i * 128, 128), 0:16])

        nl.fori_loop(0, 64, body)

    profiled = found(kernel, spec((64 * 128, 32), nl.float32))
    assert profiled.instruction_counts["dma_copy"] == 64
    assert profiled.recorded._cores[0][1].repeats
    assert profiled.bounds_us["dma"] == dma_us(64 * 128 * 16 * 4)


def test_instructions_of_one_engine_take_their_cycles_there() -> None:
    """Tensor: 64 of 128 rows and 32 of 128 columns; Scalar alone has the function, the copy could run anywhere."""

    def kernel(_: Any) -> None:
        left, right = nl.ndarray((64, 32), nl.bfloat16), nl.ndarray((64, 512), nl.bfloat16)
        bank, tile = nl.ndarray((32, 512), nl.float32, nl.psum), nl.ndarray((128, 600), nl.float32)
        nisa.nc_matmul(bank, left, right)
        nisa.activation(tile, nl.exp, tile)
        nisa.tensor_copy(nl.ndarray((128, 600), nl.float32), tile)

    expected = {"tensor": 512 / 2.4 / 1000 * 64 * 32 / 128**2, "scalar": 600 / 1.2 / 1000}
    assert found(kernel).bounds_us == pytest.approx(expected)
    with using(target="trn3"):  # there GpSimd has activations too
        assert set(found(kernel).bounds_us) == {"tensor"}


def test_stated_work_comes_first() -> None:
    @states_work(lambda x: Work(hbm_bytes=1000))
    def kernel(x: Any) -> None:
        load(x)

    profiled = found(kernel)
    assert (profiled.bounds_us, profiled.is_bound_automatic) == ({"dma": dma_us(1000)}, False)


@pytest.mark.parametrize("name", ["sound", "many_triggers", "short_rows", "one_buffer", "in_turns", "tiny", "chain"])
def test_no_kernel_is_faster(name: str) -> None:
    profiled = found(getattr(faulty, name), spec((1024, faulty.WIDE), nl.float32))
    assert profiled.fraction_of_bound is None or profiled.fraction_of_bound >= 1.0


def test_it_is_below_the_bound_that_a_kernel_of_the_library_states() -> None:
    """Maxima and exponentials are what the forward does; its bound by DMA is the same to the bytes of the results."""
    arguments = spec((256, 8000), nl.bfloat16), spec((256,), nl.int32)
    tiling = {"positions_per_batch": 128, "chunk_size": 2000}
    stated = profile(cross_entropy_forward[2], *arguments, **tiling)

    def unstated(*args: Any, **kwargs: Any) -> Any:
        return inline.cross_entropy_forward(*args, **kwargs)

    counted = profile(nki.jit(unstated)[2], *arguments, **tiling)
    assert counted.bounds_us["dma"] == pytest.approx(stated.bounds_us["dma"], rel=0.01)
    assert counted.bounds_us["scalar"] >= stated.bounds_us["scalar"]
    assert counted.bound_us is not None and counted.bound_us <= counted.time_us


def test_it_is_the_same_with_data() -> None:
    data = np.zeros((1024, faulty.WIDE), np.float32)
    shapes = spec(data.shape, nl.float32)
    assert found(faulty.sound, data).bounds_us == found(faulty.sound, shapes).bounds_us
