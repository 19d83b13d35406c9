# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The sweeps over time of a group: the alphas, stored as they are computed, and the betas with the states'
probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.experimental.loss.ctc.emissions import EmissionSource
from nkilib.experimental.loss.ctc.plan import Group, Times
from nkilib.experimental.loss.ctc.recursion import Recursion
from nkilib.experimental.loss.ctc.sequences import NOTHING, Sequences
from nkilib.experimental.loss.ctc.wavefronts import Wavefront, run_wavefronts
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

_TILES = 2


def store_alphas(sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, alpha_hbm: nl.NkiTensor) -> None:
    """Compute the alphas of a group at all times, and store them into [T, N, 2 S + 1].

    Behind a sequence's end they mean nothing.
    """
    group = sequences.group
    source = EmissionSource.make(sequences, log_probs_hbm, blank, is_alpha=True)
    recursion = Recursion.make(group, True, sequences.may_skip_sbuf)
    start_sbuf = recursion.of(0)[0 : group.rows, 0, 0:1]

    def run(wavefront: Wavefront) -> None:
        _store(group, recursion.of(wavefront.number - 1), wavefront.before, alpha_hbm)
        if wavefront.number == 0:
            source.load(wavefront.number, wavefront.now)
            source.make_ready(wavefront.number, wavefront.now)
        if not wavefront.computes:
            return
        source.load(wavefront.number + 1, wavefront.following)
        recursion.run(wavefront, source)

    nisa.memset(dst=start_sbuf, value=0.0)
    run_wavefronts(group.plan, True, _TILES, run)


def _store(group: Group, states_sbuf: nl.NkiTensor, times: list[Times], alpha_hbm: nl.NkiTensor) -> None:
    plan = group.plan
    for block, of_block in enumerate(times):
        first = 2 * plan.pairs * block
        states = min(2 * plan.pairs, plan.states - first)
        if of_block.is_empty or states <= 0:
            continue
        chunk_hbm = group.sequences(of_block.of(alpha_hbm), 1).slice(2, first, first + states)
        rows_sbuf = states_sbuf[group.block(block), of_block.start + 1 : of_block.end + 1, 1 : states + 1]
        nisa.dma_copy(dst=chunk_hbm.permute((1, 0, 2)), src=rows_sbuf)


@dataclass(frozen=True)
class Posteriors:
    """The recursion of beta, and the probabilities of the states, computed from alphas and betas.

    Columns of tiles are states, as in :class:`.recursion.Direction`.

    Attributes:
        source: the source of the emissions.
        recursion: the recursion of beta.
        alpha_sbuf: the loaded alphas, float32 [P, chunk, 2 * pairs], ``NOTHING`` where there is no state.
        states_sbuf: the probabilities of the states, float32, of the same shape.
        nll_sbuf: the losses, float32 [P, 1], 0 in place of infinity.
    """

    source: EmissionSource
    recursion: Recursion
    alpha_sbuf: nl.NkiTensor
    states_sbuf: nl.NkiTensor
    nll_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, sequences: Sequences, log_probs_hbm: nl.NkiTensor, blank: int, nll_hbm: nl.NkiTensor) -> Posteriors:
        """Allocate the tiles and set the betas at the end of time, where each sequence is in the label behind its
        target.
        """
        group, plan = sequences.group, sequences.group.plan
        recursion = Recursion.make(group, False, sequences.may_skip_sbuf)
        ends_sbuf = recursion.direction.own(recursion.of(0)[:, recursion.direction.carried])
        nisa.tensor_copy_predicated(dst=ends_sbuf, src=0.0, predicate=sequences.is_end_sbuf[:, 0 : plan.pairs])
        alpha_sbuf, states_sbuf = (group.tile(plan.chunk, 2 * plan.pairs) for _ in range(2))
        nisa.memset(dst=alpha_sbuf, value=NOTHING)
        source = EmissionSource.make(sequences, log_probs_hbm, blank, is_alpha=False)
        return cls(source, recursion, alpha_sbuf, states_sbuf, _finite_losses(group, nll_hbm))

    @property
    def group(self) -> Group:
        """The group of the sequences."""
        return self.recursion.group

    def load(self, times: list[Times], alpha_hbm: nl.NkiTensor) -> None:
        """Start the loads of the alphas of a wavefront, given the times of each block."""
        group, plan = self.group, self.group.plan
        for block, of_block in enumerate(times):
            first = 2 * plan.pairs * block - 1
            start, end = max(0, first), min(plan.states, first + 2 * plan.pairs)
            if of_block.is_empty or start >= end:
                continue
            source = group.sequences(of_block.of(alpha_hbm), 1).slice(2, start, end).permute((1, 0, 2))
            nisa.dma_copy(
                dst=self.alpha_sbuf[group.block(block), of_block.rows, start - first : end - first], src=source
            )

    def compute(self, wavefront: int) -> None:
        """Compute the probabilities of a wavefront's states, exp(alpha + beta - emission - log-likelihood)."""
        plan, emissions = self.group.plan, self.source.of(wavefront)
        states_sbuf = self.states_sbuf
        beta_sbuf = self.recursion.of(wavefront)[:, 0 : plan.chunk, 0 : 2 * plan.pairs]
        labels_sbuf, blanks_sbuf = states_sbuf[:, :, 0 : 2 * plan.pairs : 2], states_sbuf[:, :, 1 : 2 * plan.pairs : 2]
        every_sbuf = emissions.blank_sbuf.expand_dim(2).broadcast(2, plan.pairs)
        _on_gpsimd(states_sbuf, self.alpha_sbuf, beta_sbuf, nl.add)
        _on_gpsimd(labels_sbuf, labels_sbuf, emissions.label_sbuf, nl.subtract)
        nisa.tensor_tensor(dst=blanks_sbuf, data1=blanks_sbuf, data2=every_sbuf, op=nl.subtract)
        nisa.activation(dst=states_sbuf, op=nl.exp, data=states_sbuf, bias=self.nll_sbuf)


def _on_gpsimd(dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor, op: Operator) -> None:
    nisa.tensor_tensor(dst=dst_sbuf, data1=left_sbuf, data2=right_sbuf, op=op, engine=nisa.engine.gpsimd)


def _finite_losses(group: Group, nll_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the losses (-log-likelihoods) of a group into each block, with 0 where there is no alignment.

    There all states have probability 0, whatever the loss is.
    """
    nll_sbuf = group.tile(1)
    nisa.memset(dst=nll_sbuf, value=0.0)
    for block in range(group.plan.blocks):
        source = group.sequences(nll_hbm, 0).reshape((group.rows, 1))
        nisa.dma_copy(dst=nll_sbuf[group.block(block)], src=source)
    is_infinite_sbuf = group.tile(1, dtype=nl.uint32)
    nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOTHING)
    nisa.tensor_copy_predicated(dst=nll_sbuf, src=0.0, predicate=is_infinite_sbuf)
    return nll_sbuf
