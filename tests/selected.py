# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that a fixture has to prepare: only those that the tests of this run ask for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def selected(request: pytest.FixtureRequest, parameter: str) -> list[str]:
    """Return the values of a parameter in the tests of this run that use a fixture of their module.

    Args:
        request: the request of the fixture itself.
        parameter: its name.
    """
    items = [item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path]
    asking = [item.callspec.params for item in items if request.fixturename in item.fixturenames and "[" in item.name]
    return list(dict.fromkeys(params[parameter] for params in asking if parameter in params))


def write_names(directory: Path, names: list[str]) -> Path:
    """Write names to a file in a directory, for a process: there may be more than a command line holds."""
    file = directory / "names.json"
    file.write_text(json.dumps(names), encoding="utf-8")
    return file


def read_names(file: str) -> list[str]:
    """Return what :func:`write_names` has written."""
    names: list[str] = json.loads(Path(file).read_text(encoding="utf-8"))
    return names
