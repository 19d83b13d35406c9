# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.launch_cost` measures each checkout in its own process, alternately. No time is asserted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import launch_cost
from benchmarks._launch_worker import CASES, run_times
from benchmarks.launch_cost import Cost, Worker, main, measure, ratio

HERE = Path(launch_cost.__file__).parents[1]
LAUNCH = "cross_entropy_forward[2]"


def test_the_ratio_is_that_of_rounds() -> None:
    here, other = Cost((1.0, 4.0, 1.5)), Cost((2.0, 4.0, 2.0))
    assert ratio(here, other) == 0.75
    assert (here.fastest, here.usual) == (1.0, 1.5)


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs(name: str) -> None:
    if name.startswith("mse_loss"):
        pytest.importorskip("torch")
    assert all(seconds > 0 for seconds in run_times(CASES[name](), 2))


def test_both_alternate() -> None:
    costs = measure([HERE, HERE], LAUNCH, rounds=2, runs=1)
    assert [len(cost.rounds) for cost in costs] == [2, 2]
    assert all(seconds > 0 for cost in costs for seconds in cost.rounds)


def test_another_package_is_not_measured_unseen(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"a process for {tmp_path} measures .*; pass the root of a checkout"):
        Worker(tmp_path, LAUNCH)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert main(["--rounds", "1", "--runs", "1", "--against", str(HERE)]) in (0, 1)
    printed = capsys.readouterr().out
    assert all(name in printed for name in CASES)
    assert len(re.findall(r" (met|missed)\s*$", printed, re.MULTILINE)) == len(CASES)


@pytest.mark.parametrize("option", ["--rounds", "--runs"])
def test_a_count_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([option, "0"])
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


def test_against_what_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--against", str(tmp_path)])
    assert f"--against must be the root of a checkout of nkilib, got {tmp_path}" in capsys.readouterr().err
