# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Runner of the steps, one after the other, each in processes of its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from nkilib.base import lnc
from nkilib.verify.run.place import Place
from nkilib.verify.run.process import Ended, run_limited
from nkilib.verify.run.report import Entry, Report
from nkilib.verify.run.worker import read_verdict
from nkilib.verify.step import ON_SIMULATOR, Stage, Step
from nkilib.verify.times.figure import ARTIFACTS
from nkilib.verify.verdict import Status, Verdict

TARGET: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
_BACKEND: Final = "NKILIB_BACKEND"
_CACHE: Final = "NKI_ENABLE_TRACE_CACHE"
_WORKER: Final = "nkilib.verify.run.worker"
_LOG: Final = "log"
_LOG_LINES: Final = 30
_PACKAGES: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        place: the place where steps are launched.
        target: the generation of the device, by its name in NKI.
        timeout: the seconds that a step may take.
    """

    place: Place
    target: str
    timeout: float

    def environment(self, step: Step, stage: Stage, directory: Path) -> dict[str, str]:
        """Return the variables of a process: those of this process, and those that its stage needs."""
        own = {
            lnc.VARIABLE: str(step.cores),
            TARGET: self.target,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH", "")))),
            _BACKEND: "simulator",
        }
        if stage is Stage.LAUNCH:
            artifacts = directory / "artifacts"
            artifacts.mkdir()
            own |= {_BACKEND: "neuron", ARTIFACTS: str(artifacts), _CACHE: "0"}
        if stage in (Stage.LAUNCH, Stage.SELF_CHECK):
            own |= step.variables
        return {**os.environ, **own}


def run_steps(
    steps: Mapping[str, Sequence[Step]], settings: Settings, report: Report, show: Callable[[str, Entry], None]
) -> None:
    """Run the steps that are not in the report yet; each step is put into the report before it starts and after it has
    ended.
    """
    pairs = [(kind, step) for kind, steps_of_kind in steps.items() for step in steps_of_kind]
    for kind, step in sorted(pairs, key=lambda pair: pair[1].runs_last):
        if step.name in report.entries:
            continue
        report.put(step.name, Entry(kind, step.what, Status.RUNNING))
        entry = _entry(kind, step, settings)
        report.put(step.name, entry)
        show(step.name, entry)


def _entry(kind: str, step: Step, settings: Settings) -> Entry:
    """Run one step."""
    start = time.monotonic()
    with TemporaryDirectory(prefix="nkilib-verify-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        verdict = _verdict(step, settings, directory, start + settings.timeout)
        log = _tail_of(directory / _LOG) if verdict.status.has_ended_badly else ""
    return Entry(kind, step.what, verdict.status, verdict.text, verdict.details, time.monotonic() - start, log)


def _verdict(step: Step, settings: Settings, directory: Path, until: float) -> Verdict:
    for stage, ended in _stages(step, settings, directory, until):
        if ended.code is None:
            return Verdict(Status.TIMED_OUT, f"{stage.value}: {ended}; --timeout gives more")
        if ended.code != 0:
            return Verdict(Status.CRASHED, f"{stage.value}: {ended}")
    try:
        return read_verdict(directory)
    except OSError as error:
        return Verdict(Status.CRASHED, f"no verdict: {error}")


def _stages(step: Step, settings: Settings, directory: Path, until: float) -> Iterator[tuple[Stage, Ended]]:
    for stage in step.stages_on_device if settings.place.is_device else ON_SIMULATOR:
        command = [sys.executable, "-m", _WORKER, stage.value, str(directory), step.name]
        environment = settings.environment(step, stage, directory)
        yield stage, run_limited(command, environment, directory / _LOG, until - time.monotonic())


def _tail_of(log: Path) -> str:
    """Return the last lines that the processes printed."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])
