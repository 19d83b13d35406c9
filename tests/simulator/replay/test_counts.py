# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``nkilib.simulator.replay.counts``: what became of launches, by kernel and by reason."""

from __future__ import annotations

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl, replayable
from nkilib.simulator import LaunchCounts, ReplayCounts, replay_counts
from nkilib.simulator.replay.counts import MOST_KERNELS, MOST_REASONS, OTHERS, Tallies


@nki.jit
@replayable
def counted_copy(x):  # type: ignore[no-untyped-def]
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(result, x)
    return result


def test_launches_of_a_kernel_are_counted_under_its_name() -> None:
    before = replay_counts().total
    for number in range(7):
        x = np.full((3, 5), number, np.float32)
        assert (counted_copy(x) == number).all()
    with nkilib.simulator.using(replay=False):
        counted_copy(x)
    counts = replay_counts()
    assert counts.kernels["counted_copy"] == LaunchCounts(
        as_today=3, recorded=2, replayed=3, planned=1, reasons={"replay is off": 1}
    )
    assert counts.total.replayed == before.replayed + 3
    assert str(counts.kernels["counted_copy"]) == (
        "8 launches ran in the simulator, 3 of them replayed\n"
        "    1 not replayed: replay is off\n"
        "    1 plan for replay, made from 2 recorded launches"
    )
    assert f"counted_copy: {counts.kernels['counted_copy']}\n" in f"{counts}\n"


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        (LaunchCounts(), "no launch ran in the simulator"),
        (LaunchCounts(as_today=1), "1 launch ran in the simulator, none of them replayed"),
        (LaunchCounts(as_today=2), "2 launches ran in the simulator, none of them replayed"),
        (
            LaunchCounts(as_today=1, recorded=3, planned=2, failed=1),
            "4 launches ran in the simulator, none of them replayed\n"
            "    2 plans for replay, made from 3 recorded launches\n"
            "    1 not replayed: the values fitted no plan",
        ),
    ],
)
def test_the_launches_are_told_first(counts: LaunchCounts, shown: str) -> None:
    assert str(counts) == shown
    first = shown.splitlines()[0]
    assert str(ReplayCounts(counts, {"kernel": counts})) == f"kernel: {shown}\ntotal: {first}"


def test_the_total_is_that_of_all_kernels() -> None:
    tallies = Tallies()
    tallies.of("b").add("replayed")
    tallies.of("a").add("as_today", "one reason")
    tallies.of("a").add("as_today", "another")
    tallies.of("b").add("as_today", "one reason")
    result = tallies.so_far()
    assert [*result.kernels] == ["a", "b"]
    assert result.total == LaunchCounts(as_today=3, replayed=1, reasons={"one reason": 2, "another": 1})
    assert Tallies().so_far() == ReplayCounts(LaunchCounts(), {})


def test_names_and_reasons_are_bounded() -> None:
    tallies = Tallies()
    for number in range(MOST_KERNELS + 10):
        tallies.of(f"kernel {number}").add("as_today")
    for number in range(MOST_REASONS + 5):
        tallies.of("kernel 0").add("as_today", f"reason {number}")
    result = tallies.so_far()
    assert len(result.kernels) == MOST_KERNELS + 1
    assert result.kernels[OTHERS].as_today == 10
    assert len(result.kernels["kernel 0"].reasons) == MOST_REASONS + 1
    assert result.kernels["kernel 0"].reasons[OTHERS] == 5
    assert result.total.as_today == MOST_KERNELS + 10 + MOST_REASONS + 5
