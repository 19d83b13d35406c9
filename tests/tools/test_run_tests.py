# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A run says at its end what failed and how to repeat it, or what it left out; what it has started ends with it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.hangs import HANG_SECONDS
from tools import run_tests
from tools.run_tests import Check, Children, Ended, expected_seconds, failures_of, last_lines, run_check

NOTHING: dict[str, Any] = {"passed": 0, "slow": 0, "failed": []}


def check(code: str) -> Check:
    return Check("a linter", (sys.executable, "-c", code))


def ended(status: int) -> Ended:
    return Ended(Check("mypy", ("python", "-m", "mypy", "a file")), status, "wrong line 3\n", 1.0)


@pytest.mark.parametrize(
    ("tier", "rest"),
    [
        ("fast", "make test-slow runs the other 1,234 tests and the share of Any"),
        ("slow", "make test runs the other tests and the linters"),
        ("all", "sweeps are left: python -m pytest -m sweep"),
    ],
)
def test_a_run_that_passed_says_what_it_left_out(tier: str, rest: str) -> None:
    outcomes = {"passed": 20_000, "slow": 1_234, "failed": []}
    line = last_lines(tier, outcomes, [ended(0)], 0, 125.0)
    assert line == f"passed: 20,000 tests and 1 checks in 2:05 minutes; {rest}"


def test_no_slow_tests_are_no_failure_and_no_fast_ones_are() -> None:
    assert last_lines("slow", NOTHING, [], 5, 1.0).startswith("passed: 0 tests")
    assert last_lines("fast", NOTHING, [], 5, 1.0).startswith("failed after 0:01 minutes: pytest with status 5")


def test_tests_that_failed_are_named_with_the_command_that_repeats_one() -> None:
    outcomes = {"passed": 1, "slow": 0, "failed": ["tests/t.py::test[a b]", "tests/t.py::test_other"]}
    assert last_lines("fast", outcomes, [ended(1)], 1, 60.0).splitlines() == [
        "failed after 1:00 minutes: 2 tests, mypy",
        "  tests/t.py::test[a b]",
        "  tests/t.py::test_other",
        f"to repeat one of them: {run_tests._shown(sys.executable)} -m pytest 'tests/t.py::test[a b]'",
    ]


@pytest.mark.parametrize(("status", "more"), [(0, ""), (None, ", and the tests did not run")])
def test_a_check_that_failed_is_named_with_its_command(status: int | None, more: str) -> None:
    assert last_lines("fast", NOTHING, [ended(1)], status, 9.0).splitlines() == [
        f"failed after 0:09 minutes: mypy{more}",
        "to repeat it: python -m mypy 'a file'",
    ]


def test_what_a_check_says_is_kept_whole_and_shown_if_it_fails() -> None:
    children = Children()
    code = "import sys; print('out'); print('err', file=sys.stderr, flush=True); sys.exit({})"
    good, bad = (run_check(check(code.format(status)), children) for status in (0, 3))
    assert (good.status, bad.status) == (0, 3)
    (text,) = failures_of([good, bad])
    assert text.startswith("\n---- a linter failed (") and "out" in text and "err" in text


def test_a_linter_that_fails_at_once_spares_the_tests(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_tests, "first_checks", lambda: [check("print('wrong'); raise SystemExit(1)")])
    monkeypatch.setattr(run_tests, "_pytest", lambda *_: pytest.fail("the tests must not run"))
    assert run_tests.run("fast", "core", [], Children()) == 1
    printed = capfd.readouterr().out
    assert printed.startswith("make test: a linter, mypy") and "About " in printed
    assert "wrong" in printed and "a linter, and the tests did not run" in printed


def test_tests_run_beside_the_linters(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Each waits for the other, which no order of one after the other would end."""
    meet = "import pathlib, sys, time\nhere, there = map(pathlib.Path, sys.argv[1:])\nhere.touch()\n"
    meet += "while not there.exists():\n    time.sleep(0.01)\n"

    def waiting(folder: Any, here: str, there: str) -> tuple[str, ...]:
        return (sys.executable, "-c", meet, str(folder / here), str(folder / there))

    def fake_pytest(tier: str, outcomes: Any, more: Any) -> tuple[str, ...]:
        outcomes.write_text('{"passed": 3, "slow": 7, "failed": []}')
        folders.append(outcomes.parent)
        return waiting(outcomes.parent, "a", "b")

    folders: list[Any] = []
    monkeypatch.setattr(run_tests, "first_checks", list)
    run_of = run_tests.run_check

    def run_check_there(item: Check, children: Children) -> Ended:
        while not folders:
            time.sleep(0.01)
        return run_of(Check("beside", waiting(folders[0], "b", "a")), children)

    monkeypatch.setattr(run_tests, "run_check", run_check_there)
    monkeypatch.setattr(run_tests, "checks_of", lambda *_: [check("")])
    monkeypatch.setattr(run_tests, "_pytest", fake_pytest)
    assert run_tests.run("fast", "all", [], Children()) == 0
    last = capfd.readouterr().out.splitlines()[-1]
    assert last.startswith("passed: 3 tests and 1 checks in") and "make test-slow runs the other 7 tests" in last


def test_what_runs_is_ended_and_nothing_starts_afterwards() -> None:
    """Also what a program has started, and one that takes no interrupt."""
    children = Children()
    stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stubborn!r} + '; time.sleep(60)'])"
    statuses: list[int] = []
    read = subprocess.PIPE
    thread = threading.Thread(target=lambda: statuses.append(children.run([sys.executable, "-c", code], read)))
    thread.start()
    while not children._running:
        time.sleep(0.01)
    (process,) = children._running
    assert process.stdout.readline() == b"ready\n"
    children.end(patience=0.2)
    thread.join(HANG_SECONDS)
    assert statuses and statuses[0] != 0
    assert process.stdout.read().endswith(b"") and children.run([sys.executable, "-c", ""]) == 130


def test_a_slower_machine_is_told_a_longer_time() -> None:
    assert expected_seconds("fast") >= run_tests._SECONDS["fast"]
