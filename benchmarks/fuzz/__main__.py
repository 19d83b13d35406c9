# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of random calls against float64: ``python -m benchmarks.fuzz``.

Calls are drawn until the time is over; each failure is a line, and a table follows at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fuzz.draw import LIMITS, MIDDLE
from benchmarks.fuzz.one_call import Line, run_call
from benchmarks.fuzz.registry import FUZZED
from benchmarks.fuzz.workers import Plan, lines_of, one_rank, written
from nkilib.nki import NOT_SIMULATED, SIMULATED


@dataclass
class Row:
    """A row of the table at the end: the counts and extremes of a function.

    Attributes:
        calls, failures, refusals, blunt: numbers of calls.
        worst: the largest share of a bound.
        slowest: seconds of the slowest call.
    """

    calls: int = 0
    failures: int = 0
    refusals: int = 0
    blunt: int = 0
    worst: float = 0.0
    slowest: float = 0.0

    def add(self, line: Line) -> None:
        """One more call."""
        self.calls += 1
        self.failures += bool(line.failures)
        self.refusals += bool(line.refusal)
        self.blunt += bool(line.blunt)
        self.worst = max([self.worst, *line.shares.values()])
        self.slowest = max(self.slowest, line.seconds)


def rows_of(lines: Iterable[Line]) -> dict[str, Row]:
    """Return the rows by function."""
    rows: dict[str, Row] = {}
    for line in lines:
        rows.setdefault(line.function, Row()).add(line)
    return rows


def table(rows: dict[str, Row]) -> str:
    """Return the table as text; shares are the largest error over the accepted error, and more than 100% is wrong."""
    header = f"{'function':<36} {'calls':>6} {'failed':>6} {'refused':>7} {'blunt':>6} {'worst':>8} {'slowest':>8}"
    body = [
        f"{name:<36} {row.calls:>6} {row.failures:>6} {row.refusals:>7} {row.blunt:>6} {row.worst:>8.1%} "
        f"{row.slowest:>7.1f}s"
        for name, row in sorted(rows.items())
    ]
    calls, failures = (sum(getattr(row, name) for row in rows.values()) for name in ("calls", "failures"))
    return "\n".join([header, *body, f"{calls} calls, {failures} failed"])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz",
        description="Draw calls of all functions of nkilib.torch, in default tilings at middle sizes, run them on the "
        "simulator, and compare every result and gradient with float64 within derived bounds.",
        epilog="The exit code is 1 if a call failed. A call depends on the seed and its number alone.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no further call begins (default 60)")
    parser.add_argument("--seed", type=int, help="of all calls (default: a new one, which is printed)")
    parser.add_argument("--workers", type=int, help="processes of one thread each (default: as many as cores)")
    parser.add_argument("--call", type=int, help="run the call of this number alone, and print all of it")
    parser.add_argument("--first", type=int, default=0, help="number of the first call (default 0)")
    parser.add_argument("--limits", choices=sorted(LIMITS), default=MIDDLE.name, help="of sizes (default middle)")
    parser.add_argument("--function", action="append", choices=sorted(FUZZED), metavar="NAME", help="draw only these")
    parser.add_argument("--log", type=Path, help="a file that gets a line of JSON for each call")
    options = parser.parse_args(arguments)
    if options.seconds <= 0 or (options.workers is not None and options.workers < 1):
        parser.error("--seconds and --workers must be positive")
    if options.call is not None and options.seed is None:
        parser.error("--call needs the --seed that it was drawn from")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calls; returns 0, or 1 if one failed, or 2 if there is no simulator."""
    options = parse_arguments(arguments)
    if not SIMULATED:
        print(NOT_SIMULATED)
        return 2
    functions = tuple(options.function or ())
    if options.call is not None:
        with one_rank():
            line = run_call(options.seed, options.call, LIMITS[options.limits], functions)
        print(written(line) if not line.trace else f"{written(line)}\n{line.trace}")
        return 1 if line.failures else 0
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    plan = Plan(seed, options.seconds, options.workers or _cores(), options.first, options.limits, functions)
    print(f"seed {seed}, {plan.workers} workers, {plan.seconds:g} seconds", flush=True)
    lines: list[Line] = []
    with ExitStack() as files:
        log = None if options.log is None else files.enter_context(options.log.open("w", encoding="utf-8"))
        for line in lines_of(plan):
            lines.append(line)
            if log is not None:
                log.write(f"{written(line)}\n")
                log.flush()
            for failure in line.failures:
                print(f"FAILED {line.function}: {failure}\n  {line.command}", flush=True)
    rows = rows_of(lines)
    print(table(rows))
    return 1 if any(row.failures for row in rows.values()) else 0


def _cores() -> int:
    """Return the number of CPU cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
