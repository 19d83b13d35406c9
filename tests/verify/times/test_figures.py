# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Times: what is subtracted from what, what is said of it, and which clock is believed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.model_figures import FIGURES
from nkilib.nki import nki
from nkilib.verify.observation import Observation
from nkilib.verify.step import Stage
from nkilib.verify.times import kernels, published
from nkilib.verify.times.figure import ARTIFACTS, Figure
from nkilib.verify.times.figures import figures
from nkilib.verify.times.timed import Shape, Timed
from nkilib.verify.times.wall import wall_times
from nkilib.verify.verdict import Status

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
