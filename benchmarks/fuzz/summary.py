# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.fuzz.one_call import Line


@dataclass
class Row:
    """The counts and extremes of a function.

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
