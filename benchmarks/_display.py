"""How the measurements say whether a goal is met."""

from __future__ import annotations

from rich.text import Text


def verdict(is_met: bool) -> Text:
    """Whether a goal is met, for a cell."""
    return Text("met", style="green") if is_met else Text("missed", style="bold red")
