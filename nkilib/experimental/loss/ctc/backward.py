# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward of the groups of sequences of one core: the betas, and the gradient of each chunk of time
during the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.ctc.forward import Batch
from nkilib.experimental.loss.ctc.gradient import Factors, Gradient, Task, Upstream
from nkilib.experimental.loss.ctc.occupancies import BANK_COLUMNS, Classes, Occupancies, kept_wavefronts
from nkilib.experimental.loss.ctc.plan import Group, Plan
from nkilib.experimental.loss.ctc.sweeps import Posteriors
from nkilib.experimental.loss.ctc.wavefronts import Wavefront, run_wavefronts
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
    """Compute the gradient with respect to the log-probabilities, [T, N, C], for the sequences of this core.

    Args:
        plan: the sizes of the launch.
        batch: the inputs of the loss.
        forward: the second and third result of the forward: the losses before reduction, and the alphas.
        upstream: the upstream gradient and the options of the loss.
        grad_hbm: the result, [T, N, C].
    """
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

    def run(wavefront: Wavefront) -> None:
        if wavefront.number == 0:
            posteriors.source.load(wavefront.number, wavefront.now)
            posteriors.source.make_ready(wavefront.number, wavefront.now)
        else:
            posteriors.compute(wavefront.number - 1)
        tasks = list(_tasks(wavefront, posteriors, gradient))
        if not wavefront.computes:
            for task in tasks:
                task()
            return
        posteriors.source.load(wavefront.number + 1, wavefront.following)
        posteriors.load(wavefront.now, alpha_hbm)
        at_a_time = div_ceil(len(tasks), group.plan.chunk)

        def between(number: int) -> None:
            for task in tasks[number * at_a_time : (number + 1) * at_a_time]:
                task()

        posteriors.recursion.run(wavefront, posteriors.source, between)

    run_wavefronts(group.plan, False, max(_TILES, kept_wavefronts(group.plan.blocks)), run)


def _tasks(wavefront: Wavefront, posteriors: Posteriors, gradient: Gradient) -> Iterator[Task]:
    """Yield the work that is left of the previous wavefront, the transposes and the gradient, in small tasks."""
    before = wavefront.number - 1
    if before < 0:
        return
    chunk = posteriors.group.plan.chunk
    for step in range(0, chunk, _STEPS_OF_BANK):
        steps = min(_STEPS_OF_BANK, chunk - step)
        yield partial(gradient.occupancies.transpose, before, step, steps, posteriors.states_sbuf)
    through = wavefront.before[0]
    if not through.is_empty:
        yield from gradient.tasks(before, through)
