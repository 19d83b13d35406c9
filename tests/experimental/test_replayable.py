# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The public kernels are replayable: all functions that they may call read only arguments, constants and options."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, ModuleType, WrapperDescriptorType
from typing import Any, Final

import nkilib
from nkilib.base.statements import is_replayable
from nkilib.experimental.public_kernels import public_kernels

OURS: Final = (__file__, *(str(Path(nkilib.__file__).parent / name) for name in ("base", "core", "experimental")))
# What these read are arguments and the options in force, which are in the key of a launch.
PURE = re.compile(r"(_operator|_struct|builtins|collections|dataclasses|enum|functools|itertools|math|nkilib|typing)\b")
IMPURE: Final = {breakpoint, compile, eval, exec, globals, input, locals, open, print, __import__}
CONSTANTS: Final = (type(None), int, float, str, range, Enum, WrapperDescriptorType)
METHODS: Final = {*dir(dict), *dir(list), *dir(set)} - {
    *dir(tuple),
    *dir(frozenset),
    *dir(MappingProxyType),
    "fromkeys",
}
EXEMPT: Final = "nkilib.core.plan_limits.limits_in_force: _in_force"  # while it is changed, nothing is replayed


def changed_in_functions(tree: ast.AST) -> Iterator[str]:
    """Yield the names whose items or attributes a function changes without making them; with a dot for attributes."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)):
        inner = [*ast.walk(function)]
        made = {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        made |= {argument.arg for argument in inner if isinstance(argument, ast.arg)}
        for node in inner:
            target: ast.AST | None = None
            if isinstance(node, ast.Global):
                yield from node.names
            elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                target = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
                target = node.func.value
            if isinstance(target, ast.Attribute):
                yield f".{target.attr}"
            elif isinstance(target, ast.Name) and target.id not in made:
                yield target.id


@functools.cache
def changed() -> frozenset[str]:
    files = [Path(__file__), *(file for folder in OURS for file in Path(folder).rglob("*.py"))]
    return frozenset(name for file in files for name in changed_in_functions(ast.parse(file.read_text("utf-8"))))


class Examined:
    """The values that some functions read; ``findings`` says which of them may change."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self.findings: set[str] = set()
        self.seen: dict[int, Any] = {}
        for name, function in functions.items():
            self.add(function, name)

    def add(self, value: Any, where: str) -> None:
        if id(value) in self.seen or isinstance(value, CONSTANTS):
            return
        self.seen[id(value)] = value
        name, is_table = where.split()[-1], isinstance(value, dict | list | set)
        if where != EXEMPT and ((is_table and f".{name}" in changed()) or name in changed()):
            self.findings.add(f"{where} is changed by a function")
        inner = [getattr(value, name) for name in ("__wrapped__", "__func__", "fget", "func") if hasattr(value, name)]
        if inner and not isinstance(value, type):
            self.add(inner[0], where)
        elif isinstance(value, FunctionType) and value.__code__.co_filename.startswith(OURS):
            self._add_function(value)
        elif isinstance(value, FunctionType | BuiltinFunctionType | type | ModuleType):
            self._add_named(value, where)
        elif isinstance(value, tuple | frozenset | MappingProxyType | dict | list | set):
            for item in (*value, *value.values()) if isinstance(value, Mapping) else value:
                self.add(item, where)
        elif is_dataclass(value) and type(value).__dataclass_params__.frozen:  # type: ignore[attr-defined]
            self.add(type(value), where)
            for field in fields(value):
                self.add(getattr(value, field.name), f"{where}. {field.name}")
        elif not type(value).__module__.startswith("nkilib.simulator."):
            self.findings.add(f"{where} is a {type(value).__name__}")

    def _add_named(self, value: Any, where: str) -> None:
        module = value.__name__ if isinstance(value, ModuleType) else value.__module__ or "builtins"
        if not PURE.match(module) or (isinstance(value, BuiltinFunctionType) and value in IMPURE):
            self.findings.add(f"{where} is of {module}")
        elif isinstance(value, type) and module.startswith("nkilib.") and not module.startswith("nkilib.simulator."):
            for name, item in vars(value).items():
                if isinstance(item, FunctionType | property) or not (name[:2] == "__" or hasattr(item, "__set__")):
                    self.add(item, f"{value.__qualname__}. {name}")
            for base in value.__bases__:
                self.add(base, where)

    def _add_function(self, function: FunctionType) -> None:
        where = f"{function.__module__}.{function.__name__}"
        self.add((function.__defaults__, function.__kwdefaults__), f"{where}: defaults")
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.add(cell.cell_contents, f"{where}: {name}")
        self._add_code(function.__code__, function.__globals__, where)

    def _add_code(self, code: CodeType, scope: Mapping[str, Any], where: str) -> None:
        value: Any = None
        for instruction in dis.get_instructions(code):
            name, kind = instruction.argval, instruction.opname
            if kind == "LOAD_GLOBAL":
                value = scope[name] if name in scope else vars(builtins).get(name)
            elif kind in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(value, ModuleType):
                value = getattr(value, name)
            else:
                value = None
            if kind in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
                self.findings.add(f"{where} has {kind} {name}")
            self.add(value, f"{where}: {name}")
        for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
            self._add_code(inner, scope, where)


def test_the_public_kernels_are_replayable_and_read_nothing_that_changes() -> None:
    functions = {name: vars(kernel)["func"] for name, kernel in public_kernels().items()}
    assert [name for name, function in functions.items() if not is_replayable(function)] == []
    examined = Examined(functions)
    assert examined.findings == set() and len(examined.seen) > 2000


def wrong() -> Any:
    global PURE
    Path.drive, IMPURE["a"], PURE = 1, 2, METHODS.add("")  # type: ignore
    return [os.getcwd() for _ in METHODS] or os.environ, print(Path), lambda: IMPURE


def test_what_may_change_is_found() -> None:
    found = {finding.removeprefix(f"{__name__}.wrong") for finding in Examined({"wrong": wrong}).findings}
    changes = {f": {name} is changed by a function" for name in ("IMPURE", "METHODS", "Path")}
    modules = {"builtins", open.__module__}  # which differs between versions of Python, as that of Path does
    reads = {*(f": IMPURE is of {name}" for name in modules), f": Path is of {Path.__module__}"}
    reads |= {": environ is a _Environ"}
    assert found == {" has STORE_GLOBAL PURE", ": os is of os", ": getcwd is of posix"} | changes | reads
