"""Reads one function of a kernel: refuses what is not NKI in it, and finds what it reaches."""

from __future__ import annotations

import ast
import enum
import math
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any, Final

import numpy as np

from tests.language import rules
from tests.language.names import (
    DYNAMIC,
    KERNEL_TYPE,
    UNBOUND,
    ApiValue,
    Scope,
    as_api,
    is_builtin,
    member,
    root_name,
)
from tests.language.report import Refusal
from tests.language.rules import Rule
from tests.language.source import class_definition_of, definition_of
from tests.language.worklist import Worklist

_DEVICE_LOOPS: Final = ("nl.dynamic_range", "nl.fori_loop", "nl.while_loop")


class Reader:
    """Reads one function.

    Args:
        worklist: where refusals and reached functions go.
        function: what to read.
    """

    def __init__(self, worklist: Worklist, function: FunctionType) -> None:
        self._worklist = worklist
        self._function = function
        self._scope = Scope(function)
        self._loop_bodies: set[str] = set()
        self._in_order = False

    def read(self) -> None:
        """Refuse what is not NKI in the function, and put what it reaches on the list."""
        definition = definition_of(self._function)
        if definition is None:
            self._refuse(None, rules.NO_SOURCE, name=self._function.__name__)
            return
        node = definition.node
        self._loop_bodies = self._bodies_of_device_loops(node)
        self._decorators(node)
        self._signature(node.args)
        self._all(node.body)

    def _bodies_of_device_loops(self, function: ast.FunctionDef) -> set[str]:
        """Names handed to `nl.fori_loop` and `nl.while_loop`: the functions that may be nested."""
        names: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and self._scope.api_path(node.func) in _DEVICE_LOOPS:
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                names |= {argument.id for argument in arguments if isinstance(argument, ast.Name)}
        return names

    # Refusing.

    def _refusal(self, node: ast.AST | None, rule: Rule, **details: Any) -> Refusal:
        code = self._function.__code__
        # Reason and source are fixed texts; the construct and the remedy name particulars.
        rule = Rule(rule.construct.format(**details), rule.reason, rule.remedy.format(**details), rule.source)
        line = getattr(node, "lineno", code.co_firstlineno)
        return Refusal(code.co_filename, line, self._function.__qualname__, rule)

    def _refuse(self, node: ast.AST | None, rule: Rule, **details: Any) -> None:
        self._worklist.refuse(self._refusal(node, rule, **details))

    # The head of the function.

    def _decorators(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            path = self._scope.api_path(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if path == "nki.jit" and self._function is not self._worklist.kernel:
                self._refuse(decorator, rules.JIT_ON_HELPER)
            elif path != "nki.jit":
                self._refuse(decorator, rules.DECORATOR, name=ast.unparse(decorator))

    def _signature(self, arguments: ast.arguments) -> None:
        for parameter in (arguments.vararg, arguments.kwarg):
            if parameter:
                self._refuse(parameter, rules.STAR_PARAMETER)
        if arguments.posonlyargs:
            self._refuse(arguments.posonlyargs[0], rules.POSITIONAL_ONLY)
        if arguments.kwonlyargs:
            self._refuse(arguments.kwonlyargs[0], rules.KEYWORD_ONLY)
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            if isinstance(default, (ast.List, ast.Dict)):
                self._refuse(default, rules.MUTABLE_DEFAULT)
            self._visit(default)
        # Annotations are not evaluated; the classes they name come in as arguments.
        for argument in (*arguments.args, *arguments.kwonlyargs):
            value = self._scope.lookup(argument.annotation.id) if isinstance(argument.annotation, ast.Name) else None
            if isinstance(value, type) and self._worklist.is_ours(value):
                self._use_class(argument, value)

    # Statements and expressions.

    def _all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self._visit(node)

    def _visit(self, node: ast.AST) -> None:
        special: Callable[[Any], None] | None = getattr(self, f"_visit_{type(node).__name__.lower()}", None)
        if special:
            special(node)
        elif type(node) in rules.ALLOWED:
            self._all(ast.iter_child_nodes(node))
        else:
            self._refuse_node(node)

    def _refuse_node(self, node: ast.AST) -> None:
        # Its parts are left unread: they would be refused for the same reason again.
        self._refuse(node, rules.REFUSED.get(type(node), rules.UNKNOWN), kind=type(node).__name__)

    def _visit_functiondef(self, node: ast.FunctionDef) -> None:
        if node.name not in self._loop_bodies:
            self._refuse(node, rules.NESTED)
            return
        self._decorators(node)
        self._signature(node.args)
        self._all(node.body)

    def _visit_with(self, node: ast.With) -> None:
        for item in node.items:
            call = item.context_expr
            path = self._scope.api_path(call.func) if isinstance(call, ast.Call) else None
            if path != "nl.no_reorder" or item.optional_vars:
                self._refuse(node, rules.WITH)
        outer, self._in_order = self._in_order, True
        self._all(node.body)
        self._in_order = outer

    def _loop(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self._refuse(node, rules.LOOP_ELSE)
        self._all(ast.iter_child_nodes(node))

    def _visit_for(self, node: ast.For) -> None:
        self._loop(node)

    def _visit_while(self, node: ast.While) -> None:
        self._loop(node)

    def _visit_annassign(self, node: ast.AnnAssign) -> None:
        self._all((node.target, node.value))

    def _visit_call(self, node: ast.Call) -> None:
        if self._in_order and self._scope.api_path(node.func) in _DEVICE_LOOPS:
            self._refuse(node, rules.DYNAMIC_LOOP_IN_ORDER)
        self._all(ast.iter_child_nodes(node))

    def _visit_keyword(self, node: ast.keyword) -> None:
        if node.arg is None:
            self._refuse(node, rules.DOUBLE_STAR_CALL)
        self._visit(node.value)

    def _visit_compare(self, node: ast.Compare) -> None:
        for operator, right in zip(node.ops, node.comparators, strict=True):
            if type(operator) not in rules.ALLOWED:
                self._refuse(right, rules.REFUSED.get(type(operator), rules.UNKNOWN), kind=type(operator).__name__)
        self._all((node.left, *node.comparators))

    def _visit_binop(self, node: ast.BinOp | ast.AugAssign) -> None:
        if type(node.op) not in rules.ALLOWED:
            self._refuse(node, rules.REFUSED.get(type(node.op), rules.UNKNOWN), kind=type(node.op).__name__)
        operands = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.target, node.value)
        self._all(operands)

    _visit_augassign = _visit_binop

    def _visit_dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is None:
                self._refuse(node, rules.DOUBLE_STAR_CALL)
            elif isinstance(key, ast.Constant) and not isinstance(key.value, str):
                self._refuse(key, rules.DICT_KEY)
        self._all((*node.keys, *node.values))

    def _visit_constant(self, node: ast.Constant) -> None:
        self._use_value(node, repr(node.value), node.value)

    # Names.

    def _visit_name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._use(node, node.id, self._scope.resolve(node))

    def _visit_attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._store_into(node, root_name(node))
        base = self._scope.resolve(node.value)
        if base is UNBOUND or isinstance(base, (ApiValue, ModuleType, enum.EnumMeta)):
            self._use(node, ast.unparse(node), member(node, base))
        else:
            self._visit(node.value)
            if node.attr not in rules.ATTRIBUTES:
                refusal = self._refusal(node, rules.ATTRIBUTE, name=node.attr)
                self._worklist.refuse_unless_field(node.attr, refusal)

    def _visit_subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._store_into(node, root_name(node))
        self._all((node.value, node.slice))

    def _store_into(self, node: ast.AST, root: ast.Name | None) -> None:
        if root and not self._scope.is_local(root.id):
            self._refuse(node, rules.STORE_OUTSIDE, name=root.id)

    # Values.

    def _use(self, node: ast.expr, name: str, value: Any) -> None:
        """Judge what a name stands for, and follow it."""
        if value is DYNAMIC:
            return
        if isinstance(value, ApiValue):
            if value.value is UNBOUND:
                self._refuse(node, rules.API_NAME, name=value.path)
        elif value is UNBOUND:
            self._refuse(node, rules.UNRESOLVED, name=name)
        elif isinstance(value, KERNEL_TYPE):
            self._refuse(node, rules.JIT_ON_HELPER)
        elif is_builtin(value):
            if value.__name__ not in rules.BUILTINS:
                self._refuse(node, rules.BUILTIN, name=name, allowed=", ".join(rules.BUILTINS))
        elif isinstance(value, FunctionType):
            self._use_function(node, name, value)
        elif isinstance(value, type):
            self._use_class(node, value)
        elif callable(value):
            self._refuse(node, rules.FOREIGN, name=name, owner=getattr(value, "__module__", type(value).__module__))
        else:
            self._use_value(node, name, value)

    def _use_function(self, node: ast.AST, name: str, function: FunctionType) -> None:
        if self._worklist.is_ours(function):
            self._worklist.add_function(function)
        else:
            self._refuse(node, rules.FOREIGN, name=name, owner=function.__module__)

    def _use_class(self, node: ast.AST, cls: type) -> None:
        bases = [base.__name__ for base in cls.__bases__]
        if not self._worklist.is_ours(cls):
            self._refuse(node, rules.FOREIGN, name=cls.__name__, owner=cls.__module__)
        elif bases not in (["NKIObject"], ["Enum"]):
            self._refuse(node, rules.CLASS_BASES, name=cls.__name__, bases=" and ".join(bases))
        else:
            self._class_decorators(node, cls)
            self._worklist.add_class(cls)

    def _class_decorators(self, node: ast.AST, cls: type) -> None:
        found = class_definition_of(cls)
        for decorator in found.node.decorator_list if found else ():
            name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name not in ("dataclass", "dataclasses.dataclass"):
                self._refuse(node, rules.DECORATOR, name=name)

    def _use_value(self, node: ast.expr, name: str, value: Any) -> None:
        if value is None or value is ... or isinstance(value, (bool, str, enum.Enum)):
            return
        if isinstance(value, int):
            if not -(2**31) <= value < 2**31:
                self._refuse(node, rules.INTEGER, value=value)
        elif isinstance(value, float):
            with np.errstate(over="ignore"):
                overflows = math.isfinite(value) and not np.isfinite(np.float32(value))
            if overflows:
                self._refuse(node, rules.FLOAT, value=value)
        elif isinstance(value, tuple):
            for item in value:
                self._use(node, name, as_api(name, item))
        elif isinstance(value, ModuleType):
            self._refuse(node, rules.FOREIGN, name=name, owner="Python")
        elif isinstance(node, ast.Constant):
            self._refuse(node, rules.CONSTANT, type=type(value).__name__)
        else:
            self._refuse(node, rules.GLOBAL_STATE, name=name, type=type(value).__name__)
