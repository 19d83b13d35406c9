# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Steps in processes with a limit: what each is told, and that no end of one stops the others or leaves something.

Further where steps are launched, and the report, which is whole after every step and good to go on from; what remains
of a run, and that one run at a time writes a report.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nkilib.verify import runner
from nkilib.verify.runner import (
    CannotRunError,
    Entry,
    LaunchPlace,
    Remaining,
    Report,
    ReportError,
    Settings,
    chosen_place,
    remaining,
    run_limited,
    run_steps,
    writing_alone,
)
from nkilib.verify.step import Observation, Stage, Status, Step, Verdict
from tests.fresh_python import CHECKOUT, with_checkout
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
    monkeypatch.setattr(runner, "_WORKER", "tests.verify.worker_of_tests")
    monkeypatch.setattr(runner, "_PACKAGES", CHECKOUT)
    monkeypatch.setattr(runner, "_GRACE", 0.2)
    monkeypatch.setenv("LOG_OF_TESTS", str(tmp_path / "log"))
    return tmp_path / "log"


class Noted:
    """A watcher that notes everything."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.ended: list[tuple[str, Entry]] = []
        self.left: list[Remaining] = []

    def begin(self, name: str, rest: Remaining) -> None:
        self.begun.append((name, rest.steps))

    def end(self, name: str, entry: Entry, rest: Remaining) -> None:
        self.ended.append((name, entry))
        self.left.append(rest)


def run(report: Report, *names: str, is_device: bool = False, timeout: float = HANG_SECONDS) -> Noted:
    noted = Noted()
    settings = Settings(LaunchPlace(is_device, "here"), "trn2", timeout)
    run_steps({"probes": [Named(name, True) for name in names]}, settings, report, noted)
    return noted


def seen(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_a_crash_and_a_hang_are_noted_and_the_rest_runs(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    names = ("it crashes", "it hangs", "it differs", "it is fine")
    noted = run(report, *names, timeout=1.0)
    assert [name for name, _ in noted.ended] == list(names)
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
    noted = run(report, "one", "two")
    assert noted.begun == [("two", 1)] and noted.left[0].steps == 0
    assert [name for name, _ in noted.ended] == ["two"]
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


class Killed(BaseException):
    """An end of the process that the run does not handle."""


@pytest.fixture
def steps_end(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let steps end without a process: as expected, or the run with them."""

    def steps_end(how: type[BaseException] | None = None) -> None:
        def end(kind: str, step: Step, _: Settings) -> Entry:
            if how is not None:
                raise how
            return Entry(kind, step.what, Status.AS_EXPECTED)

        monkeypatch.setattr(runner, "_entry", end)

    return steps_end


