# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The clocks of the SDK, in place of which stand what their documentation says of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nkilib.verify.times.clocks import CLOCKS, Nrtpy, Profiler, Program, measured

# Writes a trace for each core, and a time that the trace's name and the program give.
FAKE = """\
#!{python}
import json, pathlib, sys
command, arguments = sys.argv[1], sys.argv[2:]
trace = pathlib.Path(arguments[arguments.index("-s") + 1])
program = pathlib.Path(arguments[arguments.index("-n") + 1])
if program.read_text() == "broken":
    sys.exit("no such program")
if command == "capture":
    assert "--profile-nth-exec=2" in arguments
    for core in (0, 1):
        trace.with_name(f"{{trace.stem}}_vnc_{{core}}_exec_2.ntff").touch()
else:
    assert arguments[:2] == ["--output-format", "summary-json"]
    seconds = float(program.read_text()) + ("_vnc_1" in trace.name) * 1e-6
    print("loading ...")
    print(json.dumps({{"n_123": {{"total_time": seconds, "total_active_time": 1}}}}))
"""


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profiler:
    """A command on the path."""
    command = tmp_path / "bin" / "neuron-explorer"
    command.parent.mkdir()
    command.write_text(FAKE.format(python=sys.executable))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent))
    return Profiler("neuron-explorer")


def program(directory: Path, text: str, **arrays: Any) -> Program:
    neff = directory / "kernel.neff"
    neff.write_text(text)
    return Program("forward", neff, arrays)


def test_a_profiler_says_what_the_later_core_takes(profiler: Profiler, tmp_path: Path) -> None:
    result = measured([program(tmp_path, "2e-4")], tmp_path, [profiler])
    assert (result.clock, result.refusals) == ("neuron-explorer", {})
    np.testing.assert_allclose(result.seconds["forward"], 3 * [2.01e-4])


def test_a_profiler_that_fails_gives_way_and_says_why(profiler: Profiler, tmp_path: Path) -> None:
    result = measured([program(tmp_path, "broken")], tmp_path, [profiler])
    assert (result.clock, result.seconds) == (None, {})
    assert result.refusals == {"neuron-explorer": "ClockError: capture ended with 1: no such program"}


def test_what_is_not_there_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = measured([program(tmp_path, "1")], tmp_path)
    assert result.clock is None
    assert result.refusals == {
        "nrtpy": "ModuleNotFoundError: No module named 'nrtpy'",
        "neuron-explorer": "ClockError: no command neuron-explorer on the path",
        "neuron-profile": "ClockError: no command neuron-profile on the path",
    }
    assert [clock.name for clock in CLOCKS] == list(result.refusals)


class FakeModel:
    """``nrtpy.NrtpyModel`` of the documentation, with inputs that a test chooses."""

    inputs: tuple[str, ...] = ("logits_hbm", "targets_hbm")
    given: dict[str, Any]

    @classmethod
    def load_from_neff(cls, path: Path) -> FakeModel:
        assert path.name == "kernel.neff"
        return cls()

    @property
    def input_tensors_info(self) -> dict[str, Any]:
        return dict.fromkeys(self.inputs)

    def benchmark(self, inputs: dict[str, Any], warmup_iter: int, benchmark_iter: int, mode: str) -> Any:
        assert mode == "device"
        FakeModel.given = inputs
        return SimpleNamespace(durations_ms=[2.0] * benchmark_iter)


@pytest.fixture
def nrtpy(monkeypatch: pytest.MonkeyPatch) -> type[FakeModel]:
    module: Any = ModuleType("nrtpy")
    module.NrtpyModel = FakeModel
    module.NrtpyTensor = SimpleNamespace(from_numpy=lambda array, name: (name, array))
    monkeypatch.setitem(sys.modules, "nrtpy", module)
    return FakeModel


def arrays() -> dict[str, Any]:
    return {"logits_hbm": np.ones((2, 4), ml_dtypes.bfloat16), "targets_hbm": np.ones(2, np.int32)}


def test_nrtpy_gets_the_arguments_by_their_names(nrtpy: type[FakeModel], tmp_path: Path) -> None:
    result = measured([program(tmp_path, "", **arrays())], tmp_path, [Nrtpy()])
    assert (result.clock, len(result.seconds["forward"])) == ("nrtpy", 50)
    assert (result.seconds["forward"] == 2e-3).all()
    name, logits = nrtpy.given["logits_hbm"]
    assert name == "logits_hbm" and logits.dtype == np.uint16 and logits[0, 0] == 0x3F80


def test_other_names_take_them_in_order_and_another_number_is_refused(
    nrtpy: type[FakeModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nrtpy, "inputs", ("input0", "input1"))
    measured([program(tmp_path, "", **arrays())], tmp_path, [Nrtpy()])
    assert list(nrtpy.given) == ["input0", "input1"] and nrtpy.given["input1"][1].dtype == np.int32
    monkeypatch.setattr(nrtpy, "inputs", ("input0",))
    result = measured([program(tmp_path, "", **arrays())], tmp_path, [Nrtpy()])
    assert result.refusals == {
        "nrtpy": "ClockError: the program has the inputs input0, the kernel logits_hbm, targets_hbm"
    }
