# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A failing kernel of fewer lines."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.fuzz.kernels.program import Program


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
