# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bound of a kernel that does not state its work: counted, and below what any such kernel takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss import cross_entropy_forward, inline
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import Profile, Work, profile, spec, states_work, using
from tests.simulator.profiling.why import faulty

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
    assert "counted from what the kernel did" in str(profiled)


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
