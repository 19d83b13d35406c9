# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times: what is subtracted from what, what is said of it, and which clock is believed.

In place of the clocks of the SDK stands what their documentation says of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from benchmarks.model_figures import FIGURES
from nkilib.nki import nki
from nkilib.verify.step import Observation, Stage, Status
from nkilib.verify.times import kernels
from nkilib.verify.times import kernels as published
from nkilib.verify.times.clocks import CLOCKS, Nrtpy, Profiler, Program, Shape, Timed, measured, wall_times
from nkilib.verify.times.figures import ARTIFACTS, Figure, figures

ALL = {figure.name: figure for figure in figures()}
CHAIN = ALL["time: exp, N=128"]
WHOLE = ALL["time: cross_entropy_forward, 512 x 32768"]
US = 1e-6


def by_clock(figure: Figure, *values_us: float) -> Observation:
    """Return the observation of an SDK clock of the launches of a figure."""
    names = [launch.name for launch in (figure.timed, figure.base) if launch is not None]
    arrays = {f"{name} by the clock": np.full(5, value * US) for name, value in zip(names, values_us, strict=True)}
    return Observation(arrays, notes={"clock": "nrtpy", "refusals": {}})


def test_names_are_unique() -> None:
    assert len(ALL) == len(figures())


def test_every_figure_of_the_page_of_the_model_is_timed() -> None:
    """Once each: the same figures with other assumptions of the model need no device."""
    of_page = {figure.what for figure in FIGURES if not figure.what.startswith("the same")}
    assert {f"time: {what}" for what in of_page} <= ALL.keys()


LONG = ("matmul", "S=32K", "H=16384", "4096 x 129280")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sweep if any(part in name for part in LONG) else ()) for name in ALL],
)
def test_without_a_device_the_model_speaks(name: str) -> None:
    figure = ALL[name]
    verdict = figure.judge(figure.observe(is_device=False), is_device=False)
    assert verdict.status is Status.MODELLED
    assert verdict.text.endswith("modelled, not measured") and verdict.details["modelled_us"] > 0


def test_a_chain_is_what_one_link_takes() -> None:
    modelled = CHAIN.modelled_seconds / US
    assert 0.1 < modelled < 1.0
    verdict = CHAIN.judge(by_clock(CHAIN, 100 + 40 * modelled, 100 + 8 * modelled), is_device=True)
    assert verdict.status is Status.AS_EXPECTED
    assert verdict.details["measured_us"] == pytest.approx(modelled)
    shown = f"{modelled:.2f} us"
    assert verdict.text == f"measured {shown} by nrtpy, modelled {shown}, published 0.40 us: the model is 1 times it"


@pytest.mark.parametrize(
    ("factor", "status"), [(1.29, Status.AS_EXPECTED), (1.31, Status.DIFFERS), (1 / 1.31, Status.DIFFERS)]
)
def test_a_launch_is_judged_by_the_goal_of_the_model(factor: float, status: Status) -> None:
    measured = WHOLE.modelled_seconds / US / factor
    verdict = WHOLE.judge(by_clock(WHOLE, measured), is_device=True)
    assert verdict.status is status
    assert verdict.details["model_over_measured"] == pytest.approx(factor)


def test_what_the_spread_hides_is_not_judged() -> None:
    observation = by_clock(CHAIN, 100, 99)
    noisy = {name: values + np.arange(5) * 40 * US for name, values in observation.arrays.items()}
    verdict = CHAIN.judge(Observation(noisy, notes=observation.notes), is_device=True)
    assert verdict.status is Status.MEASURED and verdict.text.startswith("not resolved by nrtpy")


def test_the_wall_clock_subtracts_a_kernel_that_does_nothing_and_is_not_judged() -> None:
    arrays = {"forward": np.full(3, 900 * US), "base": np.full(3, 800 * US)}
    notes = {"clock": None, "refusals": {"nrtpy": "ModuleNotFoundError: No module named 'nrtpy'"}}
    verdict = WHOLE.judge(Observation(arrays, notes=notes), is_device=True)
    assert verdict.status is Status.MEASURED
    assert verdict.details["measured_us"] == pytest.approx(100)
    assert "by the wall clock" in verdict.text and "is not judged" in verdict.text
    assert verdict.details["not_used"] == notes["refusals"]


def test_an_error_is_no_time() -> None:
    assert CHAIN.judge(Observation(error="NrtError: x"), is_device=True).status is Status.FAILED


def test_what_is_compiled_for_each_launch_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel stands in for the compiler, which leaves the program of a launch where the variable says."""
    home = tmp_path / "artifacts"
    home.mkdir()
    monkeypatch.setenv(ARTIFACTS, str(home))

    @nki.jit
    def compiled(x, links):
        (home / "kernel.neff").write_text(f"{links} links")
        return kernels.chain_of_exp(x, links)

    shape = {"x": Shape((2, 8), "float32")}
    many, few = (Timed(name, compiled, shape, {"links": links}) for name, links in (("many", 3), ("few", 1)))
    figure = Figure("x", False, "a link", many, few, 2, None, 1.15)
    observation = figure.observe(is_device=True)
    assert observation.error is None and set(observation.arrays) == {"many", "few"}
    for name, links in (("many", 3), ("few", 1)):
        assert (tmp_path / "programs" / name / "kernel.neff").read_text() == f"{links} links"
    assert list(home.iterdir()) == []
    assert figure.stages_on_device == (Stage.LAUNCH, Stage.MEASURE, Stage.JUDGE)


def test_without_programs_the_wall_clock_stays(tmp_path: Path) -> None:
    result = CHAIN.measure(Observation({"many": np.ones(3), "few": np.ones(3)}), tmp_path)
    assert "clock" not in result.notes
    assert "holds 0 programs of the launch 'many'" in result.notes["refusals"]["clocks of the SDK"]


def test_a_kernel_that_does_nothing_takes_arrays() -> None:
    assert kernels.nothing(np.zeros((2, 2), np.float32), np.zeros(3, np.int32)).tolist() == [[2.0]]


def test_chains_and_loads_compute() -> None:
    x = np.full((4, 8), 0.5, np.float32)
    np.testing.assert_allclose(kernels.chain_of_exp(x, 2), np.exp(np.exp(x)), rtol=1e-6)
    assert (kernels.chain_of_loads(x, 3) == x).all()
    assert (kernels.chain_of_activation_reduce(x, 2) == 8 * 0.5**4).all()
    assert (kernels.chain_of_tensor_scalar_reduce(x, 2) == 0.5).all()
    rows = np.ones((3 * published.PARTITIONS, 4), np.float32)
    assert (kernels.rows_loaded(rows, 3) == 3.0).all()


def test_the_wall_clock_is_read_a_few_times() -> None:
    results = wall_times(Timed("few", kernels.chain_of_exp, {"x": Shape((2, 4), "bfloat16")}, {"links": 1}))
    assert 3 <= len(results) <= 15 and (results > 0).all()


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
