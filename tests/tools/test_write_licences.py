# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The licence comes to the top of a file once, behind what has to be its first line."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.write_licences import HEADER, files, has_header, with_header


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""\n', f'{HEADER}\n"""A module."""\n'),
        ('\n"""A module."""\n', f'{HEADER}\n"""A module."""\n'),
        ("", HEADER),
        ("#!/usr/bin/env python3\nimport os\n", f"#!/usr/bin/env python3\n{HEADER}\nimport os\n"),
        ("# -*- coding: utf-8 -*-\nimport os\n", f"# -*- coding: utf-8 -*-\n{HEADER}\nimport os\n"),
        ("# Why this is here.\nimport os\n", f"{HEADER}\n# Why this is here.\nimport os\n"),
    ],
)
def test_a_file_gets_it_once(before: str, after: str) -> None:
    assert not has_header(before)
    assert with_header(before) == after
    assert has_header(after) and with_header(after) == after
    if before:
        assert ast.get_docstring(ast.parse(after)) == ast.get_docstring(ast.parse(before))


def test_one_line_of_it_is_not_enough() -> None:
    text = HEADER.splitlines(keepends=True)[0]
    assert not has_header(text + "import os\n")


def test_every_folder_with_python_is_looked_at(tmp_path: Path) -> None:
    for name in ("nkilib/a/b.py", "tests/c.py", "layout/d.py", "docs/e.py", "nkilib/f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert [str(path.relative_to(tmp_path)) for path in files(tmp_path)] == [
        "nkilib/a/b.py",
        "tests/c.py",
        "layout/d.py",
    ]
    assert len(list(files())) > 1000