def test_a_step_that_ctrl_c_has_ended_runs_again(tmp_path: Path, steps_end: Callable[..., None]) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    steps_end()
    run(report, "one")
    steps_end(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(report, "one", "two")
    again = Report.opened(report.path)
    assert list(again.entries) == ["one"]
    steps_end()
    assert run(again, "one", "two").begun == [("two", 1)]


def test_a_step_during_which_two_runs_are_killed_counts_as_crashed(
    tmp_path: Path, steps_end: Callable[..., None]
) -> None:
    """Whatever ends the process: the step is in the report before it runs, and the next run begins with it."""
    report = Report(tmp_path / "r.json", HEADER)
    steps_end(Killed)
    for starts in (1, 2):
        with pytest.raises(Killed):
            run(report, "one", "two")
        report = Report.opened(report.path)
        assert report.entries["one"].starts == starts and report.has("one") == (starts == 2)
    assert report.counts() == {"crashed": 1}
    assert report.entries["one"].text == "2 runs ended while this step was running; --again starts it once more"
    steps_end()
    assert run(report, "one", "two").begun == [("two", 1)]
    report.without_bad_ends()
    assert run(report, "one", "two").begun == [("one", 1)]
    assert report.counts() == {"as expected": 2}


def test_the_rest_takes_as_long_as_the_finished_steps_did(tmp_path: Path) -> None:
    names = ("one", "two", "three", "four", "five")
    report = Report(tmp_path / "r.json", HEADER)
    assert remaining(names, report) == Remaining(5, None)
    report.put("one", Entry("probes", "what", Status.AS_EXPECTED, seconds=1.0))
    report.put("of another run", Entry("probes", "what", Status.DIFFERS, seconds=2.0))
    report.put("two", Entry("probes", "what", Status.TIMED_OUT, seconds=2.0))
    report.put("three", Entry("probes", "what", Status.RUNNING))
    assert remaining(names, report) == Remaining(3, 4.5)
    assert remaining(("one", "two"), report) == Remaining(0, 0.0)


def test_two_runs_do_not_write_one_report(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    refused = pytest.raises(ReportError, match=r"another run is writing .*r\.json; wait until it has ended")
    with writing_alone(path):
        with refused, writing_alone(path):
            raise AssertionError("both write it")
        with writing_alone(tmp_path / "other.json"):
            pass
    with writing_alone(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_what_may_spoil_the_device_runs_after_everything_else(log: Path, tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", {})
    settings = Settings(LaunchPlace(False, "here"), "trn2", 30.0)
    some, others = [Named("last of all", True), Named("first", True)], [Named("second", True)]
    run_steps({"probes": some, "times": others}, settings, report, Noted())
    assert list(report.entries) == ["first", "second", "last of all"]


def run_python(tmp_path: Path, source: str, seconds: float = 30.0) -> runner.Ended:
    return run_limited([sys.executable, "-c", source], os.environ, tmp_path / "log", seconds)


def test_what_it_prints_is_kept(tmp_path: Path) -> None:
    ended = run_python(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.code, str(ended)) == (3, "ended with exit code 3")
    assert run_python(tmp_path, "print('more')").code == 0
    assert (tmp_path / "log").read_text().split() == ["out", "err", "more"]


def test_a_signal_has_a_name(tmp_path: Path) -> None:
    assert str(run_python(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")) == "ended by SIGSEGV"


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ignores the request to end, and so does its child."""
    monkeypatch.setattr(runner, "_GRACE", 0.1)
    source = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    ended = run_python(tmp_path, source, seconds=1.5)
    assert ended.code is None and str(ended).startswith("stopped after ")
    assert time.monotonic() - start < 20
    _wait_for_end_of(int((tmp_path / "child").read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_step_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    child = (
        "import time; from nkilib.verify.worker import end_with_parent; "
        "end_with_parent(); print('here', flush=True); time.sleep(60)"
    )
    source = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    environment = with_checkout()
    with subprocess.Popen([sys.executable, "-c", source], env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        assert _is_alive(number)
        parent.kill()
    _wait_for_end_of(number)


def _wait_for_end_of(number: int) -> None:
    until = time.monotonic() + HANG_SECONDS
    while _is_alive(number):
        assert time.monotonic() < until, "the process is still there"
        time.sleep(0.05)


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


DEVICES = ["/dev/neuron0", "/dev/neuron1"]


@dataclass
class Backend:
    """A backend that `nkilib.nki` has chosen."""

    name: str
    reason: str


REAL = Backend("neuron", "nki 0.7.0 is installed: nki/__init__.py")
NONE = Backend("simulator", "no package nki is installed")
ASKED = Backend("simulator", "NKILIB_BACKEND=simulator")


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    def choose(chosen: Backend) -> None:
        monkeypatch.setattr(runner, "import_module", lambda _: SimpleNamespace(backend=chosen))

    return choose


def test_a_device_with_nki(backend: Any) -> None:
    backend(REAL)
    for requested in ("auto", "device"):
        result = chosen_place(requested, DEVICES)
        assert result.is_device and result.first_line.startswith(
            "nkilib verify on a Neuron device: /dev/neuron0, /dev/"
        )
    assert not chosen_place("simulator", DEVICES).is_device


def test_nki_without_a_device_is_a_self_check_unless_a_device_is_asked_for(backend: Any) -> None:
    backend(REAL)
    result = chosen_place("auto", [])
    assert not result.is_device
    assert result.first_line == (
        "nkilib verify ON THE SIMULATOR (no Neuron device is visible (/dev/neuron*), though nki 0.7.0 is installed: "
        "nki/__init__.py): a self-check. It says nothing of hardware; times are modelled, not measured"
    )
    assert "as asked for, though no Neuron device is visible" in chosen_place("device", []).first_line


def test_neither_is_a_self_check(backend: Any) -> None:
    backend(NONE)
    assert not chosen_place("auto", []).is_device
    backend(ASKED)
    assert not chosen_place("auto", DEVICES).is_device


@pytest.mark.parametrize(("requested", "visible"), [("auto", DEVICES), ("device", DEVICES), ("device", [])])
def test_a_device_that_would_not_be_used_is_refused(backend: Any, requested: str, visible: list[str]) -> None:
    backend(NONE)
    with pytest.raises(CannotRunError, match=r"because no package nki is installed\. Install the Neuron SDK"):
        chosen_place(requested, visible)


def test_a_broken_nki_is_refused_but_for_the_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> Any:
        raise ImportError("the kernels need nki 0.7 or later.")

    monkeypatch.setattr(runner, "import_module", broken)
    with pytest.raises(CannotRunError, match=r"nki 0\.7 or later\. python -m nkilib doctor says what is installed"):
        chosen_place("auto", DEVICES)
    assert not chosen_place("simulator", DEVICES).is_device


HEADER = {
    "place": "device",
    "nkilib": "0.1.0",
    "sources": "ab12",
    "target": "trn2",
    "python": "3.12",
    "devices": ["/dev/neuron0"],
    "packages": {"nki": "0.7.0", "torch": None},
    "platform": "Linux",
}


def entry(status: Status) -> Entry:
    return Entry("probes", "what", status, "text", {"reading": "one"}, 1.5, "log")


def test_it_is_whole_after_every_step(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    for number, status in enumerate((Status.AS_EXPECTED, Status.DIFFERS), start=1):
        report.put(f"step {number}", entry(status))
        read = json.loads(report.path.read_text())
        assert len(read["steps"]) == number
    assert read["summary"] == {"as expected": 1, "differs": 1} and read["place"] == "device"
    assert read["steps"]["step 2"]["details"] == {"reading": "one"}
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_it_goes_on_where_it_was(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    report.put("done", entry(Status.DIFFERS))
    report.put("hung", entry(Status.TIMED_OUT))
    report.put("running", entry(Status.RUNNING))
    opened = Report.opened(report.path)
    assert (opened.header, opened.differences({**HEADER, "platform": "another kernel"})) == (HEADER, [])
    assert opened.entries["done"] == entry(Status.DIFFERS)
    assert [name for name in report.entries if opened.has(name)] == ["done", "hung"]
    opened.without_bad_ends()
    assert list(opened.entries) == ["done"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"place": "simulator"}, "place was device and is simulator"),
        ({"nkilib": "0.2.0"}, "nkilib was 0.1.0 and is 0.2.0"),
        ({"sources": "cd34"}, "nkilib has other code"),
        ({"target": "trn3"}, "target was trn2 and is trn3"),
        ({"python": "3.13"}, "python was 3.12 and is 3.13"),
        ({"devices": []}, "devices was /dev/neuron0 and is none"),
        ({"packages": {"nki": "0.7.0", "torch": "2.10"}}, "torch was none and is 2.10"),
    ],
)
def test_another_run_is_told_apart(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    Report(tmp_path / "r.json", HEADER).save()
    assert Report.opened(tmp_path / "r.json").differences({**HEADER, **changed}) == [said]


def test_a_report_that_is_put_aside_replaces_none(tmp_path: Path) -> None:
    for name in ("r.1.json", "r.2.json"):
        report = Report(tmp_path / "r.json", {**HEADER, "name": name})
        report.save()
        assert report.put_aside() == tmp_path / name
    assert Report.opened(tmp_path / "r.1.json").header["name"] == "r.1.json"
    assert not report.path.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"steps": {"a": {}}}', '{"steps": {"a": {"status": "odd"}}}'])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ReportError, match="is no report of nkilib verify; name another file"):
        Report.opened(tmp_path / "r.json")


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"the report must be readable: .* name another file with --report"):
        Report.opened(tmp_path)


@pytest.mark.parametrize("status", Status)
def test_what_counts_as_a_difference(tmp_path: Path, status: Status) -> None:
    report = Report(tmp_path / "r.json", HEADER)
    report.put("step", entry(status))
    report.put("another", entry(Status.MODELLED))
    assert report.counts(["step"]) == {status.value: 1}
    fine = (Status.AS_EXPECTED, Status.MEASURED, Status.MODELLED, Status.NOT_RUN)
    assert status.is_difference == (status not in fine)
