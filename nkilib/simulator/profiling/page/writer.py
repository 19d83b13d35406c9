# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The HTML file of one or two profiles, which needs no network and no other file.

:func:`page_of` makes the text of the file; :func:`content_in` returns the content that such a file holds;
:func:`cell_of` returns the form for a notebook. The page forbids itself all network access, and runs only its own
script. The data are base64 of compressed JSON, so that no text of a kernel is ever part of the HTML.

*Content* is the dictionary that a page is made of (:func:`.content.content_of`).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from os import PathLike, fspath
from pathlib import Path

from .comparison import compared
from .content import FORMAT, Content
from .fragments import comparison, figures, small, static, summary

_FOLDER = Path(__file__).parent
_DATA = re.compile(r'<script type="text/plain" class="nkilib-profile">([A-Za-z0-9+/=]*)</script>')
# The most bytes that the content of another page may have after decompression.
_MOST_BYTES = 1 << 29
# A cell of a notebook has a page to look at up to this number of instructions; a notebook keeps every cell it showed.
_MOST_IN_CELL = 3_000
_CELL_PIXELS = 700


@cache
def _part(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _encoded(content: Content) -> str:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


def _sections(contents: Sequence[Content]) -> str:
    comparing = ""
    if len(contents) > 1:
        this, other = contents
        changes = comparison(this, other, compared(other, this))
        comparing = f'<section><h2 id="comparison">Comparison</h2>{changes}</section>'
    return comparing + _of_each("summary", "Summary", contents, summary)


def _of_each(name: str, title: str, contents: Sequence[Content], shown: Callable[[Content, int], str]) -> str:
    which = (f"{title} of this profile", f"{title} of the other profile") if len(contents) > 1 else (title,)
    return "".join(
        f'<section class="{name}"><h2 id="{name}-{index}">{heading}</h2>{shown(content, index)}</section>'
        for index, (heading, content) in enumerate(zip(which, contents, strict=True))
    )


def page_of(contents: Sequence[Content], *, is_small: bool = False) -> str:
    """Return the text of the HTML file of a profile, or of a profile and another one to compare with.

    Args:
        contents: the content of the profile, then the content of the profile to compare with, if any.
        is_small: whether to leave out the summary, which a notebook shows above the page.
    """
    style, script = _part("report.css").strip(), _part("report.js").strip()
    parts = {
        "policy": f"default-src 'none'; script-src 'sha256-{_hash(script)}'; style-src 'sha256-{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "title": escape(contents[0]["title"]),
        "note": escape(contents[0]["note"]),
        "against": escape(f"Compared with {contents[1]['title']}") if len(contents) > 1 else "",
        "class": "small" if is_small else "",
        "style": style,
        "script": script,
        "comparison": '<a href="#comparison">Comparison</a>' if len(contents) > 1 else "",
        "summary": "" if is_small else _sections(contents),
        "figures": _of_each("figures", "Figures", contents, figures),
        "static": "".join(map(static, contents)),
        "data": "".join(
            f'<script type="text/plain" class="nkilib-profile">{_encoded(content)}</script>\n' for content in contents
        ),
    }
    # In one pass: what is put in may have braces, too.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _part("report.html"))


def _damaged(path: str | PathLike[str]) -> str:
    return f"the report {fspath(path)!r} is damaged: write it again with Profile.to_html or --html"


def content_in(path: str | PathLike[str]) -> Content:
    """Return the content of the profile that a page is about.

    Args:
        path: the path of a file that :func:`page_of` made.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the file is not such a page, or another version of nkilib made it.
    """
    name = fspath(path)
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    found = _DATA.search(text)
    if found is None:
        raise ValueError(f"{name!r} is no report of a profile: pass a file that Profile.to_html or --html wrote")
    try:
        with gzip.open(io.BytesIO(base64.b64decode(found[1])), "rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
        version = content["format"]
    except (ValueError, KeyError, TypeError, EOFError, OSError) as error:
        raise ValueError(_damaged(path)) from error
    if version != FORMAT:
        raise ValueError(
            f"the report {name!r} has format {version!r}, and this nkilib reads format {FORMAT}: write it again with "
            f"Profile.to_html or --html"
        )
    return dict(content)


def page_against(content: Content, other: Content | str | PathLike[str]) -> str:
    """Return the page of a profile that is compared with another one.

    Args:
        content: the content of the profile.
        other: the content of the other profile, or the path of its page.

    Raises:
        OSError: if the file ``other`` cannot be read.
        ValueError: if ``other`` is not such a page, or another version of nkilib made it.
    """
    if isinstance(other, dict):
        return page_of([content, other])
    read = content_in(other)
    try:
        return page_of([content, read])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(_damaged(other)) from error


def cell_of(content: Content) -> str:
    """Return the form for a cell of a notebook, as HTML.

    The form has sentences, a picture and a table, which need no script. The page follows if it is not too large for a
    notebook, in a frame that has no access to the notebook.
    """
    count = sum(core["total"] for core in content["cores"])
    if count > _MOST_IN_CELL:
        return f"{small(content)}<p>Profile.to_html(path) writes a page to look at its {count:,} instructions.</p>"
    page = escape(page_of([content], is_small=True))
    frame = f'<iframe sandbox="allow-scripts" title="Timeline" width="100%" height="{_CELL_PIXELS}" srcdoc="{page}">'
    return f"{small(content)}{frame}</iframe>"
