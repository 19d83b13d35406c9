# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.replay` runs, and judges by goals that only replayed launches can meet. No time is asserted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import replay
from benchmarks._memory import MemoryUse
from benchmarks.replay import ReplayCase, Timed, cases

CASE = ReplayCase("a case", lambda: None, goal=2.0, least=1e-3)  # type: ignore[arg-type, return-value]
TIMED = Timed(CASE, as_always=9.0, replayed=2.0, torch=1.0, instructions=3)


def test_it_runs_small_cases_and_prints_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_LEAST_SECONDS", 0.0)  # once each: how often else depends on the machine
    assert replay.main(["--quick", "--runs", "1", "--only", "cross-entropy|mse"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for case in cases(quick=True):
        assert case.name.split(",")[0] in printed
    assert "not replayed" not in printed


def test_every_goal_is_that_of_a_case() -> None:
    """The names are those of the goals' table; a loss at 128 x 1000 has both of its goals."""
    with_goal = {case.name: case for case in cases() if case.goal is not None}
    assert with_goal["cross-entropy 1024 x 32128, bf16, forward"].goal == 0.9
    assert with_goal["softmax [1024, 32128], axis -1, fp32, backward"].goal == 0.8
    assert with_goal["huber_loss [4096, 4096], bf16, backward"].goal == 4.0
    small = with_goal["poisson_nll_loss [128, 1000], fp32, forward"]
    assert (small.goal, small.least) == (5.0, 1.5e-3)
    assert not any(name.startswith(("ctc_loss [64", "softmax [8, 64")) for name in with_goal)


@pytest.mark.parametrize(
    ("changes", "is_met"),
    [
        ({}, True),
        ({"replayed": 2.1}, False),
        ({"replayed": 1e-3, "torch": 1e-4}, True),
        ({"hindrance": "replay is off"}, False),
    ],
)
def test_a_goal_is_met_by_replayed_launches(changes: dict[str, object], is_met: bool) -> None:
    assert replace(TIMED, **changes).is_met is is_met


def test_a_launch_that_is_not_replayed_says_why() -> None:
    sides = replay._cross_entropy(4, 40, "fp32", "forward")
    launch = sides.launches[0]
    launch = launch._replace(kwargs={**launch.kwargs, "positions_per_batch": _Positions(4)})
    assert "'positions_per_batch' holds a" in replay.timed_launches([launch], 1, lambda: None)[1]


class _Positions(int):
    """A number that no key holds."""


@pytest.mark.parametrize(("mebibytes", "code"), [(190, 0), (191, 1)])
def test_memory_is_judged(mebibytes: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    use = MemoryUse(growth=(mebibytes + 10) << 20, arrays=10 << 20)
    monkeypatch.setattr(replay, "measure_replay_memory", lambda *_: use)
    assert replay.main(["--only", "memory"]) == code


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--tune"]], ids=str)
def test_a_wrong_command_line_ends(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        replay.main(arguments)
