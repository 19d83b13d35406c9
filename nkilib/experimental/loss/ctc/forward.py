# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward of the groups of sequences of one core."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.experimental.loss.ctc.likelihood import Likelihood
from nkilib.experimental.loss.ctc.plan import Group, Plan
from nkilib.experimental.loss.ctc.sequences import Sequences
from nkilib.experimental.loss.ctc.sweeps import store_alphas
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Batch:
    """The inputs of a loss, in HBM.

    Attributes:
        log_probs_hbm: the log-probabilities, [T, N, C].
        targets_hbm: the labels of the targets, int32 [N, S]; None if S is 0.
        input_lengths_hbm, target_lengths_hbm: the times of each input and the labels of each target, int32 [N].
        blank: class of the blank.
    """

    log_probs_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor | None
    input_lengths_hbm: nl.NkiTensor
    target_lengths_hbm: nl.NkiTensor
    blank: int

    def sequences(self, group: Group) -> Sequences:
        """Load the lengths and labels of a group, which are fixed for all times."""
        return Sequences.load(group, self.targets_hbm, self.input_lengths_hbm, self.target_lengths_hbm)


@dataclass(frozen=True)
class Results:
    """The tensors in HBM for the results of the forward, and the options of the loss.

    Attributes:
        loss_hbm: the losses, [N], or their sum or mean, float32 [1].
        nll_hbm: the losses before reduction, infinite where there is no alignment, float32 [N].
        alpha_hbm: the alphas, float32 [T, N, 2 S + 1].
        reduction: the reduction of the losses.
        is_zero_if_infinite: whether an infinite loss counts as 0.
    """

    loss_hbm: nl.NkiTensor
    nll_hbm: nl.NkiTensor
    alpha_hbm: nl.NkiTensor
    reduction: str
    is_zero_if_infinite: bool


def forward_of_core(plan: Plan, batch: Batch, results: Results) -> None:
    """Compute and store the results for the groups of sequences of this core."""
    sums = None if results.reduction == "none" else PartialSums.make(plan.groups)
    for group in plan.own_groups():
        store_alphas(batch.sequences(group), batch.log_probs_hbm, batch.blank, results.alpha_hbm)
        likelihood = Likelihood.of(group, results.alpha_hbm, batch.input_lengths_hbm, batch.target_lengths_hbm)
        _take(group, likelihood, results, sums)
    if sums is not None:
        sums.store(results.loss_hbm)


def _take(group: Group, likelihood: Likelihood, results: Results, sums: PartialSums | None) -> None:
    """Store the losses of a group of sequences, or put them into ``sums``."""
    column = (group.rows, 1)
    nisa.dma_copy(dst=group.sequences(results.nll_hbm, 0).reshape(column), src=likelihood.nll_sbuf)
    loss_sbuf = nl.ndarray(column, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=loss_sbuf, src=likelihood.nll_sbuf)
    if results.is_zero_if_infinite:
        nisa.tensor_copy_predicated(dst=loss_sbuf, src=0.0, predicate=likelihood.is_infinite_sbuf)
    if sums is None:
        stored_sbuf = nl.ndarray(column, dtype=results.loss_hbm.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=stored_sbuf, src=loss_sbuf)
        nisa.dma_copy(dst=group.sequences(results.loss_hbm, 0).reshape(column), src=stored_sbuf)
        return
    factor_sbuf = reduction_factor(group, likelihood.target_length_sbuf, results.reduction)
    nisa.tensor_tensor(dst=sums.of_part(group.number, group.rows), data1=loss_sbuf, data2=factor_sbuf, op=nl.multiply)


def reduction_factor(group: Group, target_length_sbuf: nl.NkiTensor, reduction: str) -> nl.NkiTensor:
    """Return the factor of each loss in the reduction: 1, or for a mean 1 / (N * max(target length, 1))."""
    factor_sbuf = nl.ndarray(target_length_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    if reduction != "mean":
        nisa.memset(dst=factor_sbuf, value=1.0)
        return factor_sbuf
    nisa.tensor_scalar(
        dst=factor_sbuf,
        data=target_length_sbuf,
        op0=nl.maximum,
        operand0=1.0,
        op1=nl.multiply,
        operand1=float(group.plan.sequences),
    )
    nisa.reciprocal(dst=factor_sbuf, data=factor_sbuf)
    return factor_sbuf
