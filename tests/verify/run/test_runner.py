# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Steps in processes: what each is told, and that no end of one stops the others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from nkilib.verify.observation import Observation
from nkilib.verify.run import process, runner
from nkilib.verify.run.place import Place
from nkilib.verify.run.report import Entry, Report
from nkilib.verify.run.runner import Settings, run_steps
from nkilib.verify.step import Stage, Step
from nkilib.verify.verdict import Status, Verdict
from tests.fresh_python import CHECKOUT
from tests.hangs import HANG_SECONDS


@dataclass(frozen=True)
class Named(Step):
    """A step of which the worker of these tests reads the name alone."""

    @property
    def cores(self) -> int:
        return 2

    @property
    def stages_on_device(self) -> tuple[Stage, ...]:
        return Stage.LAUNCH, Stage.MEASURE, Stage.JUDGE

    @property
    def runs_last(self) -> bool:
        return "last" in self.name

    @property
    def what(self) -> str:
        return "a question"

    def observe(self, is_device: bool) -> Observation:
        raise NotImplementedError

    def judge(self, observation: Observation, is_device: bool) -> Verdict:
        raise NotImplementedError


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "_WORKER", "tests.verify.run.worker_of_tests")
    monkeypatch.setattr(runner, "_PACKAGES", CHECKOUT)
    monkeypatch.setattr(process, "_GRACE", 0.2)
    monkeypatch.setenv("LOG_OF_TESTS", str(tmp_path / "log"))
    return tmp_path / "log"


def run(report: Report, *names: str, is_device: bool = False, timeout: float = HANG_SECONDS) -> list[tuple[str, Entry]]:
    shown: list[tuple[str, Entry]] = []
    settings = Settings(Place(is_device, "here"), "trn2", timeout)
    run_steps({"probes": [Named(name, True) for name in names]}, settings, report, lambda *each: shown.append(each))
    return shown


def seen(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_crash_and_a_hang_are_noted_and_the_rest_runs(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    names = ("it crashes", "it hangs", "it differs", "it is fine")
    shown = run(report, *names, timeout=1.0)
    assert [name for name, _ in shown] == list(names)
    statuses = [Status.CRASHED, Status.TIMED_OUT, Status.DIFFERS, Status.AS_EXPECTED]
    assert [entry.status for entry in report.entries.values()] == statuses
    crashed, hung = report.entries["it crashes"], report.entries["it hangs"]
    assert (crashed.text, crashed.log) == ("self-check: ended with exit code 9", "what it said last")
    assert hung.text == "self-check: stopped after 1 s; --timeout gives more"
    assert report.entries["it is fine"].text == "found"
    assert all(
        stage == "self-check" and backend == "simulator" and cores == "2" for _, stage, backend, cores in seen(log)
    )


def test_what_is_in_the_report_is_not_run_again(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    run(report, "one")
    shown = run(report, "one", "two")
    assert [name for name, _ in shown] == ["two"]
    assert [name for name, *_ in seen(log)] == ["one", "two"]


def test_on_a_device_the_real_nki_launches_and_the_simulator_judges(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    run(report, "one", is_device=True)
    assert [(stage, backend) for _, stage, backend, _ in seen(log)] == [
        ("launch", "neuron"),
        ("measure", "simulator"),
        ("judge", "simulator"),
    ]
    assert report.entries["one"].status is Status.AS_EXPECTED


def test_a_step_is_in_the_report_before_it_runs(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends this process meanwhile: the next run knows which step it was."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_limited", interrupted)
    report = Report(tmp_path / "r.json", {"place": "x", "nkilib": "y", "target": "z"})
    with pytest.raises(KeyboardInterrupt):
        run(report, "one")
    assert Report.resumed(report.path, report.header).entries["one"].status is Status.CRASHED


def test_what_may_spoil_the_device_runs_after_everything_else(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    settings = Settings(Place(False, "here"), "trn2", 30.0)
    some, others = [Named("last of all", True), Named("first", True)], [Named("second", True)]
    run_steps({"probes": some, "times": others}, settings, report, lambda *_: None)
    assert list(report.entries) == ["first", "second", "last of all"]
