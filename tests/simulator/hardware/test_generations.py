# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names and limits of trn1, trn2 and trn3, and ``nl.tile_size``."""

from __future__ import annotations

from typing import Any

import pytest

import nkilib.simulator
from nkilib.nki import nisa, nl
from nkilib.simulator.hardware.generations import TRN1, TRN2, TRN3, TRN3_A0, Generation, generation
from tests.simulator.frame import refused, run


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("trn1", "inf2", "gen2"), TRN1),
        (("trn2", "gen3"), TRN2),
        (("trn3", "gen4"), TRN3),
        (("trn3_a0", "trn3pre"), TRN3_A0),
    ],
)
def test_every_spelling_of_the_environment_variable_is_known(names: tuple[str, ...], expected: Generation) -> None:
    assert all(generation(name) is expected for name in names)


@pytest.mark.parametrize("target", ["trn4", "TRN2", "", "gen1"])
def test_other_targets_are_refused(target: str) -> None:
    message = f"target must be one of trn1, inf2, gen2, trn2, gen3, trn3, gen4, trn3_a0, trn3pre, got {target!r}"
    assert refused(ValueError, lambda: generation(target)) == message


def test_versions_and_memory_grow() -> None:
    generations = [TRN1, TRN2, TRN3]
    assert [generation.version for generation in generations] == [
        nisa.nc_version.gen2,
        nisa.nc_version.gen3,
        nisa.nc_version.gen4,
    ]
    # 24 MiB, 28 MiB and 32 MiB of SBUF over 128 partitions (architecture guides of the three generations).
    assert [generation.sbuf_partition_bytes * 128 // 2**20 for generation in generations] == [24, 28, 32]
    assert all(0 < generation.sbuf_usable_bytes < generation.sbuf_partition_bytes for generation in generations)


# ``nl.tile_size``: the documented constants, some of them of the generation that the kernel runs on.

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
