# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``python -m nkilib verify``: check that this Neuron device does what the library expects of it.

It runs every kernel on fixed inputs and compares it with float64 and the simulator, tests behaviour that the
documentation leaves open, and measures the times that the performance model assumes. Without a device it runs on the
simulator and says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nkilib.base.installation import visible_devices

if TYPE_CHECKING:
    from nkilib.verify.runner import Entry, LaunchPlace, Report
    from nkilib.verify.step import Step

EXIT_CODES: Final = "Exit code: 0; 1 if a result is not as expected; 2 if the arguments are wrong or nothing can run."
_KINDS: Final = ("kernels", "probes", "times")
_TARGETS: Final = ("trn2", "trn3")
_VARIABLE: Final = "NEURON_PLATFORM_TARGET_OVERRIDE"
_REPORT: Final = "nkilib-verify.json"
_CANNOT: Final = 2
_INTERRUPTED: Final = 130


def _chosen_steps(options: argparse.Namespace) -> dict[str, list[Step]]:
    """Return the chosen steps, by kind of step.

    Raises:
        CannotRunError: there is none.
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
            print(f"  {step.name}: {step.what}")
    return 0


def _target(options: argparse.Namespace) -> str:
    return options.target or os.environ.get(_VARIABLE) or _TARGETS[0]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _header(options: argparse.Namespace, place: LaunchPlace) -> dict[str, Any]:
    """Return the facts that identify a run: place, target, devices and versions."""
    from nkilib import __version__  # which a mixture with another nkilib may not have, and the doctor runs in one

    return {
        "place": place.name,
        "reason": place.reason,
        "nkilib": __version__,
        "target": _target(options),
        "devices": visible_devices(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in ("numpy", "ml_dtypes", "nki", "neuronx-cc", "nrtpy")},
    }


def _opened(options: argparse.Namespace, place: LaunchPlace) -> Report:
    """Return the report of a new run, or of a run that is resumed.

    Raises:
        ReportError: the file of a new report exists already, or there is no report to resume.
    """
    from nkilib.verify.runner import Report, ReportError

    header = _header(options, place)
    path: Path = options.report
    if options.resume:
        report = Report.resumed(path, header)
        if options.again:
            report.without_bad_ends()
        return report
    report = Report(path, header)
    try:
        if path.exists():
            raise ReportError(f"{path} exists already: --resume continues its run, --report names another file")
        report.save()
    except OSError as error:
        raise ReportError(f"cannot write the report: {error}") from error
    return report


def _show(name: str, entry: Entry) -> None:
    """Print the result of a step: one line, and its findings below."""
    print(f"{entry.status.value:<12} {name} ({entry.seconds:.1f} s)")
    lines = entry.text.splitlines()
    for line in lines if entry.status.is_difference else lines[:1]:
        print(f"{'':<12} {line}")
    sys.stdout.flush()


def _run(options: argparse.Namespace, place: LaunchPlace, steps: dict[str, list[Step]], report: Report) -> int:
    from nkilib.verify.runner import Settings, run_steps

    total = sum(map(len, steps.values()))
    counted = f"{total} steps" if total != 1 else "1 step"
    print(f"{counted} for {_target(options)}, at most {options.timeout:g} s each; report: {report.path}")
    try:
        run_steps(steps, Settings(place, _target(options), options.timeout), report, _show)
    except KeyboardInterrupt:
        print(f"interrupted; --resume --report {report.path} continues with the next step", file=sys.stderr)
        return _INTERRUPTED
    counts = ", ".join(f"{count} {status}" for status, count in report.counts().items())
    print(f"{counts}.")
    for name, entry in report.entries.items():
        if entry.status.is_difference:
            print(f"{entry.status.value}: {name}")
    return int(report.has_differences)


def _cannot(message: str) -> int:
    print(f"python -m nkilib verify: error: {message}", file=sys.stderr)
    return _CANNOT


def main(options: argparse.Namespace) -> int:
    """Run the steps; return 0, 1 if a result is not as expected, 2 if nothing can run."""
    if options.again and not options.resume:
        return _cannot("--again needs --resume, which continues a run")
    from nkilib.verify.runner import CannotRunError, ReportError, chosen_place

    try:
        place = chosen_place(options.on)
        steps = _chosen_steps(options)
        if options.list:
            return _list(steps)
        report = _opened(options, place)
    except (CannotRunError, ReportError, ImportError, ValueError) as error:
        return _cannot(str(error))
    print(place.first_line)
    return _run(options, place, steps, report)


def _seconds(text: str) -> float:
    """Parse a positive number of the command line."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text!r}")
    return seconds


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    command.add_argument("--only", choices=_KINDS, nargs="+", default=_KINDS, help="kinds of steps (default: all)")
    command.add_argument("--step", metavar="TEXT", help="only steps whose name contains this text")
    command.add_argument("--quick", action="store_true", help="a few steps of each kind")
    command.add_argument("--list", action="store_true", help="list the steps without running them")
    command.add_argument(
        "--report", type=Path, default=Path(_REPORT), metavar="FILE.json", help=f"report of the run (default {_REPORT})"
    )
    command.add_argument("--resume", action="store_true", help="continue the run of the report")
    command.add_argument(
        "--again", action="store_true", help="with --resume: also rerun the steps that failed, crashed or timed out"
    )
    command.add_argument(
        "--timeout", type=_seconds, default=900.0, metavar="SECONDS", help="time limit of a step (default 900)"
    )
    command.add_argument(
        "--on", choices=("auto", "device", "simulator"), default="auto", help="where to run (default auto)"
    )
    command.add_argument("--target", choices=_TARGETS, help=f"hardware generation (default: {_VARIABLE}, else trn2)")
    command.set_defaults(run=main)
