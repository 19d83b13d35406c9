# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`python -m nkilib verify`: a self-check where there is no device, what it says of its time, and the way back into a
run, also into one that was killed.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from nkilib.cli.main import main
from nkilib.cli.verify import _rest
from nkilib.verify import runner
from nkilib.verify.registry import KINDS, all_steps, step_named
from nkilib.verify.runner import Entry, Remaining, Report, Settings
from nkilib.verify.step import Status, Step
from tests.cli.test_command_line import ended
from tests.fresh_python import CHECKOUT, with_checkout
from tests.hangs import HANG_SECONDS

FIRST = "nkilib verify ON THE SIMULATOR"
QUICK = "float to integer"


def verify(report: Path, *arguments: str) -> int:
    return main(("verify", "--report", str(report), *arguments))


def words(text: str) -> str:
    """The text in one line; lines are folded where they are long, such as that of a path."""
    return " ".join(text.split())


@pytest.fixture
def steps_end(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let steps end without a process: in so many seconds, as expected, or as told by the number of the step."""

    def steps_end(seconds: float = 2.0, **ends: Status | type[BaseException]) -> None:
        started = 0

        def end(kind: str, step: Step, _: Settings) -> Entry:
            nonlocal started
            started += 1
            how = ends.get(f"step{started}", Status.AS_EXPECTED)
            if isinstance(how, Status):
                return Entry(kind, step.what, how, "found", seconds=seconds)
            raise how

        monkeypatch.setattr(runner, "_entry", end)

    return steps_end


def test_a_self_check_says_so_first_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    assert verify(report, "--quick", "--step", "large") == 0
    shown = capsys.readouterr().out
    said = words(shown)
    assert said.startswith(FIRST) and "times are modelled, not measured 2 steps for trn2, at most 900 s each." in said
    assert f"Report: {report}. Ctrl-C stops the run; the same command goes on with it." in said
    first, second = "extended_cross_entropy_forward: equal largest logits, float32", "exp of large numbers"
    assert (
        said.index("The first step tells how long") < said.index(first) < said.index("At the pace of this one, 1 step")
    )
    assert said.index(first) < said.index(second)
    assert f"\n{'':13}reading: the mathematical function\n" in shown
    assert shown.splitlines()[-1].startswith("2 as expected, in ")
    read = json.loads(report.read_text())
    assert (read["place"], read["target"], read["summary"]) == ("simulator", "trn2", {"as expected": 2})


def test_it_says_how_long_it_takes_and_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps_end: Callable[..., None]
) -> None:
    steps_end()
    assert verify(tmp_path / "r.json", "--only", "probes") == 0
    lines = capsys.readouterr().out.splitlines()
    total, quick = len(all_steps(["probes"])["probes"]), len(all_steps(["probes"], quick_only=True)["probes"])
    assert f"{total} steps for trn2, at most 900 s each." in lines
    assert f"Begin with --quick: it runs {quick} of them, the most important ones." in lines
    assert f"as expected  {QUICK} (2.0 s; {total - 1} left, about {2 * total - 2} s)" in lines
    said = words("\n".join(lines))
    assert f"At the pace of this one, {total - 1} steps are left: about {2 * total - 2} s." in said
    assert f"--quick has {quick} steps: about {2 * quick} s." in said
    assert said.count("At the pace") == 1
    assert "(2.0 s; the last one)" in lines[-3]
    assert max(map(len, lines)) <= max(88, len(f"Report: {tmp_path / 'r.json'}."))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (60.4, "60 s"), (89.6, "90 s"), (240.0, "4 min"), (5000.0, "83 min"), (9000.0, "2.5 h")],
)
def test_times_are_said_in_one_unit(seconds: float, said: str) -> None:
    assert _rest(Remaining(3, seconds)) == f"3 left, about {said}"


@pytest.mark.sweep
def test_the_whole_self_check(tmp_path: Path) -> None:
    assert verify(tmp_path / "r.json") == 0
    read = json.loads((tmp_path / "r.json").read_text())
    assert set(read["summary"]) <= {"as expected", "modelled", "not run"}
    assert len(read["steps"]) == sum(map(len, all_steps().values()))


def test_a_run_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r.json"
    assert verify(report, "--step", QUICK, "--timeout", "0.01") == 1
    shown = capsys.readouterr().out
    assert "timed out    float to integer" in shown and "--timeout gives more" in shown
    assert "timed out: float to integer" in shown.splitlines()
    assert f"Please send {report}" in words(shown)
    assert verify(report, "--step", QUICK) == 1, "a step that took too long is not run again unasked"
    said = words(capsys.readouterr().out)
    assert "1 step ended in an earlier run with the same versions: nothing is left to run; --fresh runs them" in said
    assert verify(report, "--step", QUICK, "--resume", "--again") == 0
    assert json.loads(report.read_text())["summary"] == {"as expected": 1}


def test_quick_steps_are_not_run_again_by_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps_end: Callable[..., None]
) -> None:
    report, total = tmp_path / "r.json", len(all_steps(["times"])["times"])
    steps_end(100.0)
    assert verify(report, "--only", "times", "--quick") == 0
    steps_end(step2=Status.DIFFERS)
    capsys.readouterr()
    assert verify(report, "--only", "times") == 1
    shown = capsys.readouterr().out
    left = f"{total - 1} left, about {(total - 1) * 100 / 60:.0f} min"
    said = f"1 step ended in an earlier run with the same versions: {left}."
    assert said in shown.splitlines() and "Begin with --quick" not in shown and "At the pace" not in shown
    assert f"{total - 1} as expected, 1 differs, in 1 s." in shown.splitlines()


def test_only_a_run_with_the_same_versions_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps_end: Callable[..., None]
) -> None:
    report = tmp_path / "r.json"
    steps_end()
    assert verify(report, "--step", QUICK) == 0
    old = Report.opened(report)
    old.header["packages"]["numpy"] = "1.0"
    old.save()
    capsys.readouterr()
    assert verify(report, "--step", QUICK, "--resume") == 2
    refused = capsys.readouterr().err
    assert (
        f"--resume needs a report with the same versions, but {report} is of another run: numpy was 1.0 and" in refused
    )
    assert verify(report, "--step", QUICK) == 0
    said = words(capsys.readouterr().out)
    assert f"{report} is of another run: numpy was 1.0 and is " in said
    assert f"This run starts anew; the old report is {tmp_path / 'r.1.json'} now." in said
    assert verify(report, "--step", QUICK, "--fresh") == 0
    said = words(capsys.readouterr().out)
    assert f"--fresh is given. This run starts anew; the old report is {tmp_path / 'r.2.json'} now." in said
    assert "the same command without --fresh goes on with it." in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.1.json", "r.2.json", "r.json"]


def test_ctrl_c_ends_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps_end: Callable[..., None]
) -> None:
    steps_end(step2=KeyboardInterrupt)
    assert verify(tmp_path / "r.json", "--step", "outside") == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "interrupted after 1 of 3 steps; the same command goes on"
    steps_end()
    assert verify(tmp_path / "r.json", "--step", "outside") == 0
    assert "3 as expected" in capsys.readouterr().out


def test_a_terminal_shows_the_step_that_runs(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    steps_end: Callable[..., None],
) -> None:
    """The line is gone before anything else is printed."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    steps_end(step2=KeyboardInterrupt)
    assert verify(tmp_path / "r.json", "--step", "outside") == 130
    *lines, last = capsys.readouterr().err.split("\r")
    shown = [line.rstrip() for line in lines if line]
    now = [
        "3 left; now: log outside its range ...",
        "2 left, about 4 s; now: an index outside the view, inside the tensor ...",
    ]
    assert shown == [now[0], "", now[1], ""] and all(len(line) in (0, 79) for line in lines)
    assert last == "interrupted after 1 of 3 steps; the same command goes on\n"


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Whether it had time to tidy up, as after SIGTERM, or not."""
    report = tmp_path / "r.json"
    command = [sys.executable, "-m", "nkilib", "verify", "--report", report, "--quick", "--step", "outside"]

    for starts, number, code, said in (
        (1, signal.SIGKILL, -signal.SIGKILL, ""),
        (2, signal.SIGTERM, 130, "interrupted after 0 of 1 step; the same command goes on\n"),
    ):
        process = subprocess.Popen(command, env=with_checkout(), stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + HANG_SECONDS
        while not report.exists() or f'"starts": {starts}' not in report.read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=HANG_SECONDS)
        assert (process.returncode, err) == (code, said)
    assert verify(report, "--quick", "--step", "outside") == 0
    assert json.loads(report.read_text())["summary"] == {"as expected": 1}


def test_the_page_has_the_numbers_of_steps() -> None:
    page = (CHECKOUT / "docs" / "how_to" / "verify_on_a_device.md").read_text(encoding="utf-8")
    for name, is_quick in (("`--quick`", True), ("all", False)):
        assert f"| {name} | {sum(map(len, all_steps(quick_only=is_quick).values()))} |" in page


def test_the_list_names_every_step_and_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(tmp_path / "r.json", "--list") == 0
    shown = capsys.readouterr().out
    said = words(shown)
    for kind, steps in all_steps().items():
        assert f"{kind}: {len(steps)}\n" in shown
        assert all(f" {step.name}: {step.what}" in said for step in steps)
    assert max(map(len, shown.splitlines())) <= 88
    assert not (tmp_path / "r.json").exists()


def test_steps_are_chosen_by_kind_by_name_and_by_pace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert verify(tmp_path / "r.json", "--list", "--only", "times", "--step", "exp") == 0
    assert capsys.readouterr().out.splitlines()[0] == "times: 2"
    quick, every = all_steps(quick_only=True), all_steps()
    assert list(quick) == list(KINDS) and all(0 < len(quick[kind]) < len(every[kind]) for kind in KINDS)
    names = [step.name for steps in every.values() for step in steps]
    assert len(set(names)) == len(names)
    assert step_named(names[0]).name == names[0]
    with pytest.raises(KeyError, match="no step 'x'"):
        step_named("x")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume",), "but there is no"),
        (("--on", "device"), "kernels would not run on a device"),
        (("--step", "no such"), "no step of kernels, probes, times has 'no such' in its name"),
    ],
)
def test_what_cannot_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert verify(tmp_path / "r.json", *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m nkilib verify: error: ") and said in line
    assert not (tmp_path / "r.json").exists()


def test_a_report_that_cannot_be_written_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path / "missing" / "r.json", "--quick") == 2
    assert "the report must be writable" in capsys.readouterr().err
    assert verify(tmp_path / f"{'x' * 300}.json", "--step", QUICK) == 2
    assert "the report must be writable: [Errno 36] File name too long" in capsys.readouterr().err


def test_a_full_disk_ends_a_run_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    steps_end: Callable[..., None],
) -> None:
    def fill(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    steps_end()
    assert verify(tmp_path / "r.json", "--step", QUICK) == 0
    monkeypatch.setattr(os, "fsync", fill)
    capsys.readouterr()
    assert verify(tmp_path / "r.json", "--step", "outside") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the report must be writable: [Errno 28] No space left on device; name another file" in line
    assert Report.opened(tmp_path / "r.json").counts() == {"as expected": 1}


def test_nobody_reads_the_list(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "nkilib", "verify", "--list")
    with subprocess.Popen(command, env=with_checkout(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.wait(HANG_SECONDS), process.stderr.read()) == (141, b"")


def test_a_file_that_is_no_report_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.json").write_text("[]")
    assert verify(tmp_path / "r.json", "--step", QUICK, "--fresh") == 2
    assert "is no report of nkilib verify; name another file with --report" in capsys.readouterr().err
    assert (tmp_path / "r.json").read_text() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--timeout", "0"),
        ("--timeout", "x"),
        ("--only", "speed"),
        ("--target", "trn1"),
        ("--on", "moon"),
        ("--fresh", "--resume"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...]) -> None:
    assert ended(("verify", *arguments)) == 2


def test_help_has_exit_codes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(("verify", "--help")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit code: 0; 1 if a result is not as expected; 2 if the arguments are wrong or nothing can run." in shown
