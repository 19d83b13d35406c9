# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loop that runs on the device: its iterations run in Python, but for those that only repeat others."""

from __future__ import annotations

from collections.abc import Callable

from .core import Core
from .loops import Turns

# Loops with fewer run whole: to see that iterations repeat takes half as many.
FEWEST_ITERATIONS = 24


def run_loop(core: Core, turns: Turns, left: Callable[[], int], run: Callable[[], None]) -> None:
    """Call ``run`` for each iteration, as long as any is left.

    Args:
        core: of this thread.
        turns: the loop.
        left: how many iterations are left as far as that is known, the next one included; 0 at the end.
        run: the body, which counts in ``turns``.
    """
    observers, tally, meetings = core.observers, core.tally, core.meetings
    turns.may_repeat = core.is_abstract and left() >= FEWEST_ITERATIONS
    observers.tell_entered(turns)
    tally.enter()
    while left():
        run()
        observers.tell_iterated(turns)
        tally.iterate()
        # With data each iteration computes something; and others wait for this core where it meets them.
        if turns.may_repeat and core.meetings == meetings:
            _skip(core, turns, left())
    tally.leave()
    observers.tell_left(turns)


def _skip(core: Core, turns: Turns, left: int) -> None:
    """Leave out what only repeats the iterations before it, for all who count or watch."""
    skip = core.observers.repeats(turns, left)
    if skip is not None:
        core.observers.tell_repeated(turns, skip)
        core.tally.repeat(skip)
        core.skip_numbers(skip.times * skip.instructions)
        turns.count += skip.times * skip.period
