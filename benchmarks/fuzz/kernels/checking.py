# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The check that a random kernel gives bitwise identical results when it is replayed (:func:`checked`), and the
shrinking of one that does not (:func:`shrunk`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from benchmarks.fuzz.kernels.drawing import SIZES
from benchmarks.fuzz.kernels.program import Program
from nkilib import simulator
from tests.simulator.replay.both_ways import Report, compare


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the lines that its failure does not need: first halves, in the end one line at a time."""
    size = max(1, len(program.lines) // 2)
    while True:
        smaller = _without_some(program, size, fails)
        is_done = size == 1 and smaller is program
        program, size = smaller, max(1, size // 2)
        if is_done:
            return program


def _without_some(program: Program, size: int, fails: Callable[[Program], bool]) -> Program:
    """Remove ``size`` neighbouring lines at a time, from the end on, where the program fails without them too."""
    end = len(program.lines)
    while end > 0:
        start = max(0, end - size)
        candidate = program.with_lines(program.lines[:start] + program.lines[end:])
        if fails(candidate):
            program = candidate
        end = start
    return program


_LOWERED: Final = {"_SMALLEST": 1, "BLOCK_ELEMENTS": 48}


@contextmanager
def lowered_limits() -> Iterator[None]:
    """Lower limits so that every tile is large enough for every pass over a plan's steps and for several row blocks."""
    with ExitStack() as patches:
        for name, value in _LOWERED.items():
            modules = [module for key, module in sys.modules.items() if key.startswith("nkilib.simulator.")]
            holding = [module for module in modules if hasattr(module, name)]
            if not holding:
                raise LookupError(f"lowered_limits: no module of the simulator has {name}")
            for module in holding:
                patches.enter_context(patch.object(module, name, value))
        yield


def checked(program: Program) -> Report:
    """Launch a program with and without replay."""
    with warnings.catch_warnings(), simulator.using(uninitialized="error"), ExitStack() as limits:
        warnings.simplefilter("ignore")
        if SIZES[program.sizes].is_lowered:
            limits.enter_context(lowered_limits())
        return compare(program.kernel(), tuple(program.arrays()), {})


def differs(program: Program) -> bool:
    """Tell whether results differ in any bit; programs that the simulator rejects do not count."""
    try:
        return bool(checked(program).differences)
    except Exception:
        return False


def complaint(program: Program, report: Report) -> str:
    """Describe the difference and the kernel, shrunk to the lines that matter."""
    small = shrunk(program, differs)
    result = "\n".join(report.differences)
    return f"{result}\n{program}\nshrunk to {len(small.lines)} lines:\n{small}"
