# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Run a tier of the tests beside the linters: what ``make test``, ``make test-slow`` and ``make test-all`` do.

pytest writes to the terminal as it runs. The linters run beside it, one after the other; what one of them says is shown
at the end if it fails. The last lines say which tests failed and how to repeat one, or what was not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PYTHON = sys.executable
_REPORT = ".mypy_cache/any_exprs"
_PROCESSES = 2
# Seconds of a whole run on two cores, warm, of a machine that adds 10 million times in `_ADDITIONS` seconds.
_SECONDS = {"fast": 230.0, "slow": 900.0, "all": 1100.0}
_ADDITIONS = 0.6
_TIERS = {"fast": "the fast tier of the tests", "slow": "the slow tier of the tests", "all": "all tests but sweeps"}
_MARKS = {"fast": "not sweep and not slow", "slow": "slow and not sweep", "all": "not sweep"}
_TARGETS = {"fast": "make test", "slow": "make test-slow", "all": "make test-all"}
# What mypy can know of without PyTorch, and without JAX.
_OF_PACKAGES = {"all": [], "torch": ["nkilib"], "core": ["nkilib", "--exclude", "^nkilib/torch/"]}
_NO_TESTS = 5  # the status of pytest


@dataclass(frozen=True)
class Check:
    """A linter, or another program that fails where something is wrong."""

    name: str
    command: tuple[str, ...]


@dataclass
class Ended:
    """How a check ended: its status, what it said, and how long it took."""

    check: Check
    status: int
    output: str
    seconds: float


def first_checks() -> list[Check]:
    """Checks of a second, which run before everything else."""
    return [
        Check("ruff check", (_PYTHON, "-m", "ruff", "check", ".")),
        Check("ruff format", (_PYTHON, "-m", "ruff", "format", "--check", ".")),
    ]


def checks_of(tier: str, packages: str) -> list[Check]:
    """The other checks of a tier, where ``packages`` are installed: "core", "torch" or "all"."""
    mypy = (_PYTHON, "-m", "mypy", *_OF_PACKAGES[packages])
    share = [
        # With a report mypy uses no cache: the slow tier has it.
        Check("mypy", (*mypy, "--any-exprs-report", _REPORT)),
        Check("share of Any", (_PYTHON, "-m", "tools.any_share", _REPORT)),
    ]
    if tier == "slow":
        return share
    # What takes seconds comes first.
    checks = [Check("prose", (_PYTHON, "-m", "tools.check_prose"))] if packages == "all" else []
    checks += share if tier == "all" else [Check("mypy", mypy)]
    has_newer = sys.version_info >= (3, 11)  # what import-linter and sphinx need
    if has_newer:
        checks.append(Check("import contracts", (str(Path(_PYTHON).parent / "lint-imports"), "--no-cache")))
        if packages == "all":
            # Warnings are errors: links and anchors that lead nowhere, pages that no group lists, and so on.
            site = ("--fail-on-warning", "--keep-going", "--quiet", "docs", "build/docs")
            checks.append(Check("documentation site", (_PYTHON, "-m", "sphinx", *site)))
    return checks


@dataclass
class Children:
    """The programs that run, each in a group of its own, so that all it has started ends with it."""

    _running: set[Any] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False

    def run(self, command: Sequence[str], output: Any = None) -> int:
        """Run a program to its end; 130 if everything has been ended."""
        with self._lock:
            if self.is_over:
                return 130
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            self._running.add(process)
        status = process.wait()  # what an interrupt leaves running is ended by `end`
        with self._lock:
            self._running.discard(process)
        return status

    def end(self, patience: float = 10.0) -> None:
        """Interrupt all programs, and kill what does not end."""
        with self._lock:
            self.is_over = True
            running = list(self._running)
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # pytest ends its own
        limit = time.monotonic() + patience
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, limit - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)


