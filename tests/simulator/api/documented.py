# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The API that NKI documents: every name of 0.6, overlaid with what could be read of 0.7.

The stubs of 0.6 are public, and ``documented_api.json`` has all of them. Only single pages of 0.7 could be
read: each name of ``changes_of_0_7.json`` says in ``read`` where, as the version of the documentation. Such
a name may be new, changed, removed, or the same as in 0.6, and then it has nothing but ``read``. All other
names are known from 0.6 only.

A parameter is ``[name]`` or ``[name, default as written]``; ``["*"]`` begins those that go by keyword only,
and a default ``"..."`` is one that the documentation leaves out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Api = dict[str, dict[str, dict[str, Any]]]
"""What is documented of a name, by module and name."""

_TESTS = Path(__file__).parents[2]


def _load(path: str) -> Api:
    loaded: Api = json.loads((_TESTS / path).read_text(encoding="utf-8"))
    return loaded


OF_0_6: Api = _load("simulator/api/documented_api.json")
READ_OF_0_7: Api = _load("neuron/changes_of_0_7.json")


def _changed(before: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A name of 0.6 with what 0.7 says of it; attributes and methods of a class come to those that it had."""
    facts = {key: value for key, value in change.items() if key != "read"}
    if "methods" in before and facts:
        return {
            "attributes": [*before["attributes"], *facts["attributes"]],
            "methods": before["methods"] | facts["methods"],
        }
    return facts or before


def _merged() -> Api:
    api = {module: dict(names) for module, names in OF_0_6.items()}
    for module, changes in READ_OF_0_7.items():
        names = api.setdefault(module, {})
        for name, change in changes.items():
            names[name] = _changed(names.get(name, {}), change)
    return api


DOCUMENTED: Api = _merged()


def read_of_0_7(module: str, name: str) -> str | None:
    """The version of the documentation in which a name was read; None for one that is known from 0.6 only."""
    read: str | None = READ_OF_0_7.get(module, {}).get(name, {}).get("read")
    return read
