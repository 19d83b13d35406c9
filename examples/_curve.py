# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A training as it is watched: a live bar on a terminal, and a few lines of the loss curve everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

# Lines of the loss curve.
CURVE_LINES = 10
_BAR_WIDTH = 20


def shown_steps(steps: int) -> frozenset[int]:
    """The steps, counted from 1, that get a line: the first one, then ``CURVE_LINES`` at equal distances."""
    return frozenset({1} | {math.ceil(steps * line / CURVE_LINES) for line in range(1, CURVE_LINES + 1)})


def progress_bar(console: Console) -> Progress:
    """A live bar on a terminal, nothing in a log, where the lines of the curve show the progress.

    Its tasks have a field ``loss``.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def curve_line(step: int, losses: Mapping[str, float], most: float) -> RenderableType:
    """A line of the curve.

    Args:
        step: counted from 1.
        losses: by name; the bar shows the first.
        most: the loss of a full bar.
    """
    line = Table.grid(padding=(0, 2))
    first = next(iter(losses.values()))
    bar = ProgressBar(total=most, completed=first, width=_BAR_WIDTH, style="default", complete_style="cyan")
    line.add_row(f"  step {step:4d}", *(f"{name} {loss:.6f}" for name, loss in losses.items()), bar)
    return line
