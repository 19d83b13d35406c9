# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every test asserts something: itself, or by a helper of the tests whose name says so."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent

# What raises where a test fails, besides `assert` and the functions of `np.testing` and `torch.testing`.
RAISING = {"pytest.raises", "pytest.warns", "pytest.fail", "pytest.deprecated_call", "torch.library.opcheck"}
# How the names of helpers start that a test may leave its assertions to.
VERBS = re.compile(r"_*(check|assert|expect|refuse)")

# Tests that assert nothing, as `file.py::test`, and why not.
EXCEPTIONS: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """The functions of files, and which of them assert.

    Attributes:
        functions: by file: its functions by name, those inside others too.
        imported: by file: the file that a name is imported from.
        methods: by name: the functions of all files, since an attribute does not say whose method it is.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        """Read files, given by their paths below the folder of tests."""
        self.functions: dict[str, dict[str, Function]] = {}
        self.imported: dict[str, dict[str, str]] = {}
        self.methods: dict[str, list[tuple[str, Function]]] = defaultdict(list)
        self._asserting: dict[tuple[str, int], bool] = {}
        for path, source in sources.items():
            nodes = list(ast.walk(ast.parse(source)))
            self.functions[path] = {node.name: node for node in nodes if isinstance(node, Function)}
            imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
            self.imported[path] = {name.name: imported_file(path, node) for node in imports for name in node.names}
            for name, function in self.functions[path].items():
                self.methods[name].append((path, function))

    def found(self, path: str, called: ast.expr) -> list[tuple[str, Function]]:
        """The functions that a call may be of, with their files."""
        if isinstance(called, ast.Attribute):
            return self.methods[called.attr] if VERBS.match(called.attr) else []
        name = called.id if isinstance(called, ast.Name) else ""
        file = path if name in self.functions[path] else self.imported[path].get(name, "")
        return [(file, self.functions[file][name])] if name in self.functions.get(file, {}) else []

    def asserts(self, path: str, function: Function) -> bool:
        """Whether a function has an assertion, or calls one that has."""
        key = path, function.lineno
        if key not in self._asserting:
            self._asserting[key] = False  # for functions that call each other
            self._asserting[key] = asserts_itself(function) or any(
                self.asserts(*one) for called in calls_of(function) for one in self.found(path, called)
            )
        return self._asserting[key]

    def silent_tests(self) -> list[str]:
        """The tests that assert nothing, nor call a helper that does and says so, as `file.py::test`."""
        return [
            f"{path}::{name}"
            for path, functions in self.functions.items()
            for name, function in functions.items()
            if name.startswith("test_") and not asserts_itself(function) and not self._checks(path, function)
        ]

    def _checks(self, path: str, test: Function) -> bool:
        helpers = [one for called in calls_of(test) for one in self.found(path, called)]
        return any(VERBS.match(function.name) and self.asserts(file, function) for file, function in helpers)


def imported_file(path: str, node: ast.ImportFrom) -> str:
    """The file, below the folder of tests, that a statement in another one imports names from."""
    folders = path.split("/")[: -node.level] if node.level else []
    return "/".join([*folders, *(node.module or "").removeprefix("tests.").split(".")]) + ".py"


def calls_of(function: Function) -> list[ast.expr]:
    """Return the expressions that a function calls."""
    return [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]


def asserts_itself(function: Function) -> bool:
    """Whether a function has an assertion of its own."""
    if any(isinstance(node, ast.Assert) for node in ast.walk(function)):
        return True
    called = (ast.unparse(expression) for expression in calls_of(function))
    return any(name in RAISING or ".testing." in name for name in called)


def test_every_test_asserts_something() -> None:
    sources = {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}
    assert sorted(Sources(sources).silent_tests()) == sorted(EXCEPTIONS)


def test_a_test_without_an_assertion_is_found() -> None:
    helpers = "def one(x):\n    assert x\ndef check_all(x):\n    one(x)\ndef check_nothing(x):\n    print(x)\n"
    silent = "from .helpers import *\nfrom .helpers import check_nothing, one\n"
    silent += "def test_one():\n    check_nothing(1)\ndef test_two():\n    one(1)\n"
    right = "from ..unit.helpers import check_all\ndef test_three():\n    check_all(1)\n"
    right += "def test_four():\n    with pytest.raises(ValueError):\n        fail()\n"
    sources = Sources({"unit/helpers.py": helpers, "unit/test_silent.py": silent, "other/test_right.py": right})
    assert sources.silent_tests() == ["unit/test_silent.py::test_one", "unit/test_silent.py::test_two"]
