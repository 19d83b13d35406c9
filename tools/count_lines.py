# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Count files and lines of code of each package: ``python -m tools.count_lines [PACKAGE ...]``.

A line of code is one with a token that is neither a comment nor part of a docstring; so blank lines, comments, licence
lines and docstrings do not count, and a statement over five lines counts five.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

PACKAGES: Final = ("nkilib", "tests", "benchmarks", "tools", "examples")
_NO_CODE: Final = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
_DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Count(NamedTuple):
    """The number of files, and of lines of code in them."""

    files: int
    lines: int


def code_lines(source: str) -> int:
    """Return the number of lines of code in the source of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(source)))


def count(directory: Path) -> Count:
    """Count the modules below a directory, and their lines of code."""
    modules = sorted(directory.rglob("*.py"))
    return Count(len(modules), sum(code_lines(module.read_text(encoding="utf-8")) for module in modules))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the line numbers of docstrings: of modules, classes and functions, and of the names before them."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            for statement in node.body:
                if _is_text(statement):
                    lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each package and, with ``--folders``, one for each of its folders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, type=Path, metavar="PACKAGE")
    parser.add_argument("--folders", action="store_true", help="also the folders of each package")
    options = parser.parse_args(arguments)
    for package in map(Path, options.packages):
        _show(package)
        for folder in sorted(package.iterdir()) if options.folders else ():
            if folder.is_dir() and any(folder.rglob("*.py")):
                _show(folder)


def _show(directory: Path) -> None:
    result = count(directory)
    print(f"{directory!s:<40}{result.files:>7} files{result.lines:>9} lines of code")


if __name__ == "__main__":
    main()
