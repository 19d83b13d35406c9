# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Printing for the demo and the measurements: in colour on a terminal, as plain text in a log."""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

# A log has no width of its own; rich would fold the tables to 80 columns there.
LOG_WIDTH = 120
EXAMPLE_WIDTH = 88
_MINUTE = 60.0


def make_console(most: int | None = None) -> Console:
    """A console as wide as the terminal, or ``LOG_WIDTH`` wide where there is none; at most ``most`` columns wide."""
    console = Console(highlight=False)
    width = console.width if console.is_terminal else LOG_WIDTH
    if most is not None and most < width:
        return Console(highlight=False, width=most)
    return console if console.is_terminal else Console(highlight=False, width=width)


def rounded_time(seconds: float) -> str:
    """The time that a program takes, as far as anybody can tell for another machine: "1 s", "20 s", "3 minutes"."""
    if seconds >= 1.5 * _MINUTE:
        return f"{round(seconds / _MINUTE)} minutes"
    return f"{5 * max(round(seconds / 5), 1)} s" if seconds > 2.5 else f"{max(round(seconds), 1)} s"


def takes(seconds: float) -> str:
    """The line with which a program says how long it takes."""
    return f"Takes about {rounded_time(seconds)} on two cores without other load."


def heading(title: str, *lines: str) -> RenderableType:
    """A framed title with explanatory lines."""
    text = Text(title, style="bold")
    for line in lines:
        text.append("\n" + line, style="not bold")
    return Panel(text, box=box.ROUNDED, border_style="cyan", expand=False)


def counted(number: int, noun: str) -> str:
    """The noun with its number, in the plural that takes an s: "1 step", "1,000 steps"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def plain_table(title: str) -> Table:
    """An empty table without lines between its rows."""
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
