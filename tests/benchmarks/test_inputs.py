# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests of the inputs that measurements share, and of timing by turns."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

from benchmarks._inputs import BF16, FP32, HARD_EVERY, fill, make_logits, make_targets
from benchmarks._timing import Contender, interleaved_minimum


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_a_block_of_rows_is_the_same_as_in_the_whole(dtype: np.dtype, mixed: bool) -> None:
    whole = make_logits(40, 11, dtype, seed=5, mixed=mixed)
    block = np.empty((9, 11), dtype)
    fill(block, seed=5, first_row=23, mixed=mixed)
    assert block.tobytes() == whole[23:32].tobytes()
    assert make_logits(40, 11, dtype, seed=6, mixed=mixed).tobytes() != whole.tobytes()


def test_normal_logits_are_normal() -> None:
    logits = make_logits(20, 5000, FP32)
    assert abs(float(logits.mean())) < 0.02
    assert abs(float(logits.std()) - 1.0) < 0.02


def test_hard_rows_come_in_turn() -> None:
    rows = range(HARD_EVERY - 1, 4 * HARD_EVERY, HARD_EVERY)
    far_above, huge, masked, equal = make_logits(4 * HARD_EVERY, 300, FP32, mixed=True)[list(rows)]
    above_all_others = np.sort(far_above)[-1] - np.sort(far_above)[-2]
    assert above_all_others > 20.0
    assert huge.max() == 1e4 and huge.min() == -1e4
    assert 90 <= np.isneginf(masked).sum() <= 100
    assert np.unique(equal).size == 1


@pytest.mark.parametrize("vocabulary", [1, 2, 507])
def test_every_row_has_a_finite_entry(vocabulary: int) -> None:
    logits = make_logits(20 * HARD_EVERY, vocabulary, FP32, mixed=True)
    assert np.isfinite(logits).any(axis=1).all()


def test_targets_are_in_range() -> None:
    targets = make_targets(1000, 7)
    assert targets.dtype == np.int32
    assert set(targets.tolist()) == set(range(7))


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
