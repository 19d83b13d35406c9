"""How the measurements say what they are about, and whether a goal is met."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from examples._display import heading
from nkilib.nki import NOT_SIMULATED, SIMULATED

# Of a measurement that has no simulator that models.
NO_MODEL = 2


def verdict(is_met: bool) -> Text:
    """Whether a goal is met, for a cell."""
    return Text("met", style="green") if is_met else Text("missed", style="bold red")


def begin_modelled(console: Console, title: str, *lines: str) -> bool:
    """Print what modelled tables are about; False, and why, where nothing models."""
    console.print(heading(title, *lines) if SIMULATED else NOT_SIMULATED)
    return SIMULATED


def end_verdicts(console: Console, are_met: Sequence[bool]) -> int:
    """Print how many goals are met, and return the exit code: 1 if one is missed."""
    console.print(f"Goals met: {sum(are_met)} of {len(are_met)}.")
    return int(not all(are_met))
