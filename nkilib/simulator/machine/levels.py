# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reaction to a failed check: an error, one warning for each place, or nothing."""

from __future__ import annotations

import threading
import warnings

from ..hardware.options import Level
from ..terms.errors import NkiValidationError, SimulatorWarning

# The warnings given in this process: the type of the error, and the lines of the kernel.
_WARNED: set[tuple[type[NkiValidationError], tuple[str, ...]]] = set()
_LOCK = threading.Lock()  # both cores may reach the same line


def refuse(level: Level, error: NkiValidationError, *places: str) -> None:
    """Raise ``error``, or warn of it unless an error of its type was warned of at ``places`` before.

    Args:
        level: the level from the options.
        error: the error that the check found.
        places: the lines of the kernel that take part, as ``file:line``; the warning shows the first one.

    Raises:
        NkiValidationError: ``error``, at the level ``"error"``.
        SimulatorWarning: at the level ``"warn"``, where Python's filters turn warnings into errors.
    """
    if level == "error":
        raise error
    if level == "ignore":
        return
    with _LOCK:
        if (type(error), places) in _WARNED:
            return
        _WARNED.add((type(error), places))
    file, _, line = places[0].rpartition(":")
    # The kernel's line and not the simulator's. No registry: Python would tell messages apart that differ in a number.
    warnings.warn_explicit(str(error), SimulatorWarning, file, int(line) if line.isdigit() else 0)


def forget_warnings() -> None:
    """Forget which warnings were given, so that all are given again as in a new process."""
    with _LOCK:
        _WARNED.clear()
