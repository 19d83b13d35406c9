"""Has the open NKI front end (klr-lang) read a kernel, and prints what it read as JSON.

Usage: ``python -m tests.language.klr_parse <module> <kernel>``. The front end can crash, and is to see the kernel as on
hardware: `child.run` runs it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import struct
import sys
import tempfile
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import klr.ast_nki  # the front end's deserialize looks it up, but does not import it
import klr.frontend

from tests.language.names import KERNEL_TYPE
from tests.language.walker import function_of
from tests.language.worklist import may_hold_kernels

PREFIX: Final = "read_by_klr."


def rename_own_functions() -> None:
    """Give nkilib's functions modules of another name: the front end takes every function of `nki...` for the API."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "nkilib" and may_hold_kernels(name):
            for value in vars(module).values():
                function = value.func if isinstance(value, KERNEL_TYPE) else value
                if isinstance(function, FunctionType) and function.__module__ == name:
                    function.__module__ = PREFIX + name


def arguments_for(function: FunctionType) -> dict[str, Any]:
    """An argument for each parameter: its default, or its name, since the front end takes no tensors.

    Defaults have to be given as well: the front end loses them.
    """
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.name if each.default is each.empty else each.default for each in parameters}


def read(function: FunctionType) -> Any:
    """What the front end wrote, read back: a `klr.ast_nki.Kernel`.

    Raises:
        SyntaxError, RuntimeError, ValueError: if the front end refuses the kernel, with its own words.
    """
    kernel = klr.frontend.Kernel(function)
    kernel.specialize(**arguments_for(function))
    with tempfile.TemporaryDirectory() as directory:
        # What serialize returns names the file, and deserialize opens it.
        return klr.frontend.deserialize(kernel.serialize(str(Path(directory) / "kernel.klr")))


def form(node: Any) -> Any:
    """A form as in `klr_forms.py`, from a node of `klr.ast_nki`."""
    kind = type(node).__name__
    match kind:
        case "Expr":
            return form(node.expr)
        case "Stmt":
            return form(node.stmt)
        case "Expr_value":
            return _value(node.value)
        case "Expr_var":
            return ["var", node.name]
        case "Expr_proj":
            return ["proj", form(node.expr), node.name]
        case "Expr_tuple":
            return ["tuple", *map(form, node.elements)]
        case "Expr_access":
            return ["access", form(node.expr), *map(form, node.indices)]
        case "Expr_binOp":
            return ["op", node.op.name, form(node.left), form(node.right)]
        case "Expr_ifExp":
            return ["if", form(node.test), form(node.body), form(node.orelse)]
        case "Expr_call":
            keywords = [[keyword.name, form(keyword.expr)] for keyword in node.keywords]
            return ["call", form(node.f), [form(each) for each in node.args], keywords]
        case "Index_coord":
            return ["at", form(node.i)]
        case "Index_slice":
            return ["slice", *(part and form(part) for part in (node.l, node.u, node.step))]
    return _statement(kind, node)


def _value(value: Any) -> list[Any]:
    kind = type(value).__name__.removeprefix("Value_")
    match kind:
        case "none":
            return ["value", "NoneType", None]
        case "ellipsis":
            return ["value", "ellipsis", "..."]
        case "float":
            return ["value", "float32", struct.pack(">f", value.value).hex()]
        case "string":
            return ["value", "str", value.value]
    return ["value", kind, value.value]


def _statement(kind: str, node: Any) -> list[Any]:
    match kind:
        case "Stmt_expr":
            return ["do", form(node.e)]
        case "Stmt_assert":
            return ["assert", form(node.e)]
        case "Stmt_ret":
            return ["return", form(node.e)]
        case "Stmt_assign":
            return ["assign", form(node.x), node.e and form(node.e)]
        case "Stmt_ifStm":
            return ["branch", form(node.e), [form(each) for each in node.thn], [form(each) for each in node.els]]
        case "Stmt_forLoop":
            return ["for", form(node.x), form(node.iter), [form(each) for each in node.body]]
        case "Stmt_breakLoop":
            return ["break"]
        case "Stmt_continueLoop":
            return ["continue"]
    raise TypeError(f"klr_parse: no form for {kind}")


def main(module: str, name: str) -> None:
    """Read the kernel `name` of `module`, print the functions and their forms, and end the process."""
    function = function_of(getattr(importlib.import_module(module), name))
    rename_own_functions()
    try:
        kernel = read(function)
    except (SyntaxError, RuntimeError, ValueError) as refusal:
        print(json.dumps({"refused": f"{type(refusal).__name__}: {refusal}"}))
    else:
        functions = {
            each.name.removeprefix(PREFIX): {
                "parameters": [parameter.name for parameter in each.args],
                "body": [form(statement) for statement in each.body],
            }
            for each in kernel.funs
        }
        print(json.dumps({"entry": kernel.entry.removeprefix(PREFIX), "functions": functions}))
    sys.stdout.flush()
    # The front end frees memory that it does not own when its objects go; leave before that.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
