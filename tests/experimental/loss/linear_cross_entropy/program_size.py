"""How long the program of a kernel is: what is traced, where a loop of the device has one copy of its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nkilib.nki import nl
from nkilib.simulator import profile


def instructions_of_core(kernel: Any, *args: Any, **kwargs: Any) -> int:
    """Instructions of the program of the core that has most, of a launch on shapes."""
    run_loop = nl.fori_loop

    def run_once(lower: Any, upper: Any, body: Callable[[Any], None], step: int = 1) -> None:
        run_loop(lower, lower + (step if upper > lower else 0), body, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nl, "fori_loop", run_once)
        found = profile(kernel, *args, **kwargs)
    by_core: dict[int, int] = {}
    for instruction in found.instructions:
        by_core[instruction.core] = by_core.get(instruction.core, 0) + 1
    return max(by_core.values())
