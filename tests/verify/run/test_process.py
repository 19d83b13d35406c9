# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A process with a limit: nothing that it started is left, and its end is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from nkilib.verify.run import process
from nkilib.verify.run.process import run_limited


def run(tmp_path: Path, source: str, seconds: float = 30.0) -> process.Ended:
    return run_limited([sys.executable, "-c", source], os.environ, tmp_path / "log", seconds)


def test_what_it_prints_is_kept(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.code, str(ended)) == (3, "ended with exit code 3")
    assert run(tmp_path, "print('more')").code == 0
    assert (tmp_path / "log").read_text().split() == ["out", "err", "more"]


def test_a_signal_has_a_name(tmp_path: Path) -> None:
    assert str(run(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")) == "ended by SIGSEGV"


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ignores the request to end, and so does its child."""
    monkeypatch.setattr(process, "_GRACE", 0.1)
    source = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    start = time.monotonic()
    ended = run(tmp_path, source, seconds=1.5)
    assert ended.code is None and str(ended).startswith("stopped after ")
    assert time.monotonic() - start < 20
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _is_alive(child):
            return
        time.sleep(0.05)
    raise AssertionError("the child is still there")


def _is_alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
