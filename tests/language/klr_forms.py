"""What the open NKI front end should have read, built from Python's own syntax tree.

A form is a nested list: `["op", "Add", ["var", "rows"], ["value", 1]]`. `klr_parse.py` makes the same forms from what
the front end wrote, so that equality means that nothing was lost on the way but what `klr_limits.LOSSES` lists.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterable
from typing import Any, Final

Form = list[Any]

_OPERATORS: Final = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.FloorDiv: "Floor",
    ast.Mod: "Mod",
    ast.Pow: "Pow",
    ast.LShift: "Lshift",
    ast.RShift: "Rshift",
    ast.BitAnd: "And",
    ast.BitOr: "Or",
    ast.BitXor: "Xor",
    ast.And: "Land",
    ast.Or: "Lor",
    ast.Eq: "Eq",
    ast.NotEq: "Ne",
    ast.Lt: "Lt",
    ast.LtE: "Le",
    ast.Gt: "Gt",
    ast.GtE: "Ge",
}


class NotReadError(Exception):
    """The front end has no form for an expression or a statement."""


def value_form(value: Any) -> Form:
    """The form of a constant; numbers with a point are float32 there."""
    if isinstance(value, float):
        return ["value", "float32", struct.pack(">f", value).hex()]
    return ["value", type(value).__name__, "..." if value is ... else value]


def expression(node: ast.expr) -> Form:
    """The form of an expression.

    Raises:
        NotReadError: if there is none.
    """
    match node:
        case ast.Constant() if node.value != "":
            return value_form(node.value)
        case ast.Name():
            return ["var", node.id]
        case ast.Attribute():
            base = expression(node.value)
            return ["var", f"{base[1]}.{node.attr}"] if base[0] == "var" else ["proj", base, node.attr]
        case ast.Tuple() | ast.List() if node.elts:
            return ["tuple", *map(expression, node.elts)]
        case ast.Subscript():
            return ["access", expression(node.value), *_indices(node.slice)]
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            return ["op", _OPERATORS[type(op)], expression(node.left), expression(node.right)]
        case ast.BoolOp(values=[left, right]):
            return ["op", _OPERATORS[type(node.op)], expression(left), expression(right)]
        case ast.Compare(ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return ["op", _OPERATORS[type(op)], expression(node.left), expression(right)]
        case ast.IfExp():
            return ["if", expression(node.test), expression(node.body), expression(node.orelse)]
        case ast.Call():
            return _call(node)
    raise NotReadError(f"line {node.lineno}: klr-lang has no form for {ast.unparse(node)}")


def _call(node: ast.Call) -> Form:
    return ["call", expression(node.func), _all_or_none(node.args), _keywords(node.keywords)]


def _all_or_none(nodes: list[ast.expr]) -> list[Form]:
    """The arguments, or none of them where one is an f-string: see klr_limits.LOSSES."""
    try:
        return [expression(node) for node in nodes]
    except NotReadError:
        if any(_holds_fstring(node) for node in nodes):
            return []
        raise


def _keywords(keywords: list[ast.keyword]) -> list[list[Any]]:
    values = _all_or_none([keyword.value for keyword in keywords])
    return [[keyword.arg, value] for keyword, value in zip(keywords, values, strict=False)]


def _holds_fstring(node: ast.expr) -> bool:
    return any(isinstance(part, ast.JoinedStr) for part in ast.walk(node))


def _indices(node: ast.expr) -> list[Form]:
    if isinstance(node, ast.Slice):
        return [["slice", *(part and expression(part) for part in (node.lower, node.upper, node.step))]]
    if isinstance(node, (ast.Tuple, ast.List)):
        return [index for item in node.elts for index in _indices(item)]
    return [["at", expression(node)]]


def body(statements: Iterable[ast.stmt]) -> list[Form]:
    """The forms of a block.

    Raises:
        NotReadError: if a statement has none.
    """
    return [form for statement in statements for form in _statement(statement)]


def _statement(node: ast.stmt) -> list[Form]:
    match node:
        case ast.Pass():
            return []
        case ast.Expr():
            return [["do", expression(node.value)]]
        case ast.Assert():
            return [["assert", expression(node.test)]]
        case ast.Return(value=ast.expr() as value):
            return [["return", expression(value)]]
        case ast.Assign(targets=[first, *others]):
            target = expression(first)
            again = [["assign", expression(other), target] for other in others]
            return [["assign", target, expression(node.value)], *again]
        case ast.AnnAssign():
            return [["assign", expression(node.target), node.value and expression(node.value)]]
        case ast.If():
            return [["branch", expression(node.test), body(node.body), body(node.orelse)]]
        case ast.For(orelse=[]):
            return [["for", expression(node.target), expression(node.iter), body(node.body)]]
        case ast.Break():
            return [["break"]]
        case ast.Continue():
            return [["continue"]]
    raise NotReadError(f"line {node.lineno}: klr-lang has no form for the statement {type(node).__name__}")


def function_form(node: ast.FunctionDef) -> dict[str, Any]:
    """Parameters and body of a function.

    Raises:
        NotReadError: if something in it has no form.
    """
    return {"parameters": [argument.arg for argument in node.args.args], "body": body(node.body)}
