"""What a name in a function means, found as a compiler would: by looking, without running the function."""

from __future__ import annotations

import ast
import builtins
import enum
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from nkilib.nki import SIMULATED, explain_index, nisa, nki, nl

API: Final[dict[str, ModuleType]] = {"nki": nki, "nisa": nisa, "nl": nl}
KERNEL_TYPE: Final[Any] = type(nki.jit(lambda tensor: tensor))
"""What `nki.jit` returns."""


class Dynamic:
    """A value that exists only while the kernel is specialized: an argument, a local variable, the result of a call."""


class Unbound:
    """No value: the name is bound nowhere."""


DYNAMIC: Final = Dynamic()
UNBOUND: Final = Unbound()


@dataclass(frozen=True)
class ApiValue:
    """Something of `nki`, `nisa` or `nl`: the compiler knows it, and nobody reads its source.

    Attributes:
        path: its name, such as `nl.add`.
        value: what it is; UNBOUND where the API has no such name.
    """

    path: str
    value: Any


def is_public(module: Any, name: str) -> bool:
    """Whether `module.name` may be used: it is listed in `__all__`, or, where there is no list, is there."""
    listed = getattr(module, "__all__", None)
    return not name.startswith("_") and hasattr(module, name) and (listed is None or name in listed)


def _api_objects() -> dict[int, ApiValue]:
    """Functions and classes of the API by identity: `ADD = nl.add` in a module is still `nl.add`."""
    objects: dict[int, ApiValue] = {}
    if SIMULATED:
        # Words an error of the simulator. On hardware it is a function like others, and is read.
        objects[id(explain_index)] = ApiValue("explain_index", explain_index)
    for alias, module in API.items():
        for name, value in vars(module).items():
            if is_public(module, name) and callable(value):
                objects.setdefault(id(value), ApiValue(f"{alias}.{name}", value))
    return objects


_API_OBJECTS: Final = _api_objects()


def as_api(name: str, value: Any) -> Any:
    """`value`, marked as an ApiValue where it belongs to the API."""
    if isinstance(value, ModuleType) and any(value is module for module in API.values()):
        return ApiValue(name, value)
    return _API_OBJECTS.get(id(value), value)


def _local_names(code: CodeType) -> set[str]:
    """Parameters and variables of a function and of the functions nested in it."""
    names = {*code.co_varnames, *code.co_cellvars}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _local_names(constant)
            names.add(constant.co_name)
    return names


class Scope:
    """The names that `function` sees.

    Args:
        function: a plain Python function.
    """

    def __init__(self, function: FunctionType) -> None:
        self._locals = _local_names(function.__code__)
        self._globals = function.__globals__
        self._closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def is_local(self, name: str) -> bool:
        """Whether the name is a parameter or a variable of the function."""
        return name in self._locals

    def lookup(self, name: str) -> Any:
        """What the name stands for: an object, an ApiValue, DYNAMIC for a local one, or UNBOUND."""
        if self.is_local(name):
            return DYNAMIC
        if name in self._closure:
            return as_api(name, self._closure[name].cell_contents)
        if name in self._globals:
            return as_api(name, self._globals[name])
        return getattr(builtins, name, UNBOUND)

    def resolve(self, node: ast.expr) -> Any:
        """What a name or a chain of attributes stands for, as `lookup` has it; DYNAMIC for other expressions."""
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        if isinstance(node, ast.Attribute):
            return member(node, self.resolve(node.value))
        return DYNAMIC

    def api_path(self, node: ast.expr) -> str | None:
        """`nl.add` for a node that means it, however the module imported it; None for what is not the API."""
        value = self.resolve(node)
        return value.path if isinstance(value, ApiValue) else None


def member(node: ast.Attribute, base: Any) -> Any:
    """What an attribute of a module, of an Enum or of the API stands for; DYNAMIC for those of other values.

    Args:
        node: the attribute.
        base: what it is an attribute of, as `Scope.resolve` has it.
    """
    if isinstance(base, ApiValue):
        return _api_member(node, base)
    if isinstance(base, (ModuleType, enum.EnumMeta)):
        return as_api(node.attr, getattr(base, node.attr, UNBOUND))
    return UNBOUND if base is UNBOUND else DYNAMIC


def _api_member(node: ast.Attribute, base: ApiValue) -> ApiValue:
    path = f"{base.path}.{node.attr}"
    # A data type is documented as a string, whatever else the simulator's knows.
    known = not isinstance(base.value, (str, int, float)) and is_public(base.value, node.attr)
    # nki.language is nl: as_api knows it by its short name.
    api = as_api(path, getattr(base.value, node.attr) if known else UNBOUND)
    return api if isinstance(api, ApiValue) else ApiValue(path, api)


def is_builtin(value: Any) -> bool:
    """Whether the value is one of Python's builtins, under its own name."""
    return getattr(builtins, getattr(value, "__name__", ""), UNBOUND) is value


def root_name(node: ast.expr) -> ast.Name | None:
    """The name that a chain of attributes and items starts from: `a` of `a.b[0].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node if isinstance(node, ast.Name) else None
