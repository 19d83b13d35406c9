"""What klr-lang 0.0.12 does not read though NKI 0.6 has it.

`OBSTACLES` keep it from reading a kernel at all: ours keep clear of them. `LOSSES` it leaves out without a word, and
the rest of the kernel is read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Obstacle:
    """A construct of NKI 0.6 that klr-lang 0.0.12 cannot read.

    Attributes:
        name: what it is called.
        found: whether a node is one.
        behaviour: what the front end does on it, with its own words where it has any.
        instead: what kernels write.
        example: a kernel with it.
        outcome: "refused", with the front end's words; or "crash", where it writes out positions that it never set, so
            that what happens depends on what was in memory.
    """

    name: str
    found: Callable[[ast.AST], bool]
    behaviour: str
    instead: str
    example: str
    outcome: str


def _is(*types: type[ast.AST]) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, types)


def _compares(*operators: type[ast.cmpop]) -> Callable[[ast.AST], bool]:
    return lambda node: isinstance(node, ast.Compare) and any(isinstance(op, operators) for op in node.ops)


def _is_empty_sequence(node: ast.AST) -> bool:
    return isinstance(node, (ast.List, ast.Tuple)) and not node.elts


_NO_FUNCTION: Final = "RuntimeError: Unable to fetch NKI function from Python Environment"
_UNSET: Final = "crashes on it when it writes the kernel out, or not, as memory has it"

OBSTACLES: Final = (
    Obstacle(
        "is",
        _compares(ast.Is, ast.IsNot),
        "RuntimeError: the is operator is not supported in NKI, use ==",
        "== (the documentation asks for it as well, since NKI 0.3.0)",
        "def kernel(value):\n    return value is None\n",
        "refused",
    ),
    Obstacle(
        "in",
        _compares(ast.In, ast.NotIn),
        "RuntimeError: the in operator is not supported in NKI",
        "comparisons joined by or",
        "def kernel(value):\n    return value in (1, 2)\n",
        "refused",
    ),
    Obstacle(
        "a chained comparison",
        lambda node: isinstance(node, ast.Compare) and len(node.ops) > 1,
        "takes a < b < c for a < (b < c), and " + _UNSET,
        "two comparisons joined by and",
        "def kernel(value):\n    return 0 < value < 3\n",
        "crash",
    ),
    Obstacle(
        "and or or with three parts",
        lambda node: isinstance(node, ast.BoolOp) and len(node.values) > 2,
        _UNSET,
        "parentheses around two of them, or several asserts",
        "def kernel(value):\n    return value > 1 and value < 5 and value != 3\n",
        "crash",
    ),
    Obstacle(
        "a unary operator",
        _is(ast.UnaryOp),
        _UNSET,
        "a constant of the module, a subtraction, or the other comparison",
        "def kernel(value):\n    return -value\n",
        "crash",
    ),
    Obstacle(
        "augmented assignment",
        _is(ast.AugAssign),
        _UNSET,
        "x = x + 1",
        "def kernel(value):\n    value += 1\n    return value\n",
        "crash",
    ),
    Obstacle(
        "while",
        _is(ast.While),
        _NO_FUNCTION,
        "a for loop over a range",
        "def kernel(value):\n    while value > 1:\n        value = value // 2\n    return value\n",
        "refused",
    ),
    Obstacle(
        "with nl.no_reorder()",
        _is(ast.With),
        _NO_FUNCTION,
        "depends_on",
        "def kernel(value):\n    with nl.no_reorder():\n        print(value)\n    return value\n",
        "refused",
    ),
    Obstacle(
        "return without a value",
        lambda node: isinstance(node, ast.Return) and node.value is None,
        _NO_FUNCTION,
        "return None",
        "def kernel(value):\n    return\n",
        "refused",
    ),
    Obstacle(
        "an empty list or tuple",
        _is_empty_sequence,
        _NO_FUNCTION,
        "list(), tuple()",
        "def kernel(value):\n    items = []\n    return items\n",
        "refused",
    ),
    Obstacle(
        "a dict in braces",
        _is(ast.Dict),
        _NO_FUNCTION,
        "dict(), and an assignment to each item",
        "def kernel(value):\n    items = {'rows': value}\n    return items\n",
        "refused",
    ),
    Obstacle(
        "an empty string",
        lambda node: isinstance(node, ast.Constant) and node.value == "",
        _NO_FUNCTION,
        "no string at all",
        "def kernel(value):\n    name = ''\n    return name\n",
        "refused",
    ),
    Obstacle(
        "a nested function",
        _is(ast.FunctionDef),
        _NO_FUNCTION,
        "a function of the module",
        "def kernel(value):\n    def body(index):\n        return index\n    return nl.fori_loop(0, value, body)\n",
        "refused",
    ),
    Obstacle(
        "an f-string outside of arguments and messages of asserts",
        lambda node: isinstance(node, (ast.Assign, ast.Return)) and isinstance(node.value, ast.JoinedStr),
        _NO_FUNCTION,
        "the f-string where it is used",
        "def kernel(value):\n    text = f'{value}'\n    return text\n",
        "refused",
    ),
)


@dataclass(frozen=True)
class Loss:
    """What the front end leaves out without a word.

    Attributes:
        name: what it is called.
        reason: why, as far as its sources tell.
        written: a kernel with it.
        read: a kernel whose forms are what is read of it.
    """

    name: str
    reason: str
    written: str
    read: str


LOSSES: Final = (
    Loss(
        "the message of an assert",
        "it keeps the condition only (gather.c, Assert_kind)",
        "def kernel(value):\n    assert value, f'kernel: {value}'\n    return value\n",
        "def kernel(value):\n    assert value\n    return value\n",
    ),
    Loss(
        "the arguments next to an f-string",
        "it has no f-strings, and drops a list of expressions of which it cannot read one (gather.c, exprs)",
        "def kernel(value):\n    print(value, f'{value}')\n    return value\n",
        "def kernel(value):\n    print()\n    return value\n",
    ),
    Loss(
        "the keyword arguments next to an f-string",
        "it has no f-strings, and drops a list of keywords of which it cannot read one (gather.c, keywords)",
        "def kernel(value):\n    nisa.memset(dst=value, value=0, name=f'{value}')\n    return value\n",
        "def kernel(value):\n    nisa.memset()\n    return value\n",
    ),
    Loss(
        "defaults of parameters",
        "a fault that a comment in its sources knows (gather.c, args): every argument is given to specialize",
        "def kernel(value=3):\n    return value\n",
        "def kernel(value):\n    return value\n",
    ),
    Loss(
        "annotations and decorators",
        "the compiler has no use for them",
        "@nki.jit\ndef kernel(value: int | None) -> tuple[int, int]:\n    return value\n",
        "def kernel(value):\n    return value\n",
    ),
)


def obstacles_in(function: ast.FunctionDef) -> Iterator[tuple[int, Obstacle]]:
    """Line and obstacle, for each in the body of a function; messages of asserts are not read by anyone."""
    for statement in function.body:
        yield from _obstacles(statement)


def _obstacles(node: ast.AST) -> Iterator[tuple[int, Obstacle]]:
    for obstacle in OBSTACLES:
        if obstacle.found(node):
            yield getattr(node, "lineno", 0), obstacle
    children = [node.test] if isinstance(node, ast.Assert) else ast.iter_child_nodes(node)
    for child in children:
        yield from _obstacles(child)
