# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Shared code of pytest plugins that launch the kernels of tests once more: tests see nothing, a file records it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nkilib.simulator.hardware import options
from nkilib.simulator.machine import observer


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Nobody sees what happens: no watcher, no reader of what is printed or warned."""
    token, warned = observer._WATCHERS.set(()), set(options._WARNED)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        observer._WATCHERS.reset(token)
        options._WARNED.clear()
        options._WARNED.update(warned)


def current_test() -> str:
    """The node that runs."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")


def write_line(variable: str, line: dict[str, Any]) -> None:
    """Add a line of JSON to the file that an environment variable names."""
    with Path(os.environ[variable]).open("a") as file:
        file.write(json.dumps(line) + "\n")
