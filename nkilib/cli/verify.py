# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib verify``: check that this Neuron device does what the library expects of it.

It runs every kernel on fixed inputs and compares it with float64 and the simulator, tests behaviour that the
documentation leaves open, and measures the times that the performance model assumes. Without a device it runs on the
simulator and says so. Begin with ``--quick``. A run that was interrupted goes on when the command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nkilib.base.installation import HOME, visible_devices
from nkilib.base.quiet_exit import INTERRUPTED

from .arguments import folded

if TYPE_CHECKING:
    from nkilib.verify.runner import Entry, LaunchPlace, Remaining, Report
    from nkilib.verify.step import Step

EXIT_CODES: Final = "Exit code: 0; 1 if a result is not as expected; 2 if the arguments are wrong or nothing can run."
_KINDS: Final = ("kernels", "probes", "times")
_TARGETS: Final = ("trn2", "trn3")
_VARIABLE: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
_REPORT: Final = "nkilib-verify.json"
_CANNOT: Final = 2
# The packages whose versions identify a run.
_PACKAGES: Final = (
    *("numpy", "ml_dtypes", "nki", "neuronx-cc", "nrtpy"),
    *("torch", "torch-neuronx", "torch-xla", "jax", "jax-neuronx", "libneuronxla"),
)
# The spaces before the lines below the status of a step.
_INDENT: Final = 13
# The columns of the line of the step that runs: a terminal of 80 does not fold it.
_LIVE: Final = 79
_MINUTE, _HOUR = 60.0, 3600.0


def _chosen_steps(options: argparse.Namespace) -> dict[str, list[Step]]:
    """Return the steps that the command line selects, by kind: kernels, probes and times.

    Raises:
        CannotRunError: the options select no step.
    """
    from nkilib.verify.registry import all_steps
    from nkilib.verify.runner import CannotRunError

    chosen = {
        kind: [step for step in steps if options.step is None or options.step in step.name]
        for kind, steps in all_steps(options.only, options.quick).items()
    }
    if not any(chosen.values()):
        raise CannotRunError(f"no step of {', '.join(options.only)} has {options.step!r} in its name; see --list")
    return chosen


def _list(steps: dict[str, list[Step]]) -> int:
    for kind, steps_of_kind in steps.items():
        print(f"{kind}: {len(steps_of_kind)}")
        for step in steps_of_kind:
            print(folded(f"{step.name}: {step.what}", "  ", 4))
    return 0


