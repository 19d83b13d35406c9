"""Where a function or a class is defined, and its syntax tree."""

from __future__ import annotations

import ast
import inspect
import tokenize
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType


@dataclass(frozen=True)
class Definition:
    """A `def` in a file.

    Attributes:
        file: path of the file.
        node: the statement, with the line numbers of the file.
    """

    file: str
    node: ast.FunctionDef


@dataclass(frozen=True)
class ClassDefinition:
    """A `class` in a file.

    Attributes:
        file: path of the file.
        node: the statement, with the line numbers of the file.
    """

    file: str
    node: ast.ClassDef


@lru_cache(maxsize=64)
def _tree(file: str) -> ast.Module:
    with tokenize.open(file) as text:
        return ast.parse(text.read(), filename=file)


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    """The line of the first decorator, as in code objects, or of the def itself."""
    return min((decorator.lineno for decorator in node.decorator_list), default=node.lineno)


def definition_of(function: FunctionType) -> Definition | None:
    """The `def` statement of a function, or None where no file has one (of a lambda, a generated method)."""
    try:
        file = inspect.getsourcefile(function)
        tree = _tree(file) if file else None
    except (OSError, TypeError):
        return None
    for node in ast.walk(tree) if tree else ():
        if not isinstance(node, ast.FunctionDef) or node.name != function.__code__.co_name:
            continue
        if _first_line(node) == function.__code__.co_firstlineno:
            return Definition(file or "", node)
    return None


def class_definition_of(cls: type) -> ClassDefinition | None:
    """The `class` statement of a class, or None where no file has one."""
    try:
        file = inspect.getsourcefile(cls)
        line = inspect.getsourcelines(cls)[1]
        tree = _tree(file) if file else None
    except (OSError, TypeError):
        return None
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__ and line in (node.lineno, _first_line(node)):
            return ClassDefinition(file or "", node)
    return None
