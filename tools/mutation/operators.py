# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Changes of a source text. Each mutation changes one operator, comparison, constant or condition.

Annotations, decorators, f-strings, ``__all__``, code for type checkers and ``strict`` of ``zip`` are never changed,
because hardly any run can detect a change of them. A changed expression keeps its number of lines, so that the code
after it keeps its line numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_LARGEST_CONSTANT = 128
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Where nothing is changed: fields of nodes, by the type of the node.
_LEFT_OUT: dict[type[ast.AST], frozenset[str]] = {
    ast.AnnAssign: frozenset({"annotation"}),
    ast.arg: frozenset({"annotation"}),
    ast.FunctionDef: frozenset({"decorator_list", "returns"}),
    ast.ClassDef: frozenset({"decorator_list"}),
    ast.JoinedStr: frozenset({"values"}),
}
# Replaces an expression to see whether a test evaluates it.
RAISES = "(1 // 0)"


@dataclass(frozen=True)
class Mutation:
    """A change of one source.

    Attributes:
        line: the number of the first line of the changed expression, from 1.
        before, after: the expression before and after the change, on one line.
        start, end: the offsets of the expression in the bytes of the source.
        lines: the number of line breaks within the expression.
    """

    line: int
    before: str
    after: str
    start: int
    end: int
    lines: int

    def applied(self, source: str) -> str:
        """Return the changed source."""
        return self._replaced(source, f"({self.after}" + "\n" * self.lines + ")")

    def raising(self, source: str) -> str:
        """Return the source with the expression replaced by one that raises ZeroDivisionError."""
        return self._replaced(source, RAISES[:-1] + "\n" * self.lines + ")")

    def _replaced(self, source: str, text: str) -> str:
        data = source.encode()
        return (data[: self.start] + text.encode() + data[self.end :]).decode()


def mutations_of(source: str) -> list[Mutation]:
    """Return all mutations of a source, in the order of their places."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    results = []
    for node, after in _changes(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        before, rows = ast.unparse(node), node.end_lineno - node.lineno
        results.append(Mutation(node.lineno, before, after, start, end, rows))
    return sorted(results, key=lambda item: (item.start, item.end, item.after))


def _changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield each expression that can be changed, with its replacement."""
    if isinstance(tree, ast.Assign) and ast.unparse(tree.targets[0]) == "__all__":
        return
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    left_out = _LEFT_OUT.get(type(tree), frozenset())
    if isinstance(tree, ast.If | ast.While | ast.IfExp):
        yield tree.test, f"not ({ast.unparse(tree.test)})"
    if isinstance(tree, ast.expr):
        for after in _changed(tree):
            yield tree, after
    for name, value in ast.iter_fields(tree):
        if name in left_out:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not (isinstance(child, ast.keyword) and child.arg == "strict"):
                yield from _changes(child)


def _changed(node: ast.expr) -> Iterator[str]:
    """Yield the replacements of an expression that change the expression itself, not its parts."""
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            other = [*node.ops[:place], _COMPARISONS[type(operator)](), *node.ops[place + 1 :]]
            yield ast.unparse(ast.Compare(node.left, other, node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield ast.unparse(ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right))
    elif isinstance(node, ast.BoolOp):
        yield ast.unparse(ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield repr(not value)
        elif isinstance(value, int | float) and abs(value) <= _LARGEST_CONSTANT:
            yield repr(value + 1)
