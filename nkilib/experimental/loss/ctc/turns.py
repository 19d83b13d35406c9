# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The turns of a group: each works on one chunk of time in every block, of which a block is a chunk behind the last.

Turns at the start and the end, where some block has nothing to do or a chunk is short, are unrolled. Those between are
iterations of a loop of the device, which has one copy of its body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.ctc.plan import Plan, Times
from nkilib.nki import nisa, nl

# A loop of fewer iterations spares nothing.
_FEWEST_TRIPS = 2


@dataclass(frozen=True)
class Turn:
    """One chunk of time in every block.

    Attributes:
        number: which of several tiles to take.
        before, now, following: the times of each block in the turn before, in this one and in the next one. What was
            computed before is stored, and what follows is loaded, while this turn computes.
    """

    number: int
    before: list[Times]
    now: list[Times]
    following: list[Times]

    @property
    def computes(self) -> bool:
        """Some block has a time."""
        return not all(times.is_empty for times in self.now)


def run_turns(plan: Plan, is_alpha: bool, per_trip: int, run: Callable[[Turn], None]) -> None:
    """All turns in order, and one more in which nothing is left to compute.

    Args:
        plan: of the launch.
        is_alpha: time ascends, and the first block leads; else both are the other way round.
        per_trip: turns of an iteration of the loop, a multiple of the number of tiles that turns take in turn.
        run: a turn.
    """
    full = plan.steps // plan.chunk
    first = div_ceil(plan.blocks, per_trip) * per_trip
    trips = max(0, full - 1 - first) // per_trip
    if trips < _FEWEST_TRIPS:
        trips = 0

    def times(turn: int, count: nisa.NkiScalar | None) -> list[Times]:
        lags = range(plan.blocks) if is_alpha else range(plan.blocks - 1, -1, -1)
        return [_times(plan, is_alpha, turn - lag, count) for lag in lags]

    def run_turn(turn: int, count: nisa.NkiScalar | None = None) -> None:
        run(Turn(turn, *(times(turn + step, count) for step in (-1, 0, 1))))

    def trip(count: nisa.NkiScalar) -> None:
        for turn in range(first, first + per_trip):
            run_turn(turn, count)

    looped = trips * per_trip
    for turn in range(first if looped else 0):
        run_turn(turn)
    if looped:
        nl.fori_loop(0, looped * plan.chunk, trip, per_trip * plan.chunk)
    for turn in range(first + looped if looped else 0, plan.turns + 1):
        run_turn(turn)


def _times(plan: Plan, is_alpha: bool, chunk: int, count: nisa.NkiScalar | None) -> Times:
    """Of chunk ``chunk`` in the order of the recursion, which may be before the first or behind the last one.

    Args:
        count: steps that the loop has counted, in which all chunks are whole; None outside of it.
    """
    first = chunk * plan.chunk if is_alpha else plan.steps - (chunk + 1) * plan.chunk
    if count is not None:
        return Times(first + count if is_alpha else first - count, 0, plan.chunk)
    return Times(first, max(0, -first), min(plan.chunk, plan.steps - first))
