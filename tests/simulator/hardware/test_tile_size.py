# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nl.tile_size``: the documented constants, some of them of the generation that the kernel runs on."""

from __future__ import annotations

from typing import Any

import pytest

import nkilib.simulator
from nkilib.nki import nl
from tests.simulator.frame import run

ALWAYS = {
    "pmax": 128,
    "psum_fmax": 512,
    "psum_bank_fmax": 512,
    "psum_bank_fmax_bytes": 2048,
    "psum_num_banks": 8,
    "gemm_stationary_fmax": 128,
    "gemm_moving_fmax": 512,
    "bn_stats_fmax": 512,
    "psum_min_align": 4,
    "sbuf_min_align": 1,
}
MIB = 2**20


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
def test_constants_of_every_generation(target: str) -> None:
    with nkilib.simulator.using(target=target):
        assert {name: getattr(nl.tile_size, name) for name in ALWAYS} == ALWAYS


@pytest.mark.parametrize(
    ("target", "physical", "usable"),
    [("trn1", 24 * MIB, 180_224), ("trn2", 28 * MIB, 212_984), ("trn3", 32 * MIB, 245_752)],
)
def test_sbuf_in_a_kernel_and_outside(target: str, physical: int, usable: int) -> None:
    def kernel() -> Any:
        sizes = nl.tile_size
        return sizes.sbuf_size_bytes, sizes.sbuf_fmax_bytes, sizes.sbuf_fmax, sizes.total_available_sbuf_size

    expected = (physical, usable, usable // 4, usable)
    assert run(kernel, target=target) == expected
    with nkilib.simulator.using(target=target):
        assert kernel() == expected


def test_a_tile_as_large_as_they_say_exists_and_a_larger_one_does_not() -> None:
    def kernel(extra: int) -> None:
        nl.ndarray((nl.tile_size.pmax, nl.tile_size.sbuf_fmax + extra), nl.float32)

    run(kernel, 0)
    with pytest.raises(nkilib.simulator.NkiValidationError):
        run(kernel, 1)


def test_the_core_that_a_kernel_runs_on_decides_and_not_the_options_of_its_thread() -> None:
    def kernel() -> list[int]:
        sizes = []
        with nkilib.simulator.using(target="trn1"):
            sizes.append(nl.tile_size.sbuf_fmax_bytes)
        return sizes

    assert run(kernel, target="trn3") == [245_752]
