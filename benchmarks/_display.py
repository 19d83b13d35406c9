# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The parts that measurements print: empty tables, verdicts on goals, and the beginning and end of a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples._display import heading, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED

# Of a measurement that has no simulator that models.
NO_MODEL = 2


def verdict(is_met: bool) -> Text:
    """Whether a goal is met, for a cell."""
    return Text("met", style="green") if is_met else Text("missed", style="bold red")


def table_of(title: str, names: Iterable[str], figures: Iterable[str]) -> Table:
    """An empty table: columns that say what a row is about, which are not wrapped, then columns of figures."""
    table = plain_table(title)
    for column in names:
        table.add_column(column, no_wrap=True)
    for column in figures:
        table.add_column(column, justify="right")
    return table


def begin_modelled(console: Console, title: str, *lines: str) -> bool:
    """Print the heading of modelled tables; return False, and print why, if there is no simulator that models."""
    console.print(heading(title, *lines) if SIMULATED else NOT_SIMULATED)
    return SIMULATED


def end_verdicts(console: Console, are_met: Sequence[bool]) -> int:
    """Print how many goals are met, and return the exit code: 1 if one is missed."""
    console.print(f"Goals met: {sum(are_met)} of {len(are_met)}.")
    return int(not all(are_met))
