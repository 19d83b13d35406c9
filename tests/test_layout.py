# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The layout of nkilib: each package has a map of its modules; files, folders and functions stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.fresh_python import CHECKOUT
from tools.count_lines import code_lines

NKILIB = CHECKOUT / "nkilib"
PACKAGES = [init.parent for init in sorted(NKILIB.rglob("__init__.py"))]
MODULES = sorted(NKILIB.rglob("*.py"))

MOST_FILES = 553
MOST_LINES_OF_FILE, MOST_CODE_LINES_OF_FILE = 600, 400
MOST_LINES_OF_FUNCTION = 60
MOST_FILES_OF_FOLDER = 15
DEEPEST = 4

_NAME = r"``([A-Za-z_]\w*)``"
_NAMES = rf"{_NAME}(?:,?\s(?:and\s)?{_NAME})*"


def modules_of(package: Path) -> set[str]:
    """Names of the modules and packages in a package."""
    modules = {file.stem for file in package.glob("*.py")} - {"__init__"}
    return modules | {init.parent.name for init in package.glob("*/__init__.py")}


def named_in(text: str) -> set[str]:
    """Names in double backticks, of ``a.b`` the first."""
    return set(re.findall(r"``([A-Za-z_]\w*)(?:\.\w+)*``", text))


def explained_in(text: str) -> set[str]:
    """Names that a map explains: those before a colon, and those with which an item of a list begins."""
    paragraphs = text.partition("\n\n")[2]  # The first one is about the package itself.
    explained = re.finditer(rf"^ *- {_NAMES}|{_NAMES}(?:\s\([^)]*\))?:", paragraphs, re.MULTILINE)
    return {name for match in explained for name in re.findall(_NAME, match[0])}


MAP = """\
``title`` and others: what lies here.

- ``first``, ``second``: two;
- ``third`` does what ``an_argument`` says.

``fourth`` (both): in a sentence,
and ``fifth``, which mentions ``package.module``: too.
"""


