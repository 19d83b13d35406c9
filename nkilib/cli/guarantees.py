# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of the public kernels, as text for a terminal and as tables for docs/reference/guarantees.md.

``python -m nkilib.cli.guarantees`` prints the tables. The functions that format a Markdown table, :func:`table`,
:func:`in_cell` and :func:`yes_or_no`, also serve ``losses``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nkilib.base.guarantee import Guarantee
from nkilib.cli.arguments import folded
from nkilib.experimental.public_kernels import guarantee_of, public_kernels

_PROMISES: Final = ("kernel", "elements", "sums", "repeatable", "same on 1 and 2 cores", "in place", "workspace, bytes")


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


def guarantees() -> dict[str, Guarantee]:
    """Return the guarantees of all kernels that state them, by the name of the kernel."""
    stated = {name: guarantee_of(kernel) for name, kernel in public_kernels().items()}
    return {name: guarantee for name, guarantee in stated.items() if guarantee is not None}


def _lines(name: str, guarantee: Guarantee) -> Iterator[str]:
    yield name
    facts = {
        "elements": guarantee.math,
        "sums": guarantee.accumulator,
        "repeatable": yes_or_no(guarantee.deterministic),
        "same on 1 and 2 cores": yes_or_no(guarantee.same_bits_on_cores),
        "workspace, bytes": guarantee.workspace,
        "in place": guarantee.in_place or "no",
        "largest error": guarantee.error,
        "notes": guarantee.notes,
    }
    width = max(map(len, facts))
    for fact, text in facts.items():
        if text:
            yield folded(text, f"  {fact:<{width}}  ")


def as_text() -> str:
    """Return the guarantees as a text for a terminal, with one paragraph for each kernel."""
    return "\n\n".join("\n".join(_lines(name, guarantee)) for name, guarantee in guarantees().items())


def as_tables() -> str:
    """Return Markdown tables: the guarantees of all kernels, then the bounds on their errors and further notes."""
    all_guarantees = guarantees()
    promises = [
        (
            f"`{name}`",
            guarantee.math,
            guarantee.accumulator,
            yes_or_no(guarantee.deterministic),
            yes_or_no(guarantee.same_bits_on_cores),
            f"`{guarantee.in_place}`" if guarantee.in_place else "-",
            in_cell(guarantee.workspace),
        )
        for name, guarantee in all_guarantees.items()
    ]
    further = [
        (f"`{name}`", in_cell(guarantee.error), in_cell(guarantee.notes) or "-")
        for name, guarantee in all_guarantees.items()
    ]
    return "\n\n".join((table(_PROMISES, promises), table(("kernel", "largest error", "notes"), further)))


if __name__ == "__main__":
    print(as_tables())
