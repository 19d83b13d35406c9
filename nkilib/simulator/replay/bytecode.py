# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The names that a piece of code reads and imports, found in its bytecode."""

from __future__ import annotations

from collections.abc import Iterator
from dis import get_instructions, opmap
from importlib.util import resolve_name
from types import CodeType

_IMPORT = opmap["IMPORT_NAME"]


def globals_of(code: CodeType) -> set[str]:
    """Return the names that code reads as globals or builtins; names that it reads only as attributes are left out."""
    return {
        instruction.argval
        for instruction in get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }


def imports_of(code: CodeType, package: str) -> Iterator[str]:
    """Yield the names of the modules that code imports when it runs.

    Args:
        code: the code of a function.
        package: the package of its module, from which relative imports start.
    """
    if _IMPORT not in code.co_code[::2]:
        return
    constants: list[int | None] = [0, None]  # loaded before: how many packages up, and which names
    for instruction in get_instructions(code):
        if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants = [constants[-1], instruction.argval]
        elif instruction.opname == "IMPORT_NAME":
            level = constants[0]
            dots = "." * level if isinstance(level, int) else ""
            yield resolve_name(f"{dots}{instruction.argval}", package or None) if dots else instruction.argval
