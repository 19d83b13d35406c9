# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.hardware.limits``: names and limits of trn1, trn2 and trn3."""

from __future__ import annotations

import pytest

from nkilib.nki import nisa
from nkilib.simulator.hardware.generation import Generation
from nkilib.simulator.hardware.limits import generation
from nkilib.simulator.hardware.trn1 import TRN1
from nkilib.simulator.hardware.trn2 import TRN2
from nkilib.simulator.hardware.trn3 import TRN3, TRN3_A0
from tests.simulator.frame import refused


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
