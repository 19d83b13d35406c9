# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.terms.regions``: the regions and the questions about them."""

from __future__ import annotations

from typing import Any

import pytest

from nkilib.nki import nl
from nkilib.simulator import ArgumentTypeError
from nkilib.simulator.terms.regions import as_region
from tests.simulator.frame import refused

REGIONS = [nl.sbuf, nl.psum, nl.private_hbm, nl.shared_hbm]


@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_a_region_is_known_by_itself_and_by_name(region: Any) -> None:
    assert as_region(region) is region
    assert as_region(str(region)) is region
    assert nl.MemoryRegion(str(region)) is region


def test_hbm_is_another_name_of_private_hbm() -> None:
    assert nl.hbm is nl.private_hbm
    assert as_region("hbm") is nl.private_hbm


@pytest.mark.parametrize(
    ("question", "members"),
    [
        (nl.is_sbuf, ["sbuf"]),
        (nl.is_psum, ["psum"]),
        (nl.is_on_chip, ["sbuf", "psum"]),
        (nl.is_hbm, ["private_hbm", "shared_hbm"]),
    ],
)
def test_the_questions(question: Any, members: list[str]) -> None:
    assert [str(region) for region in REGIONS if question(region)] == members
    assert [str(region) for region in REGIONS if question(str(region))] == members


@pytest.mark.parametrize("buffer", ["dram", "SBUF", None, 1, ["sbuf"]], ids=repr)
def test_what_is_no_region_is_refused(buffer: Any) -> None:
    message = f"buffer must be nl.sbuf, nl.psum, nl.hbm, nl.private_hbm or nl.shared_hbm, got {buffer!r}"
    assert refused(ArgumentTypeError, lambda: as_region(buffer)) == message
    assert refused(ArgumentTypeError, lambda: nl.is_sbuf(buffer)) == message
