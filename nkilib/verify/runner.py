# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The runner of the steps of ``python -m nkilib verify``, and its report.

- :func:`run_steps` runs steps with :class:`Settings`. :func:`run_limited` runs a process of a step with a time limit.
- The steps are launched at a :class:`LaunchPlace`, a device or the simulator, which :func:`chosen_place` chooses.
- The :class:`Report` is a JSON file with an :class:`Entry` for each step. It is complete after every step, so that the
  next run can continue it (:meth:`Report.opened`), however the last run ended. Only one run at a time writes it
  (:func:`writing_alone`).
- A :class:`Watcher` gets a call for each step, with the number of steps and the time that remain (:class:`Remaining`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Protocol

from nkilib.base import lnc
from nkilib.base.installation import visible_devices
from nkilib.verify.step import ON_SIMULATOR, Stage, Status, Step, Verdict
from nkilib.verify.times.figures import ARTIFACTS
from nkilib.verify.worker import read_verdict

CHOICES: Final = ("auto", "device", "simulator")
TARGET: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
_BACKEND: Final = "NKILIB_BACKEND"
_CACHE: Final = "NKI_ENABLE_TRACE_CACHE"
_WORKER: Final = "nkilib.verify.worker"
_LOG: Final = "log"
_LOG_LINES: Final = 30
_PACKAGES: Final = Path(__file__).resolve().parents[2]
_SOURCES: Final = "sources"
# The keys of a report that must be equal to go on with its run; the rest may change.
_SAME: Final = ("place", "target", "nkilib", _SOURCES, "python", "packages", "devices")
# The starts of a step after which it is not started again, because the run has ended during each.
_STARTS: Final = 2
# Seconds that a process has to end after it was asked to, so that the runtime can release the device.
_GRACE: Final = 5.0


@dataclass(frozen=True)
class Ended:
    """How a process has ended.

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


def _end_all(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE)


def run_limited(command: Sequence[str], environment: Mapping[str, str], log: Path, seconds: float) -> Ended:
    """Run a command in a session of its own, append its output to a file, and return how it ended.

    When the command has ended, or after ``seconds``, all processes of the session get SIGTERM, and then SIGKILL. A
    process that a driver blocks may not end even then; it is left behind, and this function returns.
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


class CannotRunError(Exception):
    """Raised if nothing can be launched; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class LaunchPlace:
    """The place where the steps are launched.

    Attributes:
        is_device: True for a Neuron device, False for the simulator.
        reason: why this place was chosen, as a clause for people to read.
    """

    is_device: bool
    reason: str

    @property
    def name(self) -> str:
        """The name of the place in reports: ``"device"`` or ``"simulator"``."""
        return "device" if self.is_device else "simulator"

    @property
    def first_line(self) -> str:
        """The first line that a run prints: where the steps are launched, and why."""
        if self.is_device:
            return f"nkilib verify on a Neuron device: {self.reason}"
        return (
            f"nkilib verify ON THE SIMULATOR ({self.reason}): a self-check. It says nothing of hardware; times are "
            "modelled, not measured"
        )


def chosen_place(requested: str, visible: Sequence[str] | None = None) -> LaunchPlace:
    """Return the place to launch.

    Args:
        requested: one of ``CHOICES``.
        visible: the visible devices; None means the devices of this machine.

    Raises:
        CannotRunError: a device is requested or present, and kernels would not run on it.
    """
    device_files = visible_devices() if visible is None else visible
    try:
        backend = import_module("nkilib.nki").backend
    except (ImportError, ValueError) as error:
        if requested == "simulator":
            return LaunchPlace(False, "as asked for")
        raise CannotRunError(f"{error} python -m nkilib doctor says what is installed") from error
    here = ", ".join(device_files) or "no Neuron device is visible (/dev/neuron*)"
    if requested == "simulator":
        return LaunchPlace(False, "as asked for")
    if backend.name == "neuron":
        if device_files or requested == "device":
            return LaunchPlace(True, f"{here if device_files else 'as asked for, though ' + here}; {backend.reason}")
        return LaunchPlace(False, f"{here}, though {backend.reason}")
    if requested == "device" or (device_files and not backend.reason.startswith("NKILIB_BACKEND")):
        raise CannotRunError(
            f"kernels would not run on a device ({here}), because {backend.reason}. Install the Neuron SDK "
            "(docs/how_to/install.md), or ask for the simulator with --on simulator"
        )
    return LaunchPlace(False, f"{here}; {backend.reason}")


class ReportError(Exception):
    """Raised for a file that is no report, or the report of another run; the message gives a remedy."""


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"the report must be writable: {error}; name another file with --report") from error


@dataclass(frozen=True)
class Entry:
    """A step in the report.

    Attributes:
        kind, what: the kind of the step and its question.
        status, text, details: the attributes of its :class:`Verdict`.
        seconds: the time that the processes of the step took.
        log: the last lines of the output of these processes, if the step ended badly.
        starts: the number of times that the step was started: more than one if a run ended while it was running.
    """

    kind: str
    what: str
    status: Status
    text: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    log: str = ""
    starts: int = 1


def _differing(name: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differing(key, before.get(key), now.get(key))
    elif before != now:
        there, here = (", ".join(value) if isinstance(value, list) else value for value in (before, now))
        yield "nkilib has other code" if name == _SOURCES else f"{name} was {there or 'none'} and is {here or 'none'}"


@dataclass
class Report:
    """The report of a run.

    Attributes:
        path: the path of the file.
        header: facts about the environment of the run, such as versions.
        entries: the entries by name of the step, in the order in which the steps were run.
    """

    path: Path
    header: dict[str, Any]
    entries: dict[str, Entry] = field(default_factory=dict)

    def put(self, name: str, entry: Entry) -> None:
        """Enter a step in the report, over an earlier entry of the same name, and write the file."""
        self.entries[name] = entry
        self.save()

    def save(self) -> None:
        """Write the file atomically: it is complete even if this process or the machine stops.

        Raises:
            ReportError: the file cannot be written.
        """
        steps = {name: {**asdict(entry), "status": entry.status.value} for name, entry in self.entries.items()}
        text = json.dumps({**self.header, "summary": self.counts(), "steps": steps}, indent=1, allow_nan=False)
        beside = self.path.with_name(f"{self.path.name}.new")
        with _writing(), beside.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
            os.replace(beside, self.path)

    def drop(self, name: str) -> None:
        """Remove a step, so that the next run runs it again, and write the file."""
        del self.entries[name]
        self.save()

    def counts(self, names: Collection[str] | None = None) -> dict[str, int]:
        """Return the number of steps with each status, among all steps in the report or among those in ``names``."""
        statuses = [entry.status for name, entry in self.entries.items() if names is None or name in names]
        return {status.value: statuses.count(status) for status in Status if status in statuses}

    def has(self, name: str) -> bool:
        """Return whether the step ``name`` has ended, so that it need not run again."""
        return name in self.entries and self.entries[name].status is not Status.RUNNING

    def without_bad_ends(self) -> None:
        """Remove all steps that ended without information, such as by a crash, so that they run again."""
        self.entries = {name: entry for name, entry in self.entries.items() if not entry.status.has_ended_badly}

    def differences(self, header: Mapping[str, Any]) -> list[str]:
        """Return a clause for each fact, such as a version, that must be the same to continue a run, and in which the
        header of this report differs from ``header``.
        """
        return [clause for name in _SAME for clause in _differing(name, self.header.get(name), header.get(name))]

    @classmethod
    def opened(cls, path: Path) -> Report:
        """Return the report in a file, for a run that continues it.

        A step during which two runs have ended counts as crashed.

        Raises:
            ReportError: the file cannot be read, or is no report.
        """
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            entries = {
                name: Entry(**{**entry, "status": Status(entry["status"])}) for name, entry in read.pop("steps").items()
            }
            del read["summary"]
        except OSError as error:
            raise ReportError(f"the report must be readable: {error}; name another file with --report") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{path} is no report of nkilib verify; name another file with --report") from error
        for name, entry in entries.items():
            if entry.status is Status.RUNNING and entry.starts >= _STARTS:
                text = f"{entry.starts} runs ended while this step was running; --again starts it once more"
                entries[name] = replace(entry, status=Status.CRASHED, text=text)
        return cls(path, read, entries)

    def put_aside(self) -> Path:
        """Rename the file to an unused name, and return the new path.

        Raises:
            ReportError: the file cannot be renamed.
        """
        numbered = (self.path.with_name(f"{self.path.stem}.{number}{self.path.suffix}") for number in count(1))
        aside = next(path for path in numbered if not path.exists())
        with _writing():
            self.path.rename(aside)
        return aside


@contextmanager
def writing_alone(path: Path) -> Iterator[None]:
    """Return a context manager that keeps other runs from writing the same report, by a lock on a file beside it.

    The system releases the lock of a process that is killed.

    Raises:
        ReportError: another run writes the report now, or the folder cannot be written.
    """
    import fcntl  # which not every system has, while the rest of this module can be imported

    lock = path.with_name(f".{path.name}.lock")
    with _writing():
        file = lock.open("a")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ReportError(
                f"another run is writing {path}; wait until it has ended, or name another file with --report"
            ) from error
        except OSError:  # of a file system without locks
            pass
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    Attributes:
        place: the place where steps are launched.
        target: the generation of the device, by its name in NKI.
        timeout: the seconds that a step may take.
    """

    place: LaunchPlace
    target: str
    timeout: float

    def environment(self, step: Step, stage: Stage, directory: Path) -> dict[str, str]:
        """Return the environment variables of the process that runs a stage of a step.

        Variables of this process are kept, except those that choose cores, target and backend. If the stage launches,
        the variables of the step are added.
        """
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


def _stages(step: Step, settings: Settings, directory: Path, until: float) -> Iterator[tuple[Stage, Ended]]:
    for stage in step.stages_on_device if settings.place.is_device else ON_SIMULATOR:
        command = [sys.executable, "-m", _WORKER, stage.value, str(directory), step.name]
        environment = settings.environment(step, stage, directory)
        yield stage, run_limited(command, environment, directory / _LOG, until - time.monotonic())


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


def _tail_of(log: Path) -> str:
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:])


