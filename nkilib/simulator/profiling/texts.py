# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Lines of text that are no wider than a page: :func:`wrapped` breaks sentences, :func:`fitted` shortens names."""

from __future__ import annotations

from textwrap import wrap

# The most columns of a printed line.
WIDTH = 88


def wrapped(sentence: str, first: str = "", others: str = "  ") -> list[str]:
    """Return the lines of a sentence, of at most 88 columns where words and calls allow it.

    Args:
        sentence: the text.
        first, others: what the first line and the others begin with.
    """
    lines: list[str] = wrap(
        sentence, WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return lines


def fitted(text: str, width: int) -> str:
    """Return a text in a column of a width: filled with blanks, or without its beginning."""
    return f"{text:<{width}}" if len(text) <= width else f"...{text[3 - width :]}"
