# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that format Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the text of a Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_cell(text: str) -> str:
    """Escape bars, underscores and stars: a bar would end a cell, and pairs of the others would format the text."""
    return "".join(f"\\{letter}" if letter in "|_*" else letter for letter in text)


def yes_or_no(holds: bool) -> str:
    """Return "yes" or "no"."""
    return "yes" if holds else "no"
