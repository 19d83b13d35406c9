"""The way of a device, on the stand-in for NKI: what is launched is documented, and judged on the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.neuron import machine


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (("--only", "kernels", "--step", "extended_inline"), 1),
        pytest.param(("--only", "kernels", "probes"), None, marks=pytest.mark.sweep),
    ],
)
def test_steps_are_as_expected(tmp_path: Path, arguments: tuple[str, ...], steps: int | None) -> None:
    report = tmp_path / "report.json"
    done = machine.run("-m", "nkilib", "verify", "--on", "device", "--report", report, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nkilib verify on a Neuron device: ")
    read = json.loads(report.read_text())
    assert read["summary"] == {"as expected": steps or len(read["steps"])} and read["place"] == "device"


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
