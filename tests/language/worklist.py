"""The functions and classes that a walk has still to read."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from types import FunctionType
from typing import Final

from tests.language.report import Refusal, Walk, qualified_name
from tests.language.source import class_definition_of, definition_of

_PYTHON_ONLY: Final = ("nkilib.simulator", "nkilib.torch")
"""Packages of ours whose functions run in Python, never in a kernel."""


def may_hold_kernels(module: str) -> bool:
    """Whether functions of the module may be NKI, unlike those of the simulator and of the torch wrappers."""
    return not any(module == package or module.startswith(f"{package}.") for package in _PYTHON_ONLY)


class Worklist:
    """What a walk has reached, what it has still to read, and its report.

    Args:
        kernel: the function to start from.
    """

    def __init__(self, kernel: FunctionType) -> None:
        self.report = Walk()
        self.kernel = kernel
        self._packages = {"nkilib", kernel.__module__.partition(".")[0]}
        self._todo: list[FunctionType] = []
        self._attributes: list[tuple[str, Refusal]] = []
        self.add_function(kernel)

    def functions(self) -> Iterator[FunctionType]:
        """Every function reached, also those that are reached meanwhile, each once."""
        # Iteration over a list sees what is appended to it.
        yield from self._todo

    def is_ours(self, thing: FunctionType | type) -> bool:
        """Whether the function or class is of the kernel's own packages, and meant for kernels."""
        module = thing.__module__
        return module.partition(".")[0] in self._packages and may_hold_kernels(module)

    def add_function(self, function: FunctionType) -> None:
        """Put a function on the list, unless it is there."""
        name = qualified_name(function)
        if name not in self.report.functions:
            self.report.functions[name] = function
            self._todo.append(function)

    def add_class(self, cls: type) -> None:
        """Put the methods of a class on the list."""
        self.report.classes.setdefault(qualified_name(cls), cls)
        found = class_definition_of(cls) if not issubclass(cls, enum.Enum) else None
        for value in vars(cls).values() if found else ():
            definition = definition_of(value) if isinstance(value, FunctionType) else None
            # Methods that a dataclass makes are of no file, or of another; the compiler makes its own.
            if definition and found and definition.file == found.file:
                self.add_function(value)

    def refuse(self, refusal: Refusal) -> None:
        """Put a refusal into the report."""
        self.report.refusals.append(refusal)

    def refuse_unless_field(self, name: str, refusal: Refusal) -> None:
        """Refuse an attribute nobody documents, unless it is a field of a class that the kernel is found to reach."""
        self._attributes.append((name, refusal))

    def finish(self) -> Walk:
        """The report, when every function has been read."""
        fields = {name for cls in self.report.classes.values() for name in _fields(cls)}
        for name, refusal in self._attributes:
            if name not in fields:
                self.refuse(refusal)
        self.report.refusals.sort(key=lambda refusal: (refusal.file, refusal.line))
        return self.report


def _fields(cls: type) -> set[str]:
    """Fields and methods of a class of NKI: what its body declares, and what its methods assign to."""
    found = class_definition_of(cls)
    nodes = ast.walk(found.node) if found else ()
    assigned = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return assigned | set(vars(cls)) | set(getattr(cls, "__annotations__", {}))
