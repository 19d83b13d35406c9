# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Token scores compared with the plain forward: ``python -m benchmarks.score_table``.

Log-probability and entropy of every position, in both forms of the forward, over the loss alone with the exact maximum.
From shapes alone, on two cores of trn2. Modelled, not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks._display import table_of, verdict
from examples._display import heading, make_console
from nkilib.experimental.loss import Tiling, choose_tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.nki import NOT_SIMULATED, SIMULATED
from nkilib.simulator import Profile

# Positions and classes, and the chunk with which the plain forward with the exact maximum is fastest.
LAUNCHES = {(512, 32768): 3277, (4096, 129280): 12928}
# At most so many times the plain forward, by the form: with the exact maximum, and without.
GOALS = {True: 2.05, False: 1.7}
# All that token_scores asks for.
SCORES: dict[str, Any] = {"with_entropy": True, "with_log_sum": True}


@dataclass(frozen=True)
class Row:
    """A launch in one form.

    Attributes:
        positions, vocabulary: sizes of the launch.
        is_exact: whether it takes the exact maximum of every row.
        found: the profile with no row recomputed.
        plain_us: the time of the loss alone.
    """

    positions: int
    vocabulary: int
    is_exact: bool
    found: Profile
    plain_us: float

    @property
    def times_plain(self) -> float:
        """The time as a multiple of the plain forward's."""
        return self.found.time_us / self.plain_us

    @property
    def worst_us(self) -> float:
        """The time with every row recomputed."""
        return self.found.time_us if self.found.with_all_trips is None else self.found.with_all_trips.time_us

    @property
    def is_met(self) -> bool:
        """Whether the goal is met."""
        return self.times_plain <= GOALS[self.is_exact]


def rows() -> Iterator[Row]:
    """The rows of the table, one at a time."""
    for (positions, vocabulary), chunk_size in LAUNCHES.items():
        launch = positions, vocabulary, "bfloat16", "forward"
        plain = profile_launch(*launch, Tiling(128, chunk_size), exact_maximum=True)
        tiling = choose_tiling(*launch, extended=True)
        for is_exact in GOALS:
            profiled = profile_launch(*launch, tiling, extended=True, **SCORES, exact_maximum=is_exact)
            yield Row(positions, vocabulary, is_exact, profiled, plain.time_us)


def _table(results: Sequence[Row]) -> Table:
    table = table_of(
        "Token scores: microseconds, modelled, not measured",
        (),
        ("N", "V", "maximum", "us", "all recomputed", "plain", "times", "goal", ""),
    )
    for row in results:
        sizes = (str(row.positions), str(row.vocabulary), "exact" if row.is_exact else "shift")
        times = (f"{row.found.time_us:,.1f}", f"{row.worst_us:,.1f}", f"{row.plain_us:,.1f}")
        table.add_row(*sizes, *times, f"{row.times_plain:.2f}", f"{GOALS[row.is_exact]:.2f}", verdict(row.is_met))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, 1 if a goal is missed, or 2 if there is no simulator that models."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.score_table",
        description="Model log-probability and entropy of every position beside the loss alone, in bfloat16.",
        epilog="The exit code is 1 if a goal is missed.",
    )
    parser.parse_args(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    console.print(
        heading(
            "Log-probability and entropy of every position: two cores of trn2, bfloat16",
            "Modelled, not measured. Times are those of the loss alone with the exact maximum.",
        )
    )
    results = list(rows())
    console.print(_table(results))
    met = sum(row.is_met for row in results)
    console.print(f"Goals met: {met} of {len(results)}.")
    return int(met < len(results))


if __name__ == "__main__":
    raise SystemExit(main())