def _entry(kind: str, step: Step, settings: Settings) -> Entry:
    start = time.monotonic()
    with TemporaryDirectory(prefix="nkilib-verify-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        verdict = _verdict(step, settings, directory, start + settings.timeout)
        log = _tail_of(directory / _LOG) if verdict.status.has_ended_badly else ""
    return Entry(kind, step.what, verdict.status, verdict.text, verdict.details, time.monotonic() - start, log)


class Remaining(NamedTuple):
    """The rest of a run.

    Attributes:
        steps: the number of steps that have not ended.
        seconds: an estimate of the time that they take, from the average of the finished steps; None if none has
            finished.
    """

    steps: int
    seconds: float | None


def remaining(steps: Collection[str], report: Report) -> Remaining:
    """Return how many of these steps have not ended according to the report, and an estimate of their time."""
    # A step that reached its limit says nothing about the others.
    took = [
        entry.seconds
        for name, entry in report.entries.items()
        if report.has(name) and entry.status is not Status.TIMED_OUT
    ]
    left = sum(not report.has(name) for name in steps)
    return Remaining(left, left * sum(took) / len(took) if took else None)


class Watcher(Protocol):
    """A protocol: :func:`run_steps` calls its methods at each step, so that they can show the progress."""

    def begin(self, name: str, rest: Remaining) -> None:
        """Handle the begin of the step ``name``; ``rest`` includes this step."""

    def end(self, name: str, entry: Entry, rest: Remaining) -> None:
        """Handle the end of the step ``name`` with ``entry``; ``rest`` does not include this step."""


def run_steps(steps: Mapping[str, Sequence[Step]], settings: Settings, report: Report, watcher: Watcher) -> None:
    """Run the steps that have not ended according to the report, and enter each step in the report before it starts and
    after it has ended.

    Raises:
        KeyboardInterrupt: after Ctrl-C. The step that was running is then not in the report, so that it runs again.
    """
    pairs = [(kind, step) for kind, steps_of_kind in steps.items() for step in steps_of_kind]
    names = [step.name for _, step in pairs]
    for kind, step in sorted(pairs, key=lambda pair: pair[1].runs_last):
        name = step.name
        if report.has(name):
            continue
        starts = report.entries[name].starts + 1 if name in report.entries else 1
        report.put(name, Entry(kind, step.what, Status.RUNNING, starts=starts))
        watcher.begin(name, remaining(names, report))
        try:
            entry = _entry(kind, step, settings)
        except KeyboardInterrupt:
            report.drop(name)
            raise
        report.put(name, entry)
        watcher.end(name, entry, remaining(names, report))
