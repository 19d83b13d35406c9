# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Count files, lines of code and imports of packages: ``python -m tools.count_lines [--folders] [PACKAGE ...]``.

A table has a row for each package: its files, their lines of code, the median of a file, and the share of the lines
that are imports. The figures of another checkout: ``python -m tools.count_lines ../other/nkilib``.

A line of code is one with a token that is neither a comment nor part of a docstring; so blank lines, comments, licence
lines and docstrings do not count, and a statement over five lines counts five.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
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
    """The number of files, of lines of code and of imports among them, and the lines of code of the median file."""

    files: int
    lines: int
    imports: int
    median: float

    @property
    def row(self) -> str:
        """The figures as a row of the table."""
        share = self.imports / self.lines if self.lines else 0.0
        return f"{self.files:>7}{self.lines:>9}{self.median:>8.0f}{share:>9.1%}"


def code_lines(source: str) -> int:
    """Return the number of lines of code in the source of a module."""
    return len(_code_lines(source, ast.parse(source)))


def import_lines(source: str) -> int:
    """Return the number of lines of code that are imports, at the top or in a function."""
    tree = ast.parse(source)
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return len(_code_lines(source, tree) & {line for node in imports for line in _lines_of(node)})


def count(directory: Path) -> Count:
    """Count the modules below a directory, and their lines."""
    sources = [module.read_text(encoding="utf-8") for module in sorted(directory.rglob("*.py"))]
    lines = [code_lines(source) for source in sources]
    return Count(len(lines), sum(lines), sum(map(import_lines, sources)), median(lines) if lines else 0.0)


def _code_lines(source: str, tree: ast.Module) -> set[int]:
    """Return the numbers of the lines with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - _docstring_lines(tree)


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Return the line numbers of docstrings: of modules, classes and functions, and of the names before them."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            for statement in node.body:
                if _is_text(statement):
                    lines.update(_lines_of(statement))
    return lines


def _lines_of(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each package and, with ``--folders``, one for each of its folders."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.count_lines", description="Count files, lines of code and imports of packages."
    )
    parser.add_argument("packages", nargs="*", default=PACKAGES, type=Path, metavar="PACKAGE")
    parser.add_argument("--folders", action="store_true", help="also the folders of each package")
    options = parser.parse_args(arguments)
    print(f"{'package':<40}{'files':>7}{'lines':>9}{'median':>8}{'imports':>9}")
    for directory in _directories(map(Path, options.packages), options.folders):
        print(f"{directory!s:<40}{count(directory).row}")


def _directories(packages: Iterable[Path], with_folders: bool) -> Iterator[Path]:
    for package in packages:
        yield package
        for folder in sorted(package.iterdir()) if with_folders else ():
            if folder.is_dir() and any(folder.rglob("*.py")):
                yield folder


if __name__ == "__main__":
    main()
