# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The guarantees of the public kernels, as text for a terminal and as parts of pages in Markdown.

``python -m nkilib.cli.guarantees`` prints the parts of two pages: :func:`promise_tables`, the guarantees of all
kernels, for docs/reference/guarantees.md, and :func:`error_lists`, bounds on the errors of kernels that no page of
losses lists, for docs/reference/guarantees_errors.md. The module ``losses`` also uses the functions that format
Markdown: :func:`table`, :func:`escaped`, :func:`item`, :func:`shared_notes` and :func:`yes_or_no`.

A *clause* is a part of a text between semicolons; a *note* is a clause of ``Guarantee.notes``.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from nkilib.base.guarantee import Guarantee
from nkilib.cli.arguments import MOST_COLUMNS, folded
from nkilib.core.host.loss import Family
from nkilib.experimental.loss.registry import LOSSES
from nkilib.experimental.public_kernels import guarantee_of, public_kernels

_PROMISES: Final = ("kernel", "sums", "same on 1 and 2 cores", "in place")
# A note on as many kernels or losses of a page stands there once.
_SHARED: Final = 2


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table as text.

    Args:
        heads: the heads of the columns.
        rows: the cells of the rows.
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def escaped(text: str) -> str:
    """Return Markdown text with a backslash before each underscore and star outside code.

    Markdown would take pairs of these characters for formatting.
    """
    return re.sub(r"`[^`]*`|[_*]", lambda found: found[0] if found[0].startswith("`") else f"\\{found[0]}", text)


def clauses(text: str) -> list[str]:
    """Return the clauses of a text; none for an empty text."""
    return text.split("; ") if text else []


def item(label: str, text: str, level: int = 0) -> str:
    """Return a Markdown list item, wrapped to :data:`~nkilib.cli.arguments.MOST_COLUMNS`.

    Args:
        label: the words in bold at the beginning.
        text: the text after the label. If it does not fit on one line, its clauses become a list below the label.
        level: the depth of nesting in lists, from 0.
    """
    indent, head = "  " * level, f"- **{label}:**"
    line = f"{indent}{head} {escaped(text)}"
    if len(clauses(text)) == 1 or len(line) <= MOST_COLUMNS:
        return wrapped(line.strip(), indent)
    inner = (f"- {escaped(re.sub('^u = ', 'with u = ', clause))}" for clause in clauses(text))
    return "\n".join((f"{indent}{head}", *(wrapped(clause, f"{indent}  ") for clause in inner)))


def wrapped(text: str, indent: str) -> str:
    """Return a list item ("- ...") or a paragraph of Markdown in indented lines of at most ``MOST_COLUMNS``.

    A line never begins with an operator, or with a number and a point: Markdown would take the line for a list item, a
    heading or a quotation.
    """
    glued = re.sub(r" (?=(?:[-+=>#*]|\\\*|\d+[.)]) )", "\0", text)
    lines = textwrap.wrap(
        glued,
        MOST_COLUMNS,
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if text.startswith("- ") else indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace("\0", " ")


def yes_or_no(holds: bool) -> str:
    """Return "yes" for True and "no" for False, as a cell of a table."""
    return "yes" if holds else "no"


def guarantees() -> dict[str, Guarantee]:
    """Return the guarantees of all kernels that state any, by the name of the kernel."""
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
    """Return the guarantees as text for a terminal, with one paragraph for each kernel."""
    return "\n\n".join("\n".join(_lines(name, guarantee)) for name, guarantee in guarantees().items())


def promise_tables() -> str:
    """Return the guarantees of all kernels in Markdown, without bounds on errors.

    The text has the guarantees that all kernels share, a table for each precision, and the workspace of kernels.
    """
    stated = guarantees()
    differing = [f"`{name}`" for name, guarantee in stated.items() if not guarantee.deterministic]
    but = f" except {', '.join(differing)}" if differing else ""
    parts = [f"All kernels are repeatable{but}."]
    for math, group in groupby(sorted(stated, key=lambda name: stated[name].math), lambda name: stated[name].math):
        rows = [
            (
                f"`{name}`",
                stated[name].accumulator,
                yes_or_no(stated[name].same_bits_on_cores),
                f"`{stated[name].in_place}`" if stated[name].in_place else "-",
            )
            for name in group
        ]
        parts += [wrapped(f"Elements in {escaped(math)}:", ""), table(_PROMISES, rows)]
    with_memory = [
        item(f"`{name}`", guarantee.workspace) for name, guarantee in stated.items() if guarantee.workspace != "0"
    ]
    parts += ["Workspace in bytes; kernels that are not listed allocate none:", "\n".join(with_memory)]
    return "\n\n".join(parts)


def shared_notes(notes: Mapping[str, Sequence[str]]) -> tuple[set[str], str]:
    """Return the notes that two or more kernels or losses share, and Markdown text that lists them once.

    Args:
        notes: the notes of each kernel or loss, by its name.

    Returns:
        The shared notes, and a Markdown list of names with the notes that hold for all of these names. The text is
        empty if no note is shared.
    """
    counted = Counter(note for of_each in notes.values() for note in of_each)
    by_names: dict[tuple[str, ...], list[str]] = {}
    for note in (note for note, count in counted.items() if count >= _SHARED):
        by_names.setdefault(tuple(name for name, of_each in notes.items() if note in of_each), []).append(note)
    parts = [
        wrapped(f"- {', '.join(f'`{name}`' for name in names)}:", "")
        + "".join(f"\n{wrapped(f'- {escaped(note)}', '  ')}" for note in of_all)
        for names, of_all in by_names.items()
    ]
    return {note for of_all in by_names.values() for note in of_all}, "\n".join(parts)


def error_lists() -> str:
    """Return, in Markdown, bounds on errors and further notes of the kernels that no page of losses lists.

    These are the kernels of losses of a vocabulary, and the kernels without an entry in the registry of losses, such as
    softmax.
    """
    listed = {
        kernel.__name__
        for loss in LOSSES
        if loss.family is not Family.VOCABULARY
        for kernel in (loss.forward, loss.backward)
    }
    here = {name: guarantee for name, guarantee in guarantees().items() if name not in listed}
    shared, text = shared_notes({name: clauses(guarantee.notes) for name, guarantee in here.items()})
    parts = []
    for name, guarantee in here.items():
        own = "; ".join(note for note in clauses(guarantee.notes) if note not in shared)
        lines = [item("Error", guarantee.error), *([item("Notes", own)] if own else [])]
        parts.append("\n".join((f"### `{name}`\n", *lines)))
    return "\n\n".join((*parts, "### Notes on several kernels", text))


if __name__ == "__main__":
    print("\n\n".join((promise_tables(), error_lists())))
