# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The script that counts lines of code."""

from __future__ import annotations

from pathlib import Path

from tools.count_lines import Count, code_lines, count

SOURCE = '''"""A page.

Of two paragraphs."""
# A comment.

import os  # with a comment

LIMIT = 3
"""What is documented below it."""


def work(
    size: int,
) -> str:
    """One line."""

    text = """of
two lines"""
    return text * size
'''


def test_only_lines_with_code_count() -> None:
    """An import, a constant, a head of three lines, a text of two lines that is a value, and what is returned."""
    assert code_lines(SOURCE) == 8


def test_an_empty_module_has_no_lines() -> None:
    """Nor has one of a licence and a docstring."""
    assert code_lines("") == code_lines('# A licence.\n"""A page."""\n') == 0


def test_folders_count_with_what_is_below(tmp_path: Path) -> None:
    """Modules only, at any depth."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "page.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "inner" / "page.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "notes.md").write_text(SOURCE, encoding="utf-8")
    assert count(tmp_path) == Count(2, 16)
