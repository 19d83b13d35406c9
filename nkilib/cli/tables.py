# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Its lines."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def in_cell(text: str) -> str:
    """A bar would end the cell of a table, and two underscores or stars set what is between them apart."""
    return "".join(f"\\{letter}" if letter in "|_*" else letter for letter in text)


def said(holds: bool) -> str:
    """In a word."""
    return "yes" if holds else "no"
