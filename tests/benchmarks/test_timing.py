# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Timing by turns, with a clock that the test winds."""

from __future__ import annotations

import time
from functools import partial

import pytest

from benchmarks._timing import Contender, interleaved_minimum


class Clock:
    """A stand-in for time.perf_counter that moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def test_contenders_alternate_and_prepare_first() -> None:
    log: list[str] = []
    contenders = {
        "a": Contender(run=lambda: log.append("a")),
        "b": Contender(run=lambda: log.append("b"), prepare=lambda: log.append("prepare b")),
    }
    interleaved_minimum(contenders, runs=2)
    assert log == ["a", "prepare b", "b"] * 3, "one round to warm up and two that count"


def test_the_shortest_run_counts_without_preparation_and_warm_up(clock: Clock) -> None:
    durations = {"a": iter([0.5, 3.0, 2.0, 4.0]), "b": iter([9.0, 5.0, 6.0, 7.0])}

    def spend(name: str) -> None:
        clock.now += next(durations[name])

    def prepare() -> None:
        clock.now += 100.0

    contenders = {name: Contender(run=partial(spend, name), prepare=prepare) for name in durations}
    assert interleaved_minimum(contenders, runs=3) == {"a": 2.0, "b": 5.0}


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^interleaved_minimum: runs must be at least 1, got 0$"):
        interleaved_minimum({}, runs=0)
