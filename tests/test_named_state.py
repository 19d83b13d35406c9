# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How the code of kernels is written, read from its syntax: state has names, types are said, and checks stay under -O.

Traced: nkilib/core and nkilib/experimental but for their folders `host`, which hold arithmetic and numpy, and the rows
of losses, which hold data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fresh_python import CHECKOUT

PACKAGE = CHECKOUT / "nkilib"
KERNELS = [*sorted((PACKAGE / "core").rglob("*.py")), *sorted((PACKAGE / "experimental").rglob("*.py"))]
TRACED = [path for path in KERNELS if "host" not in path.relative_to(PACKAGE).parts and path.name != "row.py"]
WRAPPERS = [*sorted((PACKAGE / "torch").rglob("*.py")), *sorted((PACKAGE / "jax").rglob("*.py"))]
OTHERS = sorted({*PACKAGE.rglob("*.py")} - {*KERNELS, *WRAPPERS})

# A rule finds what breaks it in a module.
Rule = Callable[[ast.Module], Iterator[ast.AST]]


def annotated(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the annotations of parameters, results, fields and variables; those in quotes are read too."""
    for node in ast.walk(module):
        results: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            results = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            results = [node.annotation]
        for annotation in results:
            if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
                yield ast.copy_location(ast.parse(annotation.value, mode="eval").body, annotation)
            elif annotation is not None:
                yield annotation


def aliases(module: ast.Module) -> Iterator[ast.expr]:
    """Yield the values that names of a module stand for: `Pair = tuple[A, B]` is an annotation elsewhere."""
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Subscript | ast.Name):
            yield node.value


def anonymous_tuples(module: ast.Module) -> Iterator[ast.AST]:
    """`tuple[A, B, C]`: what each of more than two items is has to be remembered by whoever reads it."""
    for annotation in (*annotated(module), *aliases(module)):
        for node in ast.walk(annotation):
            if (
                isinstance(node, ast.Subscript)
                and ast.unparse(node.value) in ("tuple", "Tuple", "typing.Tuple")
                and isinstance(node.slice, ast.Tuple)
                and len(node.slice.elts) > 2
            ):
                yield node


def unknown_types(module: ast.Module) -> Iterator[ast.AST]:
    """`Any` and `object`: nothing that is done with such a value is checked."""
    for annotation in (*annotated(module), *aliases(module)):
        for node in ast.walk(annotation):
            if ast.unparse(node) in ("Any", "typing.Any", "object"):
                yield node


def missing_types(module: ast.Module) -> Iterator[ast.AST]:
    """A parameter without a type is `Any` by another name; `self` and `cls` have theirs."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inputs = node.args
            every = [*inputs.posonlyargs, *inputs.args, *inputs.kwonlyargs, inputs.vararg, inputs.kwarg]
            for parameter in every:
                if parameter is not None and parameter.annotation is None and parameter.arg not in ("self", "cls"):
                    yield parameter
            if node.returns is None:
                yield node


def evasions(module: ast.Module) -> Iterator[ast.AST]:
    """`typing.cast`, which nobody checks."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "typing"
            and any(name.name == "cast" for name in node.names)
        ):
            yield node
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "typing.cast":
            yield node


def lookups_by_string(module: ast.Module) -> Iterator[ast.AST]:
    """`options["..."]`: a field of a dataclass is checked, a key is not. `Literal["..."]` is a type."""
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
            and ast.unparse(node.value) != "Literal"
        ):
            yield node


def comparisons_with_none(module: ast.Module) -> Iterator[ast.AST]:
    """`== None`, which kernels for NKI before 0.7 needed."""
    for node in ast.walk(module):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for op, *pair in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(op, ast.Eq | ast.NotEq) and any(
                    isinstance(side, ast.Constant) and side.value is None for side in pair
                ):
                    yield node


def asserts(module: ast.Module) -> Iterator[ast.AST]:
    """`assert`, which `python -O` drops."""
    return (node for node in ast.walk(module) if isinstance(node, ast.Assert))


def asserts_of_input(module: ast.Module) -> Iterator[ast.AST]:
    """Asserts that do more than tell a type checker what is known: those say `is not None`, `isinstance`, a flag."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assert):
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
            if node.msg is not None or not all(_narrows(part) for part in parts):
                yield node


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.Call):
        return ast.unparse(test.func) == "isinstance"
    if isinstance(test, ast.Compare):
        return isinstance(test.ops[0], ast.IsNot) and ast.unparse(test.comparators[0]) == "None"
    return isinstance(test, ast.Attribute) and test.attr.startswith("is_")


RULES: list[tuple[Rule, list[Path]]] = [
    (anonymous_tuples, KERNELS),
    (unknown_types, TRACED),
    (missing_types, KERNELS),
    (evasions, TRACED),
    (lookups_by_string, TRACED),
    (comparisons_with_none, KERNELS),
    (asserts, [*KERNELS, *WRAPPERS]),
    (asserts_of_input, OTHERS),
]
# What each rule has to find, and what it has to let pass.
BROKEN: dict[Rule, str] = {
    anonymous_tuples: "def f(x: tuple[int, str, float] | None) -> int: ...",
    unknown_types: "class A:\n    x: dict[str, Any]",
    missing_types: "def f(x, *, y: int) -> int: ...",
    evasions: "from typing import Final, cast",
    lookups_by_string: "def f(x: A) -> int:\n    return x['key']",
    comparisons_with_none: "a = b == None",
    asserts: "def f() -> None:\n    assert x is not None",
    asserts_of_input: "assert value > 0",
}
KEPT: dict[Rule, str] = {
    anonymous_tuples: "def f(x: tuple[int, str]) -> tuple[int, ...]: ...",
    unknown_types: "class A:\n    x: dict[str, int]",
    missing_types: "class A:\n    def f(self, x: int) -> None: ...",
    evasions: "from nkilib.core.rows.tiles import cast",
    lookups_by_string: "def f(x: A) -> int:\n    return x[0]",
    comparisons_with_none: "a = b is None",
    asserts: "require(x is not None, 'x')",
    asserts_of_input: "assert value is not None and isinstance(value.of, View)",
}


def places(rule: Rule, paths: list[Path]) -> list[str]:
    """Where files break a rule."""
    return [
        f"{path.relative_to(CHECKOUT)}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        for path in paths
        for node in rule(ast.parse(path.read_text(encoding="utf-8")))
    ]


@pytest.mark.parametrize(("rule", "paths"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_rule_is_kept(rule: Rule, paths: list[Path]) -> None:
    assert len(paths) > 10
    assert places(rule, paths) == []


@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
def test_a_rule_finds_what_breaks_it(rule: Rule) -> None:
    assert list(rule(ast.parse(BROKEN[rule])))
    assert not list(rule(ast.parse(KEPT[rule])))


def test_no_warning_is_silenced() -> None:
    """Complaints of ruff and mypy about traced code are mended; an import may be there for its effect alone."""
    silencing = re.compile(r"noqa(?!: F401$)|type: ignore", re.MULTILINE)
    assert [path for path in TRACED if silencing.search(path.read_text(encoding="utf-8"))] == []


def test_the_syntax_of_annotations_is_read_where_it_stands_in_quotes() -> None:
    module = ast.parse("def f(x: 'tuple[int, str, float]') -> 'Any': ...")
    assert len(list(anonymous_tuples(module))) == 1
    assert len(list(unknown_types(module))) == 1
