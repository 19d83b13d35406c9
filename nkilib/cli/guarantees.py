"""What the public kernels guarantee, as text for a terminal and as tables for docs/kernels.md.

``python -m nkilib.cli.guarantees`` prints the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nkilib.experimental.host.public_kernels import guarantee_of, public_kernels
from nkilib.guarantee import Guarantee

_PROMISES: Final = ("kernel", "elements", "sums", "same bits again", "on 1 and 2 cores", "in place", "workspace, bytes")


def guarantees() -> dict[str, Guarantee]:
    """Of every kernel that states one, by its name."""
    stated = {name: guarantee_of(kernel) for name, kernel in public_kernels().items()}
    return {name: guarantee for name, guarantee in stated.items() if guarantee is not None}


def as_text() -> str:
    """One paragraph a kernel."""
    return "\n\n".join("\n".join(_lines(name, guarantee)) for name, guarantee in guarantees().items())


def as_tables() -> str:
    """In Markdown: the promises of all kernels, then the bounds on their errors and what else there is to know."""
    found = guarantees()
    promises = [
        (
            f"`{name}`",
            each.math,
            each.accumulator,
            _said(each.deterministic),
            _said(each.same_bits_on_cores),
            f"`{each.in_place}`" if each.in_place else "-",
            _in_cell(each.workspace),
        )
        for name, each in found.items()
    ]
    further = [(f"`{name}`", _in_cell(each.error), _in_cell(each.notes) or "-") for name, each in found.items()]
    return "\n\n".join((_table(_PROMISES, promises), _table(("kernel", "largest error", "notes"), further)))


def _lines(name: str, guarantee: Guarantee) -> Iterator[str]:
    yield name
    facts = {
        "elements": guarantee.math,
        "sums": guarantee.accumulator,
        "same bits again": _said(guarantee.deterministic),
        "on 1 and 2 cores": _said(guarantee.same_bits_on_cores),
        "workspace, bytes": guarantee.workspace,
        "in place": guarantee.in_place or "no",
        "largest error": guarantee.error,
        "notes": guarantee.notes,
    }
    width = max(map(len, facts))
    for fact, found in facts.items():
        if found:
            yield f"  {fact:<{width}}  {found}"


def _said(holds: bool) -> str:
    return "yes" if holds else "no"


def _in_cell(text: str) -> str:
    """A bar would end the cell of a table, and two underscores or stars set what is between them apart."""
    return "".join(f"\\{letter}" if letter in "|_*" else letter for letter in text)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(as_tables())
