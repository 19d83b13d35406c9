# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the public kernels guarantee, as text for a terminal and as tables for docs/kernels.md.

``python -m nkilib.cli.guarantees`` prints the tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nkilib.base.guarantee import Guarantee
from nkilib.cli.tables import in_cell, said, table
from nkilib.experimental.host.public_kernels import guarantee_of, public_kernels

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
            said(each.deterministic),
            said(each.same_bits_on_cores),
            f"`{each.in_place}`" if each.in_place else "-",
            in_cell(each.workspace),
        )
        for name, each in found.items()
    ]
    further = [(f"`{name}`", in_cell(each.error), in_cell(each.notes) or "-") for name, each in found.items()]
    return "\n\n".join((table(_PROMISES, promises), table(("kernel", "largest error", "notes"), further)))


def _lines(name: str, guarantee: Guarantee) -> Iterator[str]:
    yield name
    facts = {
        "elements": guarantee.math,
        "sums": guarantee.accumulator,
        "same bits again": said(guarantee.deterministic),
        "on 1 and 2 cores": said(guarantee.same_bits_on_cores),
        "workspace, bytes": guarantee.workspace,
        "in place": guarantee.in_place or "no",
        "largest error": guarantee.error,
        "notes": guarantee.notes,
    }
    width = max(map(len, facts))
    for fact, found in facts.items():
        if found:
            yield f"  {fact:<{width}}  {found}"


if __name__ == "__main__":
    print(as_tables())
