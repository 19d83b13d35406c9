# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A process that is ended when its time is over, with everything that it has started."""

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

# Seconds to end by itself once asked to, so that the runtime can give the device back.
_GRACE: Final = 5.0


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code, negative for a signal; None if its time was over.
        seconds: that it took.
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
    """Run a command in a session of its own; all that it prints goes to the end of a file.

    It is asked to end after ``seconds``, and killed soon after that. One that even then does not end, because a driver
    holds it, is left behind: this returns in any case.
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
    """End what is left of a session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE)
