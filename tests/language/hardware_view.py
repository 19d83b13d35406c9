"""Prints, as JSON, what the compiler gets to read of a kernel on hardware: refusals, functions, and their forms.

Usage: ``python -m tests.language.hardware_view <module> <kernel>``. What a kernel reaches depends on the backend:
`child.run` runs it with a stand-in for `nki` in place.
"""

from __future__ import annotations

import importlib
import json
import sys
from types import FunctionType
from typing import Any

from tests.language.klr_forms import NotReadError, function_form
from tests.language.klr_limits import obstacles_in
from tests.language.source import definition_of
from tests.language.walker import walk


def obstacles(function: FunctionType) -> list[str]:
    """What klr-lang cannot read of a function, a message each."""
    definition = definition_of(function)
    assert definition is not None
    return [
        f"{definition.file}:{line}: {function.__name__}: {obstacle.name}: klr-lang 0.0.12: {obstacle.behaviour}. "
        f"Write instead: {obstacle.instead}"
        for line, obstacle in obstacles_in(definition.node)
    ]


def form_of(function: FunctionType) -> dict[str, Any] | None:
    """What klr-lang has to read of a function, None where it cannot."""
    definition = definition_of(function)
    assert definition is not None
    try:
        return function_form(definition.node)
    except NotReadError:
        return None


def main(module: str, kernel: str) -> None:
    """Walk `kernel` of `module`, and print what was found."""
    walked = walk(getattr(importlib.import_module(module), kernel))
    view = {
        "refusals": walked.messages,
        "forms": {name: form_of(function) for name, function in walked.functions.items()},
        "obstacles": [message for function in walked.functions.values() for message in obstacles(function)],
    }
    print(json.dumps(view))


if __name__ == "__main__":
    main(*sys.argv[1:])