def test_what_a_map_names_and_explains() -> None:
    explained = {"first", "second", "third", "fourth"}
    assert explained_in(MAP) == explained
    assert named_in(MAP) == explained | {"fifth", "title", "an_argument", "package"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_the_map_of_a_package_names_all_its_modules_and_no_others(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert modules_of(package) <= named_in(text), "a line for each of these is missing"
    assert explained_in(text) <= modules_of(package), "these are no modules of the package"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_paths_of_modules_in_a_map_lead_somewhere(package: Path) -> None:
    """``a.b`` starts at the package or at the folder that it is in; the packages of others are not looked for."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
    for first, rest in re.findall(r"``([a-z_]\w*)\.([\w.]+)``", text):
        starts = [start for start in (package, package.parent) if (start / first).is_dir()]
        paths = [start / first / rest.replace(".", "/") for start in starts if first not in ("torch", "jax")]
        assert not paths or any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths), f"{first}.{rest}"


def test_the_library_has_few_files() -> None:
    assert len(MODULES) <= MOST_FILES, (
        f"nkilib has {len(MODULES)} files: raise MOST_FILES in tests/test_layout.py to that if each new file has a "
        f"concept of its own (a new elementwise loss has two files), else join what is always read together"
    )


def test_folders_are_small_and_not_deep() -> None:
    sizes = {str(package.relative_to(CHECKOUT)): len([*package.glob("*.py")]) for package in PACKAGES}
    assert {folder: files for folder, files in sizes.items() if files > MOST_FILES_OF_FOLDER} == {}
    assert [folder for folder in sizes if folder.count("/") > DEEPEST] == []


def test_files_are_short() -> None:
    texts = {str(module.relative_to(CHECKOUT)): module.read_text(encoding="utf-8") for module in MODULES}
    assert [file for file, text in texts.items() if text.count("\n") > MOST_LINES_OF_FILE] == []
    assert [file for file, text in texts.items() if code_lines(text) > MOST_CODE_LINES_OF_FILE] == []


def long_functions(source: str) -> Iterator[str]:
    """Names of the functions with too many lines, besides those of the signature and the docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_documented = ast.get_docstring(node) is not None
            first = node.body[is_documented] if len(node.body) > is_documented else node.body[0]
            if (node.end_lineno or first.lineno) - first.lineno >= MOST_LINES_OF_FUNCTION:
                yield node.name


def test_functions_are_short() -> None:
    statements = "    x = 1\n" * MOST_LINES_OF_FUNCTION
    assert [*long_functions(f'def f(\n    x: int,\n) -> None:\n    """Text."""\n{statements}')] == []
    assert [*long_functions(f"def f(x: int) -> None:\n{statements}    x = 2\n")] == ["f"]
    found = {str(module.relative_to(CHECKOUT)): [*long_functions(module.read_text("utf-8"))] for module in MODULES}
    assert {file: names for file, names in found.items() if names} == {}


OLD_NAMES = CHECKOUT / "tools" / "old_names.txt"
CHECKED = ("nkilib", "tests", "docs", "tools", "benchmarks", "examples", "README.md", "CONTRIBUTING.md", "Makefile")
_PATH = re.compile(r"\b(?:[a-z_]\w*/)+[a-z_]\w*(?:\.py\b)?|\b[a-z_]\w*\.py\b|\bnkilib(?:\.\w+)+")


class OldNames:
    """Modules that were renamed or joined, as paths without a suffix, and other names that are not used any more."""

    def __init__(self, text: str) -> None:
        self.modules, self.words = set[str](), set[str]()
        for line in text.splitlines():
            folder, colon, names = line.rpartition(": ")
            if line.startswith("#"):
                continue
            elif colon:
                self.modules.update(f"{folder}/{name}" for name in names.split())
            else:
                self.words.update(names.split())
        # Also by the end of a path, "rows/folds.py" or "folds.py", unless a file has that end today.
        today = {str(path.relative_to(CHECKOUT).with_suffix("")) for path in texts(".py")}
        self._ends = ends_of(self.modules) - ends_of(today)
        self._word = re.compile(rf"\b(?:{'|'.join(sorted(self.words))})\b")

    def in_text(self, text: str) -> set[str]:
        """The old names in a text."""
        found = set(self._word.findall(text))
        for name in _PATH.findall(text):
            if "/" in name or name.endswith(".py"):
                is_old = name.removesuffix(".py") in (self._ends if name.endswith(".py") else self.modules)
            else:
                parts = name.split(".")
                is_old = any("/".join(parts[:count]) in self.modules for count in range(2, len(parts) + 1))
            found |= {name} if is_old else set()
        return found


def ends_of(paths: Iterable[str]) -> set[str]:
    """The ends of paths: of ``a/b/c`` itself, ``b/c`` and ``c``."""
    return {"/".join(path.split("/")[count:]) for path in paths for count in range(path.count("/") + 1)}


def texts(*suffixes: str) -> Iterator[Path]:
    """The files of the checkout in which old names are looked for."""
    for name in CHECKED:
        place = CHECKOUT / name
        yield from (path for path in place.rglob("*") if path.suffix in suffixes) if place.is_dir() else (place,)


def test_old_names_are_seen() -> None:
    old = OldNames("# head\nnkilib/core: gone\nnkilib: gone_too\n\nGoneClass\n")
    seen = old.in_text("core/gone.py, nkilib/core/gone, nkilib.core.gone.name and nkilib.gone_too; gone.py, GoneClass")
    assert seen == {
        "gone.py",
        "core/gone.py",
        "nkilib/core/gone",
        "nkilib.core.gone.name",
        "nkilib.gone_too",
        "GoneClass",
    }
    assert old.in_text("gone/core.py, nkilib.core.gone_by, nkilib/core/going.py, other/gone.py, GoneClasses") == set()


def test_no_text_has_an_old_name() -> None:
    old = OldNames(OLD_NAMES.read_text(encoding="utf-8"))
    assert len(old.modules) > 100
    own = {OLD_NAMES, Path(__file__)}
    read = [path for path in texts(".py", ".md", ".txt", ".json", ".toml") if path not in own]
    found = {str(path.relative_to(CHECKOUT)): old.in_text(path.read_text(encoding="utf-8")) for path in read}
    assert {file: sorted(names) for file, names in found.items() if names} == {}
