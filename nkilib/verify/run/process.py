# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A process that is ended after a time limit, with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Seconds that a process has to end after it was asked to, so that the runtime can release the device.
_GRACE: Final = 5.0


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes:
        code: the exit code of the process, negative for a signal; None if it reached the time limit.
        seconds: the time that the process took.
    """

    code: int | None
    seconds: float

    def __str__(self) -> str:
        if self.code is None:
            return f"stopped after {self.seconds:.0f} s"
        if self.code < 0:
            with suppress(ValueError):
                return f"ended by {signal.Signals(-self.code).name}"
        return f"ended with exit code {self.code}"


def run_limited(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> Ended:
    """Run a command in a session of its own; everything that it prints is appended to a file.

    After ``seconds`` it is asked to end, and soon after that it is killed. A process that does not end even then,
    because a driver blocks it, is left behind: this function returns in any case.
    """
    start = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=max(seconds, 0.0))
        finally:
            _end_all(process)
    return Ended(code, time.monotonic() - start)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """End the remaining processes of a session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE)
