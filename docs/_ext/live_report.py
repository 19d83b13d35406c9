# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sphinx extension: the page of a profile that the site shows live, which each build makes anew.

It is the page that ``python -m examples.profile_report`` writes of the mended kernel beside the slow one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Pages link to it as raw HTML, because it is no page of Sphinx.
NAME: Final = "rms_norm_report.html"


def write(folder: Path) -> None:
    """Write the page into a folder."""
    from examples.profile_report import profiles

    slow, mended = profiles()
    mended.to_html(folder / NAME, against=slow)


def _write(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        write(Path(app.outdir))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
