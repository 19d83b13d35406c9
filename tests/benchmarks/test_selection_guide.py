# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.selection_guide`: docs/reference/kernels.md shows what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.selection_guide import main

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "kernels.md"


def test_the_docs_show_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    assert capsys.readouterr().out in DOCS.read_text(encoding="utf-8")
