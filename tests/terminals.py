# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run Python with a terminal, or a pipe that nobody reads, at its other end."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.fresh_python import with_checkout
from tests.hangs import HANG_SECONDS

_READ = 4096


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: its exit code.
        output: the text on standard output, a pipe.
        shown: the text on the error stream.
    """

    code: int
    output: str
    shown: str


def run_on_terminal(*arguments: str, directory: Path) -> Ended:
    """Python, whose error stream is a terminal."""
    ours, theirs = pty.openpty()
    try:
        with _python(*arguments, directory=directory, errors=theirs) as process:
            os.close(theirs)
            shown = bytearray()
            while piece := _read(ours):
                shown += piece
            output, _ = process.communicate(timeout=HANG_SECONDS)
    finally:
        os.close(ours)
    return Ended(process.returncode, output, shown.decode())


def run_interrupted(*arguments: str, directory: Path) -> Ended:
    """Python, with a Ctrl-C after the first line of its output."""
    with _python(*arguments, directory=directory) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        try:
            rest, shown = process.communicate(timeout=HANG_SECONDS)
        finally:
            process.kill()  # one that goes on would be waited for
    return Ended(process.returncode, first + rest, shown)


def run_unread(*arguments: str, directory: Path) -> Ended:
    """Python, whose output nobody reads."""
    ours, theirs = os.pipe()
    os.close(ours)
    with _python(*arguments, directory=directory, output=theirs) as process:
        os.close(theirs)
        _, shown = process.communicate(timeout=HANG_SECONDS)
    return Ended(process.returncode, "", shown)


def _python(
    *arguments: str, directory: Path, output: int = subprocess.PIPE, errors: int = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=directory,
        env=with_checkout("PYTHONUNBUFFERED", NKILIB_BACKEND="auto"),
        stdout=output,
        stderr=errors,
        text=True,
        # A shell starts what it runs in the background with Ctrl-C ignored, and so would be what the tests start.
        preexec_fn=_listen_to_ctrl_c,
    )


def _listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _read(terminal: int) -> bytes:
    """Return the next output, empty at the end, which a terminal reports as an error."""
    try:
        return os.read(terminal, _READ)
    except OSError:
        return b""
