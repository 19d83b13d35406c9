# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: the groups of pages in the side bar, which ``navigation`` of conf.py lists.

The groups are added to the start page when it is read, so that its Markdown has no directive that GitHub shows as text.
A page that no group lists is a warning of Sphinx, hence an error of ``make docs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def contents(navigation: dict[str, list[str]]) -> str:
    """Write the groups as hidden ``toctree`` directives of MyST.

    Args:
        navigation: the pages of each group, without suffix, by its caption.

    Returns:
        The text to append to the start page.
    """
    groups = ("\n".join(["```{toctree}", ":hidden:", f":caption: {c}", "", *p, "```"]) for c, p in navigation.items())
    return "\n\n" + "\n\n".join(groups) + "\n"


def _append_contents(app: Sphinx, name: str, source: list[str]) -> None:
    if name == app.config.root_doc:
        source[0] += contents(app.config.navigation)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension and its option ``navigation``."""
    app.add_config_value("navigation", {}, "env", [dict])
    app.connect("source-read", _append_contents)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
