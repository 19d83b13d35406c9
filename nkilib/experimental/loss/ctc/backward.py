# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of a core's groups: betas, and the gradient of a chunk of time while the next one is computed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.ctc.forward import Batch
from nkilib.experimental.loss.ctc.gradient import Factors, Gradient, Task, Upstream
from nkilib.experimental.loss.ctc.occupancies import BANK_COLUMNS, Classes, Occupancies, kept_turns
from nkilib.experimental.loss.ctc.plan import Group, Plan
from nkilib.experimental.loss.ctc.sweeps import Posteriors
from nkilib.experimental.loss.ctc.turns import Turn, run_turns
from nkilib.nki import nl

_TILES = 2
# Transposed steps of a bank of PSUM.
_STEPS_OF_BANK = BANK_COLUMNS // PARTITIONS


def backward_of_core(
    plan: Plan,
    batch: Batch,
    forward: tuple[nl.NkiTensor, nl.NkiTensor],
    upstream: Upstream,
    grad_hbm: nl.NkiTensor,
) -> None:
    """The gradient by the log-probabilities, [T, N, C], from what the forward found: losses and alphas."""
    for group in plan.own_groups():
        _backward_of_group(group, batch, forward, upstream, grad_hbm)


def _backward_of_group(
    group: Group,
    batch: Batch,
    forward: tuple[nl.NkiTensor, nl.NkiTensor],
    upstream: Upstream,
    grad_hbm: nl.NkiTensor,
) -> None:
    nll_hbm, alpha_hbm = forward
    sequences = batch.sequences(group)
    posteriors = Posteriors.make(sequences, batch.log_probs_hbm, batch.blank, nll_hbm)
    factors = Factors.make(group, upstream, nll_hbm, batch.input_lengths_hbm, batch.target_lengths_hbm)
    occupancies = Occupancies.make(Classes.make(sequences, batch.blank))
    gradient = Gradient(factors, occupancies, batch.log_probs_hbm, grad_hbm)

    def run(turn: Turn) -> None:
        if turn.number == 0:
            posteriors.source.load(turn.number, turn.now)
            posteriors.source.make_ready(turn.number, turn.now)
        else:
            posteriors.compute(turn.number - 1)
        tasks = list(_tasks(turn, posteriors, gradient))
        if not turn.computes:
            for task in tasks:
                task()
            return
        posteriors.source.load(turn.number + 1, turn.following)
        posteriors.load(turn.now, alpha_hbm)
        at_a_time = div_ceil(len(tasks), group.plan.chunk)

        def between(number: int) -> None:
            for task in tasks[number * at_a_time : (number + 1) * at_a_time]:
                task()

        posteriors.recursion.run(turn, posteriors.source, between)

    run_turns(group.plan, False, max(_TILES, kept_turns(group.plan.blocks)), run)


def _tasks(turn: Turn, posteriors: Posteriors, gradient: Gradient) -> Iterator[Task]:
    """What is left to do of the turn before, in small parts."""
    before = turn.number - 1
    if before < 0:
        return
    chunk = posteriors.group.plan.chunk
    for step in range(0, chunk, _STEPS_OF_BANK):
        steps = min(_STEPS_OF_BANK, chunk - step)
        yield partial(gradient.occupancies.turn_over, before, step, steps, posteriors.states_sbuf)
    through = turn.before[0]
    if not through.is_empty:
        yield from gradient.tasks(before, through)