def _target(options: argparse.Namespace) -> str:
    return options.target or os.environ.get(_VARIABLE) or _TARGETS[0]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _sources() -> str:
    # The code of a checkout may change without a new version number.
    digest = hashlib.sha256()
    for path in sorted(Path(HOME).rglob("*.py")):
        digest.update(path.relative_to(HOME).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _header(options: argparse.Namespace, place: LaunchPlace) -> dict[str, Any]:
    from nkilib import __version__  # which a mixture with another nkilib may not have, and the doctor runs in one

    return {
        "place": place.name,
        "reason": place.reason,
        "nkilib": __version__,
        "sources": _sources(),
        "target": _target(options),
        "devices": visible_devices(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _opened(options: argparse.Namespace, place: LaunchPlace) -> tuple[Report, str]:
    """Return the report to write, and a note for the user.

    The report is that of an earlier run, which continues, or a new one. The note says why a new run starts although
    there is an old report; otherwise it is empty.

    Raises:
        ReportError: the file is not a report or cannot be written, or ``--resume`` is given and no earlier run can
            continue.
    """
    from nkilib.verify.runner import Report, ReportError

    header = _header(options, place)
    path: Path = options.report
    if not path.exists():
        if options.resume:
            raise ReportError(f"--resume needs the report of a run, but there is no {path}; run without --resume first")
        report = Report(path, header)
        report.save()
        return report, ""
    report = Report.opened(path)
    differences = "; ".join(report.differences(header))
    note = ""
    if options.resume and differences:
        raise ReportError(
            f"--resume needs a report with the same versions, but {path} is of another run: {differences}. Run without "
            "--resume, or name another file with --report"
        )
    if differences or options.fresh:
        why = f"{path} is of another run: {differences}." if differences else "--fresh is given."
        note = f"{why} This run starts anew; the old report is {report.put_aside()} now."
        report = Report(path, header)
    report.header = header
    if options.again:
        report.without_bad_ends()
    report.save()
    return report, note


def _duration(seconds: float) -> str:
    """Return a duration as text with one unit, such as "40 s", "12 min" or "2.5 h"."""
    if seconds < 1.5 * _MINUTE:
        return f"{max(round(seconds), 1)} s"
    if seconds < 1.5 * _HOUR:
        return f"{round(seconds / _MINUTE)} min"
    return f"{seconds / _HOUR:.1f} h"


def _counted(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"


def _rest(rest: Remaining) -> str:
    about = "" if rest.seconds is None else f", about {_duration(rest.seconds)}"
    return f"{rest.steps} left{about}"


class _Printer:
    """Prints the result of every step with the number of steps left, and on a terminal also the step that runs now.

    Args:
        quick_steps: the number of steps with ``--quick``, which the first result recommends; 0: no recommendation.
        is_first: whether no step has ended before; the first result then estimates the time of the other steps.
    """

    def __init__(self, quick_steps: int, is_first: bool) -> None:
        self._quick_steps = quick_steps
        self._is_first = is_first
        self._is_terminal = sys.stderr.isatty()

    def begin(self, name: str, rest: Remaining) -> None:
        self._show(f"{_rest(rest)}; now: {name} ...")

    def end(self, name: str, entry: Entry, rest: Remaining) -> None:
        """Print the result of a step on one line, and details of the step below it."""
        self.clear()
        text = f"{name} ({entry.seconds:.1f} s; {_rest(rest) if rest.steps else 'the last one'})"
        print(folded(text, f"{entry.status.value:<{_INDENT - 1}} "))
        lines = entry.text.splitlines()
        for line in lines if entry.status.is_difference else lines[:1]:
            print(folded(line, " " * _INDENT))
        if self._is_first and rest.seconds:
            print(folded(self._estimate(rest.steps, rest.seconds)))
        self._is_first = False
        sys.stdout.flush()

    def clear(self) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        if self._is_terminal:
            print(f"\r{text[:_LIVE]:{_LIVE}}\r", end="", file=sys.stderr, flush=True)

    def _estimate(self, steps: int, seconds: float) -> str:
        others = f"{_counted(steps)} {'is' if steps == 1 else 'are'} left"
        text = f"At the pace of this one, {others}: about {_duration(seconds)}."
        if self._quick_steps:
            quick = _duration(seconds / steps * self._quick_steps)
            text += f" --quick has {_counted(self._quick_steps)}: about {quick}."
        return text


def _same_command(options: argparse.Namespace) -> str:
    return "the same command without --fresh" if options.fresh else "the same command"


def _announce(options: argparse.Namespace, steps: dict[str, list[Step]], report: Report) -> _Printer:
    """Print the number of steps, how many of them are left after an earlier run, and the report's path; return the
    printer.
    """
    from nkilib.verify.runner import remaining

    every = [step for steps_of_kind in steps.values() for step in steps_of_kind]
    quick_steps = sum(step.is_quick for step in every)
    is_long = not options.quick and options.step is None and 0 < quick_steps < len(every)
    rest = remaining([step.name for step in every], report)
    print(folded(f"{_counted(len(every))} for {_target(options)}, at most {options.timeout:g} s each."))
    if rest.steps < len(every):
        done = _counted(len(every) - rest.steps)
        left = f"{_rest(rest)}." if rest.steps else "nothing is left to run; --fresh runs them again."
        print(folded(f"{done} ended in an earlier run with the same versions: {left}"))
    elif is_long:
        print(folded(f"Begin with --quick: it runs {quick_steps} of them, the most important ones."))
    goes_on = f"{_same_command(options)} goes on with it"
    print(folded(f"Report: {report.path}. Ctrl-C stops the run; {goes_on}."))
    if rest.steps and rest.seconds is None:
        print("The first step tells how long the others may take ...", flush=True)
    return _Printer(quick_steps if is_long else 0, rest.seconds is None)


@contextmanager
def _ending_as_by_ctrl_c() -> Iterator[None]:
    """Within the ``with`` block, let SIGTERM and SIGHUP interrupt this process as Ctrl-C does.

    The running step is then ended, and the device is released.
    """
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _run(options: argparse.Namespace, place: LaunchPlace, steps: dict[str, list[Step]], report: Report) -> int:
    from nkilib.verify.runner import Settings, run_steps

    names = [step.name for steps_of_kind in steps.values() for step in steps_of_kind]
    printer = _announce(options, steps, report)
    start = time.monotonic()
    try:
        with _ending_as_by_ctrl_c():
            run_steps(steps, Settings(place, _target(options), options.timeout), report, printer)
    except KeyboardInterrupt:
        printer.clear()
        done = sum(map(report.has, names))
        same = _same_command(options)
        print(f"interrupted after {done} of {_counted(len(names))}; {same} goes on", file=sys.stderr)
        return INTERRUPTED
    counts = ", ".join(f"{number} {status}" for status, number in report.counts(names).items())
    print(f"{counts}, in {_duration(time.monotonic() - start)}.")
    differing = [(name, report.entries[name]) for name in names if report.entries[name].status.is_difference]
    for name, entry in differing:
        print(folded(f"{entry.status.value}: {name}", indent=2))
    if differing:
        print(folded(f"Please send {report.path}: it has all that was printed, and more."))
    return int(bool(differing))


def _cannot(message: str) -> int:
    print(f"python -m nkilib verify: error: {message}", file=sys.stderr)
    return _CANNOT


def main(options: argparse.Namespace) -> int:
    """Run the chosen steps; return exit code 0, 1 if a result is not as expected, or 2 if nothing can run."""
    from nkilib.verify.runner import CannotRunError, ReportError, chosen_place, writing_alone

    with ExitStack() as stack:
        try:
            place = chosen_place(options.on)
            steps = _chosen_steps(options)
            if options.list:
                return _list(steps)
            stack.enter_context(writing_alone(options.report))
            report, note = _opened(options, place)
        except (CannotRunError, ReportError, ImportError, ValueError) as error:
            return _cannot(str(error))
        print(folded("\n".join(filter(None, (place.first_line, note)))))
        try:
            return _run(options, place, steps, report)
        except ReportError as error:  # of a full disk, for instance
            return _cannot(str(error))


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``python -m nkilib verify`` to the parser of this command."""
    kinds = f"kinds of steps: {', '.join(_KINDS)} (default: all)"
    command.add_argument("--only", choices=_KINDS, nargs="+", default=_KINDS, metavar="KIND", help=kinds)
    command.add_argument("--step", metavar="TEXT", help="only steps whose name contains this text")
    command.add_argument("--quick", action="store_true", help="a few steps of each kind: run these first")
    command.add_argument("--list", action="store_true", help="list the steps without running them")
    command.add_argument(
        "--report", type=Path, default=Path(_REPORT), metavar="FILE.json", help=f"report of the run (default {_REPORT})"
    )
    run = command.add_mutually_exclusive_group()
    run.add_argument("--fresh", action="store_true", help="start anew; the report of the earlier run gets another name")
    run.add_argument("--resume", action="store_true", help="go on with the run of the report, or fail")
    command.add_argument(
        "--again", action="store_true", help="rerun the steps of the report that failed, crashed or timed out"
    )
    command.add_argument(
        "--timeout", type=_seconds, default=900.0, metavar="SECONDS", help="time limit of a step (default 900)"
    )
    command.add_argument(
        "--on", choices=("auto", "device", "simulator"), default="auto", help="where to run (default auto)"
    )
    command.add_argument("--target", choices=_TARGETS, help=f"hardware generation (default: {_VARIABLE}, else trn2)")
    command.set_defaults(run=main)
