# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""No launch may become slower than it was frozen, and nothing that was accepted may be refused."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from .launches import Boundary, Launch, frozen_boundaries, frozen_launches

# A long launch hides what comes before and after its chunks; a short one is little else.
_ALLOWED = {1: 1.01, 200: 1.01, 4096: 1.005}


def test_one_hundred_and_twenty_launches_are_frozen() -> None:
    assert len({str(launch) for launch, _ in frozen_launches()}) == 120


def _cases() -> list[Any]:
    """All launches; the long ones of a single option are left to ``-m sweep``."""
    return [
        pytest.param(
            launch,
            frozen_us,
            id=str(launch),
            marks=[pytest.mark.sweep] if launch.positions == 4096 and launch.case not in ("plain", "all") else [],
        )
        for launch, frozen_us in frozen_launches()
    ]


@pytest.mark.parametrize(("launch", "frozen_us"), _cases())
def test_a_launch_is_not_slower_than_frozen(launch: Launch, frozen_us: float) -> None:
    assert 0.0 < launch.time_us() <= _ALLOWED[launch.positions] * frozen_us


def _by_kernel() -> dict[str, list[Boundary]]:
    groups: dict[str, list[Boundary]] = defaultdict(list)
    for boundary in frozen_boundaries():
        groups[f"{boundary.target} {boundary.direction} {boundary.dtype}"].append(boundary)
    return groups


def _shows_a_tile(boundary: Boundary) -> bool:
    """Tell whether a boundary is of the plain kernel, no switch, one or all: each switch adds its own tile."""
    most = 6 if boundary.direction == "forward" else 4
    return boundary.switches is None or len(boundary.switches) in (0, 1, most)


@pytest.mark.parametrize(
    "boundaries",
    [
        pytest.param(boundaries, id=name, marks=[pytest.mark.sweep] if name.startswith("trn3") else [])
        for name, boundaries in _by_kernel().items()
    ],
)
def test_what_was_accepted_is_accepted(boundaries: list[Boundary]) -> None:
    few = [boundary for boundary in boundaries if _shows_a_tile(boundary)]
    assert len(boundaries) >= 34 and len(few) >= 14
    assert [boundary for boundary in few if not boundary.accepts(boundary.chunk_size)] == []


@pytest.mark.sweep
@pytest.mark.parametrize("boundaries", _by_kernel().values(), ids=_by_kernel().keys())
def test_what_was_accepted_is_accepted_with_every_set_of_switches(boundaries: list[Boundary]) -> None:
    others = [boundary for boundary in boundaries if not _shows_a_tile(boundary)]
    assert [boundary for boundary in others if not boundary.accepts(boundary.chunk_size)] == []


@pytest.mark.parametrize("boundaries", _by_kernel().values(), ids=_by_kernel().keys())
def test_beyond_the_hardware_a_chunk_is_refused(boundaries: list[Boundary]) -> None:
    """65,536 elements are more than an instruction takes, whatever else would fit."""
    assert [boundary for boundary in boundaries if boundary.accepts(65_536)] == []
