# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The way of a device, on the stand-in for NKI: what is launched is documented, and judged on the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nkilib.verify.step import Observation, Status
from tests.neuron import machine
from tests.selected import selected, write_names
from tests.verify.launch_all import steps

STEPS = {step.name: (number, step) for number, step in enumerate(steps())}


@pytest.fixture(scope="module")
def launched(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory with the results on the stand-in of every step that is asked for, from one process."""
    directory = tmp_path_factory.mktemp("launched")
    names = write_names(directory, selected(request, "name"))
    done = machine.run("-m", "tests.verify.launch_all", directory, names)
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize("name", STEPS)
def test_every_kernel_and_probe_is_documented_nki(name: str, launched: Path) -> None:
    number, step = STEPS[name]
    verdict = step.judge(Observation.load(launched / str(number)), is_device=True)
    assert verdict.status is Status.AS_EXPECTED, verdict.text


def test_a_launch_and_its_judge_are_processes_of_their_own(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    only = ("--only", "kernels", "--step", "extended_inline")
    done = machine.run("-m", "nkilib", "verify", "--on", "device", "--report", report, *only)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nkilib verify on a Neuron device: ")
    read = json.loads(report.read_text())
    assert read["summary"] == {"as expected": 1} and read["place"] == "device"


@pytest.mark.sweep
def test_a_time_is_taken_by_the_wall_clock_where_the_sdk_has_none(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = machine.run("-m", "nkilib", "verify", "--on", "device", "--report", report, "--step", "exp, N=128")
    assert (done.returncode, done.stderr) == (0, "")
    (entry,) = json.loads(report.read_text())["steps"].values()
    assert entry["status"] == "measured" and entry["details"]["clock"] == "the wall clock"


@pytest.mark.sweep
def test_nki_without_a_device_is_a_self_check(tmp_path: Path) -> None:
    done = machine.run("-m", "nkilib", "verify", "--report", tmp_path / "r.json", "--step", "float to integer")
    assert done.returncode == 0
    first = done.stdout.splitlines()[0]
    assert first.startswith("nkilib verify ON THE SIMULATOR (no Neuron device is visible") and "nki 0.7.0" in first
