# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The number of instructions of a kernel's program as traced, where a device loop has one copy of its body."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from nkilib.nki import nl
from nkilib.simulator import Profile


def program_instructions(run: Callable[[], Profile]) -> int:
    """Instructions of the program of the core that has most.

    Args:
        run: makes the profile of a launch; every loop of the device runs once in it.
    """
    run_loop = nl.fori_loop

    def run_once(lower: Any, upper: Any, body: Callable[[Any], None], step: int = 1) -> None:
        run_loop(lower, lower + (step if upper > lower else 0), body, step)

    with patch.object(nl, "fori_loop", run_once):
        result = run()
    return max(Counter(instruction.core for instruction in result.instructions).values())
