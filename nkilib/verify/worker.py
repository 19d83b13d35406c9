# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The main program of the processes of a step: ``python -m nkilib.verify.worker STAGE DIRECTORY STEP``.

:func:`read_verdict` reads the verdict that the last process of a step has written.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from nkilib.verify.registry import step_named
from nkilib.verify.step import Observation, Stage, Status, Verdict

_VERDICT: Final = "verdict.json"
# Of linux/prctl.h: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG: Final = 1


def _save(verdict: Verdict, directory: Path) -> None:
    text = json.dumps({**asdict(verdict), "status": verdict.status.value}, allow_nan=False)
    (directory / _VERDICT).write_text(text, encoding="utf-8")


def main(stage: str, directory: str, name: str) -> None:
    """Run one stage of the step ``name``, and write its results to the directory for the next stage."""
    step, home = step_named(name), Path(directory)
    if stage == Stage.SELF_CHECK:
        _save(step.judge(step.observe(is_device=False), is_device=False), home)
    elif stage == Stage.LAUNCH:
        step.observe(is_device=True).save(home)
    elif stage == Stage.MEASURE:
        step.measure(Observation.load(home), home).save(home)
    else:
        _save(step.judge(Observation.load(home), is_device=True), home)


def read_verdict(directory: Path) -> Verdict:
    """Return the verdict that the last stage of a step wrote to ``directory``.

    Raises:
        OSError: the last stage wrote nothing.
    """
    read = json.loads((directory / _VERDICT).read_text(encoding="utf-8"))
    return Verdict(Status(read["status"]), read["text"], read["details"])


def end_with_parent() -> None:
    """Let Linux end this process when its parent is killed. A process that stays would keep the device from the next
    run.
    """
    with suppress(OSError, AttributeError):  # of another system
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent()
    main(*sys.argv[1:])
