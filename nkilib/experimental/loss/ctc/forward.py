# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The CTC loss on one core: the alphas (:mod:`.recursion`), the losses, and their reduction.

:func:`forward_of_core` processes one group of sequences after another. :class:`Likelihood` holds the losses of a group,
and :class:`Results` the result tensors in HBM. A target has 2 S + 1 states: blank, label, blank, ..., blank. The alpha
of a state is the log-probability of the prefixes of the target that end in this state. T is the number of time steps, N
of sequences, and S of labels of the longest target; *rows* is the number of sequences of a group.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.cores import PartialSums
from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.experimental.loss.ctc.layout import NOTHING, NOWHERE, BatchLayout, Group, Inputs, length_column
from nkilib.experimental.loss.ctc.recursion import store_alphas
from nkilib.nki import nisa, nl


def _last_alphas(group: Group, alpha_hbm: nl.NkiTensor, input_lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the alphas at the last time step of each sequence of a group, [rows, 2 S + 1].

    An input length below 1 counts as 1, and one above T as T.
    """
    layout, rows = group.layout, group.rows
    index_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index_sbuf, src=group.sequences(input_lengths_hbm, 0).reshape((rows, 1)))
    integer_op(index_sbuf, index_sbuf, int32_column(rows, 1, 0), nl.subtract)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, 0, 0), nl.maximum)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, layout.steps - 1, 0), nl.minimum)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, layout.sequences, 0), nl.multiply)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, group.first, 1), nl.add)
    last_sbuf = nl.ndarray((rows, layout.states), dtype=nl.float32, buffer=nl.sbuf)
    rows_hbm = alpha_hbm.reshape((layout.steps * layout.sequences, layout.states))
    nisa.dma_copy(dst=last_sbuf, src=rows_hbm.vector_select(0, index_sbuf))
    return last_sbuf


def _at_state(group: Group, alphas_sbuf: nl.NkiTensor, target_length_sbuf: nl.NkiTensor, offset: float) -> nl.NkiTensor:
    """Return the alpha of state ``2 * target length + offset`` of each sequence, [rows, 1].

    Offset 0 selects the last blank, offset -1 the last label. A state that does not exist has alpha ``NOTHING``, log 0.
    """
    rows, states = group.rows, group.layout.states
    state_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=state_sbuf, data=target_length_sbuf, op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=offset
    )
    number_sbuf = nl.ndarray((rows, states), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=number_sbuf, pattern=[[1, states]])
    is_there_sbuf = nl.ndarray((rows, states), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_there_sbuf, data=number_sbuf, op0=nl.equal, operand0=state_sbuf)
    nisa.memset(dst=number_sbuf, value=NOTHING)
    nisa.tensor_copy_predicated(dst=number_sbuf, src=alphas_sbuf, predicate=is_there_sbuf)
    alpha_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=alpha_sbuf, op=nl.maximum, data=number_sbuf, axis=1)
    return alpha_sbuf


def _minus_log_add(left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    softplus_sbuf = nl.ndarray(left_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    sum_sbuf = nl.ndarray(left_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=softplus_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.subtract)
    nisa.tensor_scalar(dst=softplus_sbuf, data=softplus_sbuf, op0=nl.abs, operand0=None)
    nisa.activation(dst=softplus_sbuf, op=nl.softplus, data=softplus_sbuf, scale=-1.0)
    nisa.tensor_tensor(dst=sum_sbuf, data1=left_sbuf, data2=right_sbuf, op=nl.maximum)
    nisa.tensor_tensor(dst=sum_sbuf, data1=sum_sbuf, data2=softplus_sbuf, op=nl.add)
    nisa.tensor_scalar(dst=sum_sbuf, data=sum_sbuf, op0=nl.multiply, operand0=-1.0)
    return sum_sbuf


def _set_losses_without_time(
    nll_sbuf: nl.NkiTensor, input_length_sbuf: nl.NkiTensor, target_length_sbuf: nl.NkiTensor
) -> None:
    """Set the losses of sequences of input length 0: to 0 if the target is empty, else to infinity."""
    is_empty_sbuf = nl.ndarray(nll_sbuf.shape, dtype=nl.uint32, buffer=nl.sbuf)
    of_empty_sbuf = nl.ndarray(nll_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=is_empty_sbuf, data=input_length_sbuf, op0=nl.less_equal, operand0=0.0)
    nisa.tensor_scalar(
        dst=of_empty_sbuf,
        data=target_length_sbuf,
        op0=nl.greater,
        operand0=0.0,
        op1=nl.multiply,
        operand1=-NOTHING,
    )
    nisa.tensor_copy_predicated(dst=nll_sbuf, src=of_empty_sbuf, predicate=is_empty_sbuf)


@dataclass(frozen=True)
class Likelihood:
    """The losses of a group before reduction; all tiles are [rows, 1], with one value per sequence.

    Attributes:
        nll_sbuf: float32, the losses; infinite for a target without an alignment.
        is_infinite_sbuf: uint32, 1 for a target without an alignment, else 0.
        target_length_sbuf: float32, the number of labels of each target.
    """

    nll_sbuf: nl.NkiTensor
    is_infinite_sbuf: nl.NkiTensor
    target_length_sbuf: nl.NkiTensor

    @classmethod
    def of(
        cls,
        group: Group,
        batch: Inputs,
        alpha_hbm: nl.NkiTensor,
    ) -> Likelihood:
        """Compute the losses of a group of sequences from the alphas.

        The loss of a sequence is -log(exp a + exp b). At the last time step of the sequence, a is the alpha of the last
        blank of the target, and b the alpha of the last label.
        """
        input_length_sbuf = length_column(group.rows, group.sequences(batch.input_lengths_hbm, 0))
        target_length_sbuf = length_column(group.rows, group.sequences(batch.target_lengths_hbm, 0))
        last_sbuf = _last_alphas(group, alpha_hbm, batch.input_lengths_hbm)
        at_blank_sbuf = _at_state(group, last_sbuf, target_length_sbuf, 0.0)
        at_label_sbuf = _at_state(group, last_sbuf, target_length_sbuf, -1.0)
        nll_sbuf = _minus_log_add(at_blank_sbuf, at_label_sbuf)
        _set_losses_without_time(nll_sbuf, input_length_sbuf, target_length_sbuf)
        is_infinite_sbuf = nl.ndarray((group.rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOWHERE)
        nisa.tensor_copy_predicated(dst=nll_sbuf, src=float("inf"), predicate=is_infinite_sbuf)
        return cls(nll_sbuf, is_infinite_sbuf, target_length_sbuf)


@dataclass(frozen=True)
class Results:
    """The result tensors of the forward in HBM, and the options of the loss.

    Attributes:
        loss_hbm: the losses [N] for ``"none"``, else their sum or mean, float32 [1].
        nll_hbm: the losses before reduction, float32 [N]; infinite for a target without an alignment.
        alpha_hbm: the alphas, float32 [T, N, 2 S + 1].
        reduction: ``"none"``, ``"sum"`` or ``"mean"``.
        is_zero_if_infinite: whether an infinite loss counts as 0 in ``loss_hbm``.
    """

    loss_hbm: nl.NkiTensor
    nll_hbm: nl.NkiTensor
    alpha_hbm: nl.NkiTensor
    reduction: str
    is_zero_if_infinite: bool


def factor_of_losses(group: Group, target_length_sbuf: nl.NkiTensor, reduction: str) -> nl.NkiTensor:
    """Return the factor of each loss in the reduction: 1, or for a mean 1 / (N * max(target length, 1)).

    The result is float32, of the shape of ``target_length_sbuf``.
    """
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
        operand1=float(group.layout.sequences),
    )
    nisa.reciprocal(dst=factor_sbuf, data=factor_sbuf)
    return factor_sbuf


def _store_or_sum(group: Group, likelihood: Likelihood, results: Results, sums: PartialSums | None) -> None:
    """Store the losses of a group in ``nll_hbm``, and without a reduction also in ``loss_hbm``.

    With a reduction, ``sums`` gets the losses times their factors in the reduction.
    """
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
    factor_sbuf = factor_of_losses(group, likelihood.target_length_sbuf, results.reduction)
    nisa.tensor_tensor(dst=sums.of_part(group.number, group.rows), data1=loss_sbuf, data2=factor_sbuf, op=nl.multiply)


def forward_of_core(layout: BatchLayout, batch: Inputs, results: Results) -> None:
    """Compute and store the alphas and losses of this core's sequences, and with a reduction the reduced loss."""
    sums = None if results.reduction == "none" else PartialSums.make(layout.groups)
    for group in layout.own_groups():
        store_alphas(batch.sequences(group), batch.log_probs_hbm, batch.blank, results.alpha_hbm)
        likelihood = Likelihood.of(group, batch, results.alpha_hbm)
        _store_or_sum(group, likelihood, results, sums)
    if sums is not None:
        sums.store(results.loss_hbm)
