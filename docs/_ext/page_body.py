# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: the content of a page as a narrow window needs it, and no larger than it has to be.

A browser breaks no line within ``torch.nn.functional.linear_cross_entropy``: long names in code get places where it
may. Sphinx puts each word of code into an element of its own, and the whole name of a linked object into a tooltip;
both are taken out, a quarter of the size of an API page.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_WORD: Final = re.compile(r'<span class="pre">([^<]*)</span>')
_HEADING: Final = re.compile(r"(?<=<h[1-3]>)[^<]*")
_TOOLTIP: Final = re.compile(r'(<a class="reference internal" href="[^"]*") title="[\w.]*"')
_LONG: Final = 16
_BREAKS: Final = re.compile(r"(?<=[._/=(\[,])(?=[\w{&])|(?<=[a-z])(?=[A-Z])")


def breakable(word: str) -> str:
    """Mark where a line may break in a word of code.

    Args:
        word: the word as HTML.

    Returns:
        The word with ``<wbr>`` after each stop, underscore and so on, and before capitals, if it is long.
    """
    return _BREAKS.sub("<wbr>", word) if len(word) >= _LONG else word


def compact(body: str) -> str:
    """Rewrite the content of a page: words of code without elements of their own, and breakable; headings too."""
    body = _TOOLTIP.sub(r"\1", _WORD.sub(lambda match: breakable(match[1]), body))
    return _HEADING.sub(lambda match: " ".join(breakable(word) for word in match[0].split(" ")), body)


def _rewrite(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _doctree: object) -> None:
    if "body" in context:
        context["body"] = compact(context["body"])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("html-page-context", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
