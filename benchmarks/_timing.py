# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Timing of several ways to do the same work on a shared machine: their runs alternate, and the shortest ones count."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Contender:
    """One of several ways to do the same work.

    Attributes:
        run: the work that is timed.
        prepare: called before every run, not timed.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


def interleaved_minimum(
    contenders: Mapping[str, Contender], runs: int, clock: Callable[[], float] | None = None
) -> dict[str, float]:
    """Return the shortest run of each contender, in seconds of ``clock``, by default ``time.perf_counter``.

    The contenders alternate, so that a slow period of the machine affects all of them; the minimum is what remains when
    nothing else disturbs. One round before the first that counts warms caches and thread pools.

    Raises:
        ValueError: ``runs`` is not positive.
    """
    if runs < 1:
        raise ValueError(f"interleaved_minimum: runs must be at least 1, got {runs}")
    clock = time.perf_counter if clock is None else clock
    best = dict.fromkeys(contenders, float("inf"))
    for round_number in range(runs + 1):
        for name, contender in contenders.items():
            contender.prepare()
            start = clock()
            result = contender.run()
            elapsed = clock() - start
            # Freed here, outside of the timed part: unmapping a large result is not the contender's work.
            del result
            if round_number > 0:
                best[name] = min(best[name], elapsed)
    return best