def run_check(check: Check, children: Children) -> Ended:
    """Run a check and keep what it says."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        status = children.run(check.command, output)
        output.seek(0)
        return Ended(check, status, output.read().decode(errors="replace"), time.monotonic() - start)


def failures_of(ended: Sequence[Ended]) -> Iterator[str]:
    """Yield the whole output of each check that failed."""
    for done in ended:
        if done.status:
            yield f"\n---- {done.check.name} failed ({shlex.join(done.check.command)}):\n{done.output.rstrip()}"


def last_lines(tier: str, outcomes: dict[str, Any], ended: Sequence[Ended], status: int | None, seconds: float) -> str:
    """Say how the run ended: what failed and how to repeat it, or what was not run.

    Args:
        tier: the tier.
        outcomes: the figures that pytest wrote.
        ended: the checks that ran.
        status: the status of pytest; None if it did not run.
        seconds: how long everything took.
    """
    failed, checks = outcomes["failed"], [done.check.name for done in ended if done.status]
    took = f"{int(seconds) // 60}:{int(seconds) % 60:02d} minutes"
    if _is_good(tier, status) and not checks:
        rest = {
            "fast": f"make test-slow runs the other {outcomes['slow']:,} tests and the share of Any",
            "slow": "make test runs the other tests and the linters",
            "all": "sweeps are left: python -m pytest -m sweep",
        }[tier]
        return f"passed: {outcomes['passed']:,} tests and {len(ended)} checks in {took}; {rest}"
    if status is None:
        checks.append("and the tests did not run")
    elif not _is_good(tier, status):
        checks.insert(
            0, f"{len(failed)} test{'s' * (len(failed) > 1)}" if failed else f"pytest with status {status} (see above)"
        )
    lines = [f"failed after {took}: {', '.join(checks)}", *(f"  {test}" for test in failed)]
    again = [_PYTHON, "-m", "pytest", *failed[:1]]
    if not failed and _is_good(tier, status or 0):
        again = list(next(done.check.command for done in ended if done.status))
    lines.append(
        f"to repeat {'one of them' if len(failed) > 1 else 'it'}: {shlex.join([_shown(again[0]), *again[1:]])}"
    )
    return "\n".join(lines)


def _is_good(tier: str, status: int | None) -> bool:
    return status == 0 or (tier == "slow" and status == _NO_TESTS)


def _shown(program: str) -> str:
    """A path from here, where that is shorter."""
    with contextlib.suppress(ValueError):
        return str(Path(program).relative_to(Path.cwd()))
    return program


def expected_seconds(tier: str) -> float:
    """About how long a run takes here."""
    start, total = time.perf_counter(), 0
    while total < 1_000_000:
        total += 1
    speed = 10 * (time.perf_counter() - start) / _ADDITIONS
    return _SECONDS[tier] * max(1.0, speed) * (_PROCESSES / min(_PROCESSES, os.cpu_count() or 1))


def _pytest(tier: str, outcomes: Path, more: Sequence[str]) -> list[str]:
    command = [_PYTHON, "-m", "pytest", "-n", str(_PROCESSES), "--dist", "loadfile", "-m", _MARKS[tier]]
    return [*command, "--outcomes", str(outcomes), *more]


def run(tier: str, packages: str, more: Sequence[str], children: Children) -> int:
    """Run a tier with its checks; return the status."""
    start = time.monotonic()
    later = checks_of(tier, packages)
    first = [] if tier == "slow" else first_checks()
    names = ", ".join(check.name for check in [*first, *later])
    print(f"{_TARGETS[tier]}: {names}; beside them {_TIERS[tier]} in {_PROCESSES} processes.", flush=True)
    print(f"About {max(1, round(expected_seconds(tier) / 60))} minutes here, longer the first time.\n", flush=True)
    ended = [run_check(check, children) for check in first]
    status = None
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder) / "outcomes.json"
        if not any(done.status for done in ended):
            thread = threading.Thread(target=lambda: ended.extend(run_check(check, children) for check in later))
            thread.start()
            try:
                status = children.run(_pytest(tier, outcomes, more))
                thread.join()
            except KeyboardInterrupt:
                children.end()
                raise
        known = (
            json.loads(outcomes.read_text("utf-8")) if outcomes.is_file() else {"passed": 0, "slow": 0, "failed": []}
        )
    for text in failures_of(ended):
        print(text)
    print(f"\n{last_lines(tier, known, ended, status, time.monotonic() - start)}", flush=True)
    return int(not _is_good(tier, status) or any(done.status for done in ended))


def lint(packages: str, children: Children) -> int:
    """Run the checks of ``make test`` alone, and end with the first that fails."""
    for check in [*first_checks(), *checks_of("fast", packages)]:
        print(f"{check.name} ...", flush=True)
        status = children.run(check.command)
        if status:
            return status
    return 0


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str]) -> int:
    """Run what the arguments ask for; Ctrl-C and a signal to end the run end all that it has started."""
    options, more = _parser().parse_known_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    children = Children()
    try:
        if options.tier == "lint":
            return lint(options.packages, children)
        return run(options.tier, options.packages, more, children)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    finally:
        children.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.run_tests", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("tier", choices=[*_TIERS, "lint"], help="which tests; lint: none")
    parser.add_argument("--packages", choices=_OF_PACKAGES, default="all", help="which packages are installed")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
