# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Write the list of public import paths and their parameters: ``python -m tools.write_public_api``.

docs/reference/public_api.txt has a block for each module: each name of its ``__all__`` with its kind and, if it can be
called, its parameters: ``name`` is required, ``name=`` has a default. Annotations and the values of defaults are left
out: they are not the same text under every Python. Writing needs PyTorch, JAX and the simulator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, get_origin

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "public_api.txt"
HEAD = """# The public import paths of nkilib: docs/reference/public_api.md says what that means.
# Written by `python -m tools.write_public_api`; tests/test_package.py compares it with the code.
"""
MODULES = (
    "nkilib",
    "nkilib.nki",
    "nkilib.lnc",
    "nkilib.core.rows",
    "nkilib.experimental.loss",
    "nkilib.experimental.loss.inline",
    "nkilib.experimental.loss.extended",
    "nkilib.experimental.loss.extended_inline",
    "nkilib.experimental.loss.tiling",
    "nkilib.experimental.loss.profiling",
    "nkilib.experimental.loss.reference",
    "nkilib.experimental.loss.bounds",
    "nkilib.experimental.softmax",
    "nkilib.experimental.softmax.inline",
    "nkilib.experimental.softmax.tiling",
    "nkilib.simulator",
    "nkilib.simulator.api.nki",
    "nkilib.simulator.api.isa",
    "nkilib.simulator.api.language",
    "nkilib.simulator.api.collectives",
    "nkilib.simulator.api.compiler",
    "nkilib.torch",
    "nkilib.torch.transformers",
    "nkilib.torch.trl",
    "nkilib.torch.torchtitan",
    "nkilib.torch.verl",
    "nkilib.jax",
)


def described(value: object) -> str:
    """Return the kind of an object, such as ``function``, and its parameters if it can be called."""
    if isinstance(value, ModuleType):
        return "module"
    if get_origin(value) is not None:
        return "type"
    if isinstance(value, type):
        return _described_class(value)
    if callable(value):
        return f"{'kernel' if hasattr(value, '__getitem__') else 'function'} {parameters(value)}"
    return "constant"


_STARS: Final[dict[Any, str]] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}


def _described_class(value: type) -> str:
    kind = "exception" if issubclass(value, BaseException) else "enum" if issubclass(value, Enum) else "class"
    made = value.__new__ if issubclass(value, tuple) else value.__init__
    # What is built in has no signature, or another one in each Python.
    if kind == "enum" or not isinstance(made, FunctionType):
        return kind
    return f"{kind} {parameters(made, bound=1)}"


def parameters(function: Callable[..., Any], bound: int = 0) -> str:
    """Return the parameters of a function as text, without the first ``bound`` ones, such as ``self``."""
    shown: list[str] = []
    previous = None
    for parameter in list(inspect.signature(function).parameters.values())[bound:]:
        kind = parameter.kind
        if previous is Parameter.POSITIONAL_ONLY and kind is not Parameter.POSITIONAL_ONLY:
            shown.append("/")
        if kind is Parameter.KEYWORD_ONLY and previous not in (Parameter.KEYWORD_ONLY, Parameter.VAR_POSITIONAL):
            shown.append("*")
        stars = _STARS.get(kind, "")
        shown.append(f"{stars}{parameter.name}{'' if parameter.default is Parameter.empty else '='}")
        previous = kind
    return f"({', '.join([*shown, '/'] if previous is Parameter.POSITIONAL_ONLY else shown)})"


def imported(module: str, name: str) -> object:
    """Return the object that ``from module import name`` gives: an attribute, or else a submodule."""
    package = import_module(module)
    return getattr(package, name) if hasattr(package, name) else import_module(f"{module}.{name}")


def lines_of(name: str) -> Iterator[str]:
    """Yield the lines for a module: its name, and below it the names of its ``__all__``."""
    yield name
    for item in sorted(import_module(name).__all__):
        yield f"    {item}: {described(imported(name, item))}"


def text() -> str:
    """Return the whole text of the file."""
    return HEAD + "".join("\n" + "\n".join(lines_of(name)) + "\n" for name in MODULES)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
