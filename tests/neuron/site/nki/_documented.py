"""What NKI 0.7 documents: the data of 0.6 and what of 0.7 could be read, and signatures made of it.

A parameter is `[name]` or `[name, default as written]`; `["*"]` begins those that go by keyword only.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[3]
_OF_0_6 = _TESTS / "simulator" / "api" / "documented_api.json"
_CHANGES = _TESTS / "neuron" / "changes_of_0_7.json"


def _read() -> dict[str, dict[str, dict[str, Any]]]:
    api: dict[str, dict[str, dict[str, Any]]] = json.loads(_OF_0_6.read_text(encoding="utf-8"))
    for module, changes in json.loads(_CHANGES.read_text(encoding="utf-8")).items():
        names = api.setdefault(module, {})
        for name, change in changes.items():
            before = names.get(name, {})
            if "methods" in before:
                change = {
                    "attributes": [*before["attributes"], *change["attributes"]],
                    "methods": before["methods"] | change["methods"],
                }
            names[name] = change
    return api


API = _read()


def signature(parameters: list[list[str]]) -> inspect.Signature:
    """The signature that the documentation gives; a default is its text."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made = []
    for name, *default in parameters:
        if name == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif name.startswith("**"):
            made.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif name.startswith("*"):
            made.append(inspect.Parameter(name[1:], inspect.Parameter.VAR_POSITIONAL))
            kind = inspect.Parameter.KEYWORD_ONLY
        else:
            made.append(inspect.Parameter(name, kind, default=default[0] if default else inspect.Parameter.empty))
    return inspect.Signature(made)


def bind(what: str, documented: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name; TypeError for one that is not documented, as Python words it."""
    try:
        return dict(documented.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise TypeError(f"{what}() {error}") from None
