# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every Python file says under which licence it is, and whose it is."""

from __future__ import annotations

from tests.fresh_python import CHECKOUT
from tools.write_licences import files, has_header


def test_every_file_begins_with_the_licence() -> None:
    """``python -m tools.write_licences`` adds it."""
    without = [str(path.relative_to(CHECKOUT)) for path in files() if not has_header(path.read_text(encoding="utf-8"))]
    assert without == []
