# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: docstrings of Google style as reStructuredText that napoleon and Sphinx read as they are meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_NAMED_RESULT: Final = re.compile(r"    \w+(, \w+)*: ")
_NAMES_WITHOUT_END: Final = re.compile(r"    (\w+, )*\w+,$")
_BAR_OUTSIDE_LITERALS: Final = re.compile(r"(``.*?``|`[^`]*`)|(?<!\\)\|")


def escaped(line: str) -> str:
    """Escape the bars of magnitudes, which reStructuredText takes for substitutions.

    Args:
        line: a line of a docstring.

    Returns:
        The line with a backslash before each bar outside literals.
    """
    return _BAR_OUTSIDE_LITERALS.sub(lambda match: match[1] or r"\|", line)


def with_results(lines: list[str]) -> list[str]:
    """Rewrite the section of results, of which napoleon takes the words before the first colon for a type.

    Args:
        lines: a docstring.

    Returns:
        The docstring with a section "Results" that is listed like arguments, if the results have names, or else with a
        field ``:returns:``.
    """
    if "Returns:" not in lines[:-1]:
        return lines
    at = lines.index("Returns:")
    if _NAMED_RESULT.match(lines[at + 1]):
        return [*lines[:at], "Results:", *lines[at + 1 :]]
    return [*lines[:at], f":returns: {lines[at + 1].strip()}", *lines[at + 2 :]]


def with_joined_names(lines: list[str]) -> list[str]:
    """Join the names of arguments that share a description and take more than one line.

    Args:
        lines: a docstring.

    Returns:
        The docstring with such names on one line.
    """
    joined: list[str] = []
    for line in lines:
        if joined and _NAMES_WITHOUT_END.match(joined[-1]):
            joined[-1] = f"{joined[-1]} {line.strip()}"
        else:
            joined.append(line)
    return joined


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, as one line of reStructuredText.

    Args:
        text: the docstring, without indent.

    Returns:
        Its first paragraph up to the first full stop, or up to a colon at its end, which becomes a full stop.
    """
    paragraph = escaped(" ".join(text.partition("\n\n")[0].split()))
    sentence = re.split(r"(?<=\.)\s(?=[A-Z`:])", paragraph, maxsplit=1)[0]
    return re.sub(r":+$", ".", sentence)


def _mend(_app: Sphinx, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = with_joined_names(with_results([escaped(line) for line in lines]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("autodoc-process-docstring", _mend, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
