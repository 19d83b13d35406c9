# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The commands that time the simulator itself run, measure what they say, and judge by goals. No time is asserted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nkilib.simulator
from benchmarks import instruction_cost, launch_cost, loop_profiles, skip_arithmetic
from benchmarks._launch_worker import CASES, run_times
from benchmarks.instruction_cost import LARGEST_MICROSECONDS, Measured
from benchmarks.launch_cost import Worker, ratio
from benchmarks.skip_arithmetic import KERNELS, Sizes, measure_apart
from nkilib.nki import nki
from nkilib.simulator.language import loops as device_loop


@pytest.mark.parametrize("name", instruction_cost._CASES)
def test_every_case_runs_its_instruction(name: str) -> None:
    with nkilib.simulator.recording() as record:
        measured = instruction_cost.measure(name, repeats=3, launches=2)
    assert measured.name == name
    assert measured.whole > 0 and measured.arithmetic >= 0
    assert measured.own == measured.whole - measured.arithmetic
    instruction = name.partition(",")[0].replace(", ", " ")
    expected = {"slice and copy": "tensor_copy", "allocate and copy": "tensor_copy"}.get(name, instruction)
    of_tiles = {"memset": 8}.get(expected, 0)  # what makes the operands
    assert record.instruction_counts[expected] == 2 * (3 + of_tiles)


def test_the_goal() -> None:
    assert Measured("x", LARGEST_MICROSECONDS + 2, 2).meets_goal
    assert not Measured("x", LARGEST_MICROSECONDS + 2.1, 2).meets_goal


@pytest.mark.parametrize("name", instruction_cost._CASES)
def test_numpy_does_the_same_as_the_instruction(name: str) -> None:
    """The numpy work that is subtracted is the work of the instruction, on the same values."""
    case = instruction_cost._CASES[name]

    def kernel(hbm: Any) -> None:
        tiles = instruction_cost._tiles(hbm)
        arrays = {key: np.copy(tile.array) for key, tile in tiles.items()}
        case.instruction(tiles)
        case.arithmetic(arrays)
        for key, tile in tiles.items():
            np.testing.assert_allclose(tile.array.astype(np.float32), arrays[key].astype(np.float32), rtol=1e-6)

    nki.jit(kernel)(np.full((instruction_cost.PARTITIONS, instruction_cost.COLUMNS), 3, np.float32))


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert instruction_cost.main(["--repeats", "2", "--launches", "1"]) == 0
    printed = capsys.readouterr().out
    for name in instruction_cost._CASES:
        assert name in printed
    verdicts = re.findall(r" (met|missed)\s*$", printed, re.MULTILINE)
    assert len(verdicts) == len(instruction_cost._CASES)
    assert f"Goal met: {verdicts.count('met')} of {len(verdicts)}." in printed


@pytest.mark.parametrize("option", ["--repeats", "--launches"])
def test_a_count_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        instruction_cost.main([option, "0"])
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


# `benchmarks.launch_cost` measures each checkout in its own process, alternately. No time is asserted.

HERE = Path(launch_cost.__file__).parents[1]
LAUNCH = "cross_entropy_forward[2]"


def test_the_ratio_is_that_of_rounds() -> None:
    here, other = launch_cost.Cost((1.0, 4.0, 1.5)), launch_cost.Cost((2.0, 4.0, 2.0))
    assert ratio(here, other) == 0.75
    assert (here.fastest, here.usual) == (1.0, 1.5)


@pytest.mark.parametrize("name", CASES)
def test_a_case_runs(name: str) -> None:
    if name.startswith("mse_loss"):
        pytest.importorskip("torch")
    assert all(seconds > 0 for seconds in run_times(CASES[name](), 2))


def test_both_alternate() -> None:
    costs = launch_cost.measure([HERE, HERE], LAUNCH, rounds=2, runs=1)
    assert [len(cost.rounds) for cost in costs] == [2, 2]
    assert all(seconds > 0 for cost in costs for seconds in cost.rounds)


def test_another_package_is_not_measured_unseen(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=f"a process for {tmp_path} measures .*; pass the root of a checkout"):
        Worker(tmp_path, LAUNCH)


def test_the_table_of_launches(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert launch_cost.main(["--rounds", "1", "--runs", "1", "--against", str(HERE)]) in (0, 1)
    printed = capsys.readouterr().out
    assert all(name in printed for name in CASES)
    assert len(re.findall(r" (met|missed)\s*$", printed, re.MULTILINE)) == len(CASES)


@pytest.mark.parametrize("option", ["--rounds", "--runs"])
def test_a_count_of_launches_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch_cost.main([option, "0"])
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


def test_against_what_is_no_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        launch_cost.main(["--against", str(tmp_path)])
    assert f"--against must be the root of a checkout of nkilib, got {tmp_path}" in capsys.readouterr().err


# `benchmarks.loop_profiles` runs, and its kernels do the same. No time is asserted.


def test_left_out_iterations_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_loop, "FEWEST_ITERATIONS", device_loop.FEWEST_ITERATIONS)  # undone behind the test
    short, python = loop_profiles.measure("fori_loop", 600), loop_profiles.measure("python", 600)
    every = loop_profiles.measure("all", 600)
    assert short.instructions == every.instructions == python.instructions == 600
    assert short.modelled_us == pytest.approx(every.modelled_us, rel=1e-9)
    assert python.modelled_us < every.modelled_us


def test_it_prints_what_profiles_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert loop_profiles.main(["--only", "fori_loop", "--instructions", "400"]) == 0
    assert '"instructions": 400' in capsys.readouterr().out


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="invalid choice: 'nothing'"):
        loop_profiles.measure_apart("nothing", 10)


# `benchmarks.skip_arithmetic` runs its kernels both ways. No time is asserted.

SMALL = {"rows": 128, "vocabulary": 32_768, "positions": 128, "features": 128, "classes": 512}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_runs_both_ways(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for way in ("computed", "skipped"):
        assert skip_arithmetic.main(["--only", name, "--way", way, "--sizes", json.dumps(SMALL)]) == 0
        assert json.loads(capsys.readouterr().out)["seconds"] > 0


def test_it_judges_by_the_ratio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {"computed": 10.0, "skipped": 2.0}
    monkeypatch.setattr(
        skip_arithmetic, "measure_apart", lambda name, way, cores, sizes: skip_arithmetic.Cost(seconds[way], 1.0)
    )
    assert skip_arithmetic.main([]) == 0
    assert "Goals met: 4 of 4." in capsys.readouterr().out
    seconds["skipped"] = 2.1
    assert skip_arithmetic.main([]) == 1


def test_a_launch_in_a_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="invalid choice: 'nothing'"):
        measure_apart("nothing", "skipped", 1, Sizes())
