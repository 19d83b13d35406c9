# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What becomes of what a check has found: an error, a warning for each place once, or nothing."""

from __future__ import annotations

import threading
import warnings

from ..hardware.options import Level
from ..terms.errors import NkiValidationError, SimulatorWarning

# Of what was warned in this process: the kind of error, and where in which kernel.
_WARNED: set[tuple[type[NkiValidationError], tuple[str, ...]]] = set()
_LOCK = threading.Lock()  # both cores may come to the same line


def refuse(level: Level, error: NkiValidationError, *places: str) -> None:
    """Raise ``error`` as it is, or warn of it, unless one of its kind was warned of at ``places`` before.

    Args:
        level: what the options say.
        error: what was found.
        places: the lines of the kernel that take part, as ``file:line``; the warning shows the first one.

    Raises:
        NkiValidationError: ``error``, at the level ``"error"``.
        SimulatorWarning: at the level ``"warn"``, where Python's filters make errors of warnings.
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
    """Warn of everything again, as in a new process."""
    with _LOCK:
        _WARNED.clear()
