# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that code reads besides its arguments and locals, found by its names, kept for comparison by identity."""

from __future__ import annotations

import builtins
import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from operator import itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..launch.arguments import is_array
from ..launch.kernel import Kernel
from .bytecode import globals_of, imports_of
from .errors import Unplannable
from .snapshot import (
    Absent,
    ArrayContent,
    Items,
    Names,
    Snapshot,
    content_of_cell,
    defaults_of,
    items_of,
    keyword_defaults_of,
)
from .steadiness import check_steady, is_opaque, is_settled

# Longer lists, dictionaries and sets are compared by their length alone.
MOST_ITEMS = 64
# Larger arrays that are no arguments are refused, if they can be written to.
MOST_ARRAY_BYTES = 4096

# Builtins that are seen outside, or see what is outside.
_TALKING = frozenset({"print", "input", "open", "breakpoint"})
_SCALARS = (int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_IS_EMPTY = CellType()


class Reads:
    """A collector of the values that code reads.

    Args:
        names: all names in the code that ran: any attribute of a class or an object with one of them may have been
            read.
        codes: the ids of the code objects that ran.
    """

    def __init__(self, names: set[str], codes: set[int]) -> None:
        self._all_names = names
        self._codes = codes
        self._mappings: dict[int, Mapping[str, Any]] = {}
        self._names: dict[int, set[str]] = {}
        self._absent: dict[int, set[str]] = {}
        self._seen: dict[int, Any] = {}
        self._scopes: dict[type, Mapping[str, Any]] = {}  # of classes: proxies, which are new at each call
        self._cells: list[CellType] = []
        self._functions: list[Any] = []  # and proxies of such
        self._others: list[Items | ArrayContent] = []

    def add_root(self, function: FunctionType) -> None:
        """Add a function that was launched or passed to the kernel. The collector does not keep it alive."""
        self._seen[id(function)] = function
        self._add_function(function, weakref.proxy(function))

    def add_code(self, code: CodeType, scope: dict[str, Any]) -> None:
        """Add the values to which the names in a code object refer; ``scope`` has the globals of its module.

        Raises:
            Unplannable: if the code uses what differs from call to call or has other effects: a clock, a log.
        """
        names = {*code.co_names}
        called = names & _TALKING - scope.keys()
        if called and called & globals_of(code):  # most are names of attributes
            raise Unplannable(f"its code calls {min(called)}")
        if "depends_on" in names and not any(
            isinstance(constant, tuple) and "kind" in constant for constant in code.co_consts
        ):
            raise Unplannable("its code calls depends_on without kind=, which warns")
        self._add_names(scope, names)
        absent = {name for name in names if name not in scope and hasattr(builtins, name)}
        self._absent.setdefault(id(scope), set()).update(absent)
        for name in names & scope.keys():
            self._add_with_attributes(scope[name], names)
        for name in imports_of(code, scope.get("__package__") or ""):
            if name in sys.modules:
                self._add_with_attributes(sys.modules[name], names)
        # By whatever way the function was found: an import when it runs, or a name that is computed.
        if code.co_name in scope:
            self._add_names(scope, {code.co_name})
            self.add(scope[code.co_name])

    def add(self, value: Any) -> None:
        """Add a value that code has read."""
        if isinstance(value, _SCALARS) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        check_steady(value)
        if is_array(value) and not isinstance(value, np.ndarray):
            raise Unplannable("its code reads a tensor that is no argument")
        if isinstance(value, ModuleType):
            return
        if isinstance(value, np.ndarray):
            self._add_array(value)
        elif isinstance(value, tuple):
            for item in value[:MOST_ITEMS]:
                self.add(item)
        elif isinstance(value, list | dict | set | frozenset):
            self._add_items(value)
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_object(value)

    def snapshot(self) -> Snapshot:
        """Return the collected values as they are now."""
        cells = tuple(cell for cell in self._cells if not _is_empty(cell))
        functions = tuple(function for function in self._functions if function.__defaults__ or function.__kwdefaults__)
        absent = [(self._mappings[key], frozenset(names)) for key, names in self._absent.items() if names]
        mappings = tuple(mapping for mapping, _ in absent)
        return Snapshot(
            self._named(is_object=True),
            self._named(is_object=False),
            Absent(mappings, tuple(names for _, names in absent), [*map(len, mappings)]),
            cells,
            tuple(map(content_of_cell, cells)),
            functions,
            tuple(map(defaults_of, functions)),
            tuple(map(keyword_defaults_of, functions)),
            tuple(self._others),
        )

    def _named(self, is_object: bool) -> Names:
        """Return the collected names, either those of objects that equal only themselves or all others."""
        getters: list[Callable[[Any], Any]] = []
        mappings: list[Mapping[str, Any]] = []
        for key, mapping in self._mappings.items():
            names = sorted(name for name in self._names[key] if _is_unlike_all(mapping[name]) is is_object)
            if names:
                # A getter of one name gives its value, one of several a tuple.
                getters.append(itemgetter(*names, names[0]))
                mappings.append(mapping)
        named = Names(tuple(getters), tuple(mappings), [])
        named.values.extend(named.current_values())
        return named

    def _add_names(self, mapping: Mapping[str, Any], names: set[str]) -> set[str]:
        """Collect those of ``names`` that are in a mapping, and return the ones that were not collected before."""
        self._mappings.setdefault(id(mapping), mapping)
        known = self._names.setdefault(id(mapping), set())
        new = {name for name in names if name in mapping} - known
        known |= new
        return new

    def _add_with_attributes(self, value: Any, names: set[str]) -> None:
        self.add(value)
        if isinstance(value, ModuleType):
            self._add_module(value, names)

    def _add_module(self, module: ModuleType, names: set[str]) -> None:
        scope = vars(module)
        for name in self._add_names(scope, names):
            self._add_with_attributes(scope[name], names)

    def _add_class(self, value: type) -> None:
        for base in value.__mro__:
            if is_settled(base):
                continue
            scope = self._scopes.setdefault(base, vars(base))
            for name in self._add_attributes(scope):
                self.add(scope[name])

    def _add_attributes(self, scope: Mapping[str, Any]) -> set[str]:
        """Collect the attributes in a scope, and the names that it lacks: attributes added later would hide others."""
        new = self._add_names(scope, self._all_names)
        self._absent.setdefault(id(scope), self._all_names - self._names[id(scope)])
        return new

    def _add_object(self, value: Any) -> None:
        for inner in _inside(value):
            self.add(inner)
        if isinstance(value, FunctionType):
            self._add_function(value, value)
        elif not is_opaque(type(value)):
            self.add(type(value))
            scope = getattr(value, "__dict__", None)
            if isinstance(scope, dict):
                for name in self._add_attributes(scope):
                    self.add(scope[name])

    def _add_function(self, function: FunctionType, kept: Any) -> None:
        if id(function.__code__) not in self._codes:
            return  # it did not run
        self._functions.append(kept)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        for cell in function.__closure__ or ():
            self._cells.append(cell)
            if not _is_empty(cell):
                self.add(cell.cell_contents)

    def _add_items(self, value: Any) -> None:
        items = items_of(value) if len(value) <= MOST_ITEMS else None
        self._others.append(Items(value, items, len(value)))
        for item in items or ():
            self.add(item)

    def _add_array(self, value: npt.NDArray[Any]) -> None:
        if not value.flags.writeable:
            return
        if value.nbytes > MOST_ARRAY_BYTES or value.dtype.hasobject:
            raise Unplannable(f"its code reads an array of {value.nbytes:,} bytes that is no argument")
        self._others.append(ArrayContent(value, value.tobytes()))


def _is_unlike_all(value: Any) -> bool:
    """Tell whether a value equals only itself, because its class defines no other ``==``."""
    return getattr(type(value), "__eq__", None) is object.__eq__


def _is_empty(cell: CellType) -> bool:
    return cell == _IS_EMPTY


def _inside(value: Any) -> list[Any]:
    """Return the functions that a wrapper calls."""
    if isinstance(value, Kernel):
        return [value.func]
    if isinstance(value, staticmethod | classmethod | MethodType):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, functools.cached_property):
        return [value.func]
    scope = getattr(value, "__dict__", None)  # an attribute might be made for whoever asks
    return [scope["__wrapped__"]] if isinstance(scope, dict) and "__wrapped__" in scope else []
