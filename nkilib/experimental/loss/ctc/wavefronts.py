# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The wavefronts of a group: each processes one chunk of time in every block, and blocks run one chunk behind
each other.

Wavefronts at the start and the end, where some block has nothing to do or a chunk is short, are unrolled.
The others are iterations of a loop of the device, which has one copy of its body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.ctc.plan import Plan, Times
from nkilib.nki import nisa, nl

# A loop of fewer iterations spares nothing.
_FEWEST_ITERATIONS = 2


@dataclass(frozen=True)
class Wavefront:
    """One chunk of time in every block.

    Attributes:
        number: the number of the wavefront, which selects one of the tiles that are used alternately; in a
            loop, that of the first iteration.
        before, now, following: the times of each block in the previous wavefront, in this one and in the next one.
            While this wavefront computes, the results of the previous one are stored and the inputs of the next one are
            loaded.
    """

    number: int
    before: list[Times]
    now: list[Times]
    following: list[Times]

    @property
    def computes(self) -> bool:
        """Whether any block has a time step to compute."""
        return not all(times.is_empty for times in self.now)


def run_wavefronts(plan: Plan, is_alpha: bool, per_iteration: int, run: Callable[[Wavefront], None]) -> None:
    """Run all wavefronts in order, and one more in which nothing is left to compute.

    Args:
        plan: the plan of the launch.
        is_alpha: whether time ascends and the first block leads; else time descends and the last block leads.
        per_iteration: the number of wavefronts in an iteration of the loop, a multiple of the number of tiles
            that alternate.
        run: the function that runs a wavefront.
    """
    full = plan.steps // plan.chunk
    first = div_ceil(plan.blocks, per_iteration) * per_iteration
    iterations = max(0, full - 1 - first) // per_iteration
    if iterations < _FEWEST_ITERATIONS:
        iterations = 0

    def times(wavefront: int, count: nisa.NkiScalar | None) -> list[Times]:
        lags = range(plan.blocks) if is_alpha else range(plan.blocks - 1, -1, -1)
        return [_times(plan, is_alpha, wavefront - lag, count) for lag in lags]

    def run_wavefront(wavefront: int, count: nisa.NkiScalar | None = None) -> None:
        run(Wavefront(wavefront, *(times(wavefront + step, count) for step in (-1, 0, 1))))

    def iteration(count: nisa.NkiScalar) -> None:
        for wavefront in range(first, first + per_iteration):
            run_wavefront(wavefront, count)

    looped = iterations * per_iteration
    for wavefront in range(first if looped else 0):
        run_wavefront(wavefront)
    if looped:
        nl.fori_loop(0, looped * plan.chunk, iteration, per_iteration * plan.chunk)
    for wavefront in range(first + looped if looped else 0, plan.wavefronts + 1):
        run_wavefront(wavefront)


def _times(plan: Plan, is_alpha: bool, chunk: int, count: nisa.NkiScalar | None) -> Times:
    """Return the times of chunk number ``chunk``, counted in the order of the recursion.

    The chunk may lie before the first or behind the last one; then none of its rows exists.

    Args:
        plan: the plan of the launch.
        is_alpha: whether time ascends in the order of the recursion.
        chunk: the number of the chunk; in a loop, that of the first iteration.
        count: the time steps that the loop has counted, in which all chunks are whole; None outside of a loop.
    """
    first = chunk * plan.chunk if is_alpha else plan.steps - (chunk + 1) * plan.chunk
    if count is not None:
        return Times(first + count if is_alpha else first - count, 0, plan.chunk)
    return Times(first, max(0, -first), min(plan.chunk, plan.steps - first))
