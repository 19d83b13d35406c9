# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tests without PyTorch or JAX: files that import what is not installed are left out, and tests that do are skipped.

What a file imports is read from it and from the files of tests, benchmarks and examples that it imports. Nothing of the
library but ``nkilib.torch`` and ``nkilib.jax`` may import these packages (``tests/test_source.py``), so that a skip
cannot hide an import that should not be there: one in any other module of the library fails the test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb

ROOT = Path(__file__).resolve().parent.parent
# What tests and nkilib.torch import at their top: each with what brings it along.
OPTIONAL = ("torch", "jax", "transformers", "trl")
ABSENT = frozenset(name for name in OPTIONAL if find_spec(name) is None)
_FOLLOWED = ("tests", "benchmarks", "examples", "tools")
# The packages of the library that import an optional one, whichever module of them is asked for.
_OF_LIBRARY = {"nkilib.torch": "torch", "nkilib.jax": "jax"}
# Says for nkilib.torch and nkilib.jax what they need.
_CHECKS = ROOT / "nkilib" / "core" / "host" / "requirement.py"
_MAY_IMPORT = (*_FOLLOWED, "nkilib/torch", "nkilib/jax")


def missing_in(path: Path, absent: frozenset[str] = ABSENT) -> str:
    """The package that is not installed and without which a test file cannot be imported; empty if there is none."""
    return next((name for name in sorted(absent) if name in _needed(path)), "") if absent else ""


def missing_in_text(source: str, absent: frozenset[str] = ABSENT) -> str:
    """The same of a program, by all its imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    needed = {_package_of(module) for module in _imported_by(nodes, ROOT / "program.py")}
    return next((name for name in sorted(absent) if name in needed), "")


def missing_for(error: ImportError, absent: frozenset[str] = ABSENT) -> str:
    """The same of a failed import, if a file is to blame that may import the package."""
    name = (error.name or "").partition(".")[0]
    if name not in absent:
        return ""
    files = [Path(frame.f_code.co_filename) for frame, _ in walk_tb(error.__traceback__)]
    importing = next((file for file in reversed(files) if file.is_relative_to(ROOT) and file != _CHECKS), ROOT)
    is_allowed = any(importing.is_relative_to(ROOT / folder) for folder in _MAY_IMPORT)
    return name if is_allowed else ""


@cache
def _needed(path: Path) -> frozenset[str]:
    """The optional packages that a file imports when it is imported, itself or by what it imports."""
    needed: set[str] = set()
    seen, waiting = {path}, [path]
    while waiting:
        for module in _imports(waiting.pop()):
            needed.add(_package_of(module))
            if module.partition(".")[0] in _FOLLOWED:
                result = _files_of(module) - seen
                seen |= result
                waiting += result
    return frozenset(needed)


def _package_of(module: str) -> str:
    """The optional package that the import of a module imports, as far as its name tells; empty for other modules."""
    top, first_two = module.partition(".")[0], ".".join(module.split(".")[:2])
    return top if top in OPTIONAL else _OF_LIBRARY.get(first_two, "")


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """The modules that a file imports at its top; also ``module.name`` of names that may be modules."""
    return tuple(_imported_by(ast.parse(path.read_text(encoding="utf-8")).body, path))


def _imported_by(statements: Sequence[ast.stmt], path: Path) -> Iterator[str]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*parts, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) != "TYPE_CHECKING":
            yield from _imported_by([*node.body, *node.orelse], path)
        elif isinstance(node, ast.With | ast.Try):
            yield from _imported_by(node.body, path)


@cache
def _files_of(module: str) -> frozenset[Path]:
    """The files that run when a module of ours is imported: its own, and those of the packages that it is in."""
    parts = module.split(".")
    places = [ROOT.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    return frozenset(file for file in files if file.is_file())


def summary(left_out: Mapping[Path, str]) -> str:
    """A line for the report: how many test files were left out for which package."""
    names = sorted(set(left_out.values()))
    counts = ", ".join(f"{list(left_out.values()).count(name)} for want of {name}" for name in names)
    return f"test files left out: {counts}" if names else ""
