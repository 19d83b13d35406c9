# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether cores run side by side is decided by what is faster; bits do not depend on it (test_families)."""

from __future__ import annotations

import pytest

from nkilib.simulator.replay.rounds import _GAIN, _TRIALS, _Ways


def decided(in_turns: float, beside: float) -> tuple[list[bool], bool]:
    """How the first runs went, of which each way takes so many seconds, and how all later ones go."""
    ways, tried = _Ways(may_pay=True), []
    for _ in range(2 * _TRIALS):
        tried.append(ways.is_side_by_side)
        ways.note(tried[-1], beside if tried[-1] else in_turns)
    return tried, ways.is_side_by_side


@pytest.mark.parametrize(
    ("beside", "is_side_by_side"), [(0.5, True), (0.99 * _GAIN, True), (1.01 * _GAIN, False), (1.5, False)]
)
def test_the_faster_way_is_taken_after_both_were_tried(beside: float, is_side_by_side: bool) -> None:
    tried, later = decided(1.0, beside)
    assert sorted(tried) == [False] * _TRIALS + [True] * _TRIALS
    assert later is is_side_by_side


def test_the_shortest_run_counts() -> None:
    ways = _Ways(may_pay=True)
    for seconds in (9.0, 1.0):
        ways.note(False, seconds)
    for seconds in (7.0, 0.5):
        ways.note(True, seconds)
    assert ways.is_side_by_side


def test_small_rounds_run_alternately() -> None:
    ways = _Ways(may_pay=False)
    for _ in range(5):
        assert not ways.is_side_by_side
        ways.note(False, 1.0)
