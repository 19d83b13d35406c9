# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loop that runs on the device: its iterations run in Python, except those that only repeat earlier ones."""

from __future__ import annotations

from collections.abc import Callable

from .core import Core
from .loops import LoopRun

# Loops with fewer run whole: to see that iterations repeat takes half as many.
FEWEST_ITERATIONS = 24


def run_loop(core: Core, loop: LoopRun, left: Callable[[], int], run: Callable[[], None]) -> None:
    """Run a loop until no iteration is left; iterations that only repeat earlier ones are counted without a call.

    Args:
        core: the core of this thread.
        loop: the loop.
        left: a function that returns the number of iterations left as far as it is known, the next one included; 0 at
            the end.
        run: a function that runs one iteration and counts it in ``loop.count``.
    """
    observers, tally, meetings = core.observers, core.tally, core.meetings
    loop.may_repeat = core.is_abstract and left() >= FEWEST_ITERATIONS
    observers.tell_entered(loop)
    tally.enter()
    while left():
        run()
        observers.tell_iterated(loop)
        tally.iterate()
        # With data each iteration computes something; and at a barrier others wait for this core.
        if loop.may_repeat and core.meetings == meetings:
            _skip(core, loop, left())
    tally.leave()
    observers.tell_left(loop)


def _skip(core: Core, loop: LoopRun, left: int) -> None:
    """Skip iterations that only repeat the ones before, and update all counters and observers accordingly."""
    skip = core.observers.repeats(loop, left)
    if skip is not None:
        core.observers.tell_repeated(loop, skip)
        core.tally.repeat(skip)
        core.skip_numbers(skip.times * skip.instructions)
        loop.count += skip.times * skip.period
