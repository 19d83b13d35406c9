# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bound of a piece of work, from hardware constants alone; figures by hand."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nki, nl
from nkilib.simulator import ModelParameters, Profile, Work, profile, spec, states_work
from nkilib.simulator.hardware.generation import Generation
from nkilib.simulator.hardware.trn1 import TRN1
from nkilib.simulator.hardware.trn2 import TRN2
from nkilib.simulator.hardware.trn3 import TRN3
from nkilib.simulator.profiling.work import bounds_us
from nkilib.simulator.terms.dtypes import bfloat16, float32

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
