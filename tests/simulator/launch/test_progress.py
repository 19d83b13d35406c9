# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The line that says how far a simulation is: on a terminal, of what takes long, and gone at the end."""

from __future__ import annotations

import io
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nkilib.nki import nisa, nki, nl
from nkilib.simulator import profile, spec
from nkilib.simulator.launch import progress
from nkilib.simulator.launch.progress import displaying, doing, launching
from tests.hangs import HANG_SECONDS
from tests.terminals import run_on_terminal

SCRIPT = """
import sys
import time
import nki
import nki.isa as nisa
import nki.language as nl
import numpy


@nki.jit
def slow(x):
    for _ in range(3):
        nisa.memset(nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf), 0.0)
    time.sleep(2.8)
    return x


slow(numpy.zeros((1, 8), numpy.float32))
print("after", file=sys.stderr)
"""


class Terminal(io.StringIO):
    """A stream that counts as a terminal, where a rewritten line hides the previous one."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.getvalue().split("\r") if line]

    def shows(self, wanted: str) -> bool:
        """Whether a line with that comes within ten seconds; what has been shown counts too."""
        end = time.monotonic() + 10
        while not any(wanted in line for line in self.lines):
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Install a terminal at which everything takes long."""
    result = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=result))
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setattr(progress, "_PERIOD_S", 0.001)
    return result


@nki.jit
def two_instructions(x, meanwhile):
    tile = nl.ndarray((1, 8), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(tile, 0.0)
    nisa.memset(tile, 1.0)
    meanwhile()
    return x


def test_a_terminal_shows_how_far_a_slow_script_is(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = run_on_terminal("-m", "nkilib.simulator", "script.py", directory=tmp_path)
    assert ended.code == 0
    shown = [line.rstrip() for line in ended.shown.split("\r") if line.strip()]
    # Two seconds without an end are when a line is shown; a busy machine may take longer to show it.
    first = re.fullmatch(r"(\d+) s: slow, 3 instructions", shown[0])
    assert first and int(first[1]) >= 2 and shown[-1] == "after"
    assert re.search(r"\r +\rafter", ended.shown), "the line is wiped before something else is written"


def test_what_is_fast_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE_S", 2.0)
    profile(two_instructions, spec((1, 8), nl.float32), lambda: time.sleep(0.02))
    assert terminal.lines == []


def test_a_profile_says_what_it_does(terminal: Terminal) -> None:
    profile(two_instructions, spec((1, 8), nl.float32), lambda: terminal.shows("2 instructions"))
    assert "0 s: profile: two_instructions, 2 instructions" in terminal.lines
    assert terminal.lines[-1] == ""


@pytest.mark.parametrize("stream", [io.StringIO(), None, SimpleNamespace()])
def test_where_nobody_looks_there_is_no_thread(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(progress, "_Display", None)
    before = threading.active_count()
    with displaying(), doing("something"):
        assert threading.active_count() == before
    assert not isinstance(stream, io.StringIO) or stream.getvalue() == ""


def test_outside_of_a_display_nothing_is_shown(terminal: Terminal) -> None:
    with doing("something"):
        time.sleep(0.02)
    two_instructions(np.zeros((1, 8), np.float32), lambda: time.sleep(0.02))
    assert terminal.lines == []


def test_tasks_in_tasks(terminal: Terminal) -> None:
    with displaying(), doing("search"), displaying(), doing("one", lambda: "7 of 9"):
        assert terminal.shows("0 s: search: one, 7 of 9")
    assert terminal.lines[-1] == ""


def test_instructions_are_those_of_all_cores(terminal: Terminal) -> None:
    cores = [SimpleNamespace(issued=1234), SimpleNamespace(issued=1)]
    with displaying(), launching("kernel", cores):  # type: ignore[arg-type]
        assert terminal.shows("0 s: kernel, 1,235 instructions")
    assert terminal.lines[-1] == ""


def test_a_task_that_fails_is_wiped_too(terminal: Terminal) -> None:
    with pytest.raises(ValueError, match="a reason"), displaying(), doing("first"):
        assert terminal.shows("first")
        raise ValueError("a reason")
    assert terminal.lines[-1] == ""


def test_a_shorter_line_covers_a_longer_one_and_none_is_wider_than_the_terminal(terminal: Terminal) -> None:
    with displaying(), doing("a"):
        with doing("b" * 200):
            assert terminal.shows("b" * 60)
        time.sleep(0.02)
    lengths = [len(line) for line in terminal.getvalue().split("\r") if line]
    assert set(lengths) <= {6, 79}
    assert terminal.lines[-1] == ""


@pytest.mark.parametrize("failure", [OSError, ValueError])
def test_a_terminal_that_is_gone_stops_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, failure: Callable[[], Exception]
) -> None:
    tried = threading.Event()

    def write(_: str) -> int:
        tried.set()
        raise failure()

    monkeypatch.setattr(terminal, "write", write)
    with displaying(), doing("something"):
        assert tried.wait(HANG_SECONDS), "the display writes"
        result = two_instructions(np.ones((1, 8), np.float32), lambda: None)
    assert terminal.lines == [] and result.all()
    assert "progress" not in {thread.name for thread in threading.enumerate()}
