# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of a group of sequences, computed from the stored alphas."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.elements import int32_column, integer_op
from nkilib.experimental.loss.ctc.plan import Group
from nkilib.experimental.loss.ctc.sequences import NOTHING, NOWHERE, lengths
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Likelihood:
    """The losses of the sequences of a group: float32 [rows, 1].

    Attributes:
        nll_sbuf: -log-likelihoods, infinite where there is no alignment.
        is_infinite_sbuf: uint32, 1 where there is no alignment.
        target_length_sbuf: the lengths of the targets.
    """

    nll_sbuf: nl.NkiTensor
    is_infinite_sbuf: nl.NkiTensor
    target_length_sbuf: nl.NkiTensor

    @classmethod
    def of(
        cls,
        group: Group,
        alpha_hbm: nl.NkiTensor,
        input_lengths_hbm: nl.NkiTensor,
        target_lengths_hbm: nl.NkiTensor,
    ) -> Likelihood:
        """Compute the losses of a group of sequences.

        The log-likelihood is log(exp a + exp b), where a and b are the alphas of the last blank and the last label
        at the last time of each sequence.
        """
        input_length_sbuf = lengths(group.rows, group.sequences(input_lengths_hbm, 0))
        target_length_sbuf = lengths(group.rows, group.sequences(target_lengths_hbm, 0))
        last_sbuf = _last_alphas(group, alpha_hbm, input_lengths_hbm)
        at_blank_sbuf = _at_state(group, last_sbuf, target_length_sbuf, 0.0)
        at_label_sbuf = _at_state(group, last_sbuf, target_length_sbuf, -1.0)
        nll_sbuf = _minus_log_add(at_blank_sbuf, at_label_sbuf)
        _without_time(nll_sbuf, input_length_sbuf, target_length_sbuf)
        is_infinite_sbuf = nl.ndarray((group.rows, 1), dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=is_infinite_sbuf, data=nll_sbuf, op0=nl.greater, operand0=-NOWHERE)
        nisa.tensor_copy_predicated(dst=nll_sbuf, src=float("inf"), predicate=is_infinite_sbuf)
        return cls(nll_sbuf, is_infinite_sbuf, target_length_sbuf)


def _last_alphas(group: Group, alpha_hbm: nl.NkiTensor, input_lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the alphas at the last time of each sequence, [rows, 2 S + 1]. Lengths are clamped to times that exist."""
    plan, rows = group.plan, group.rows
    index_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=index_sbuf, src=group.sequences(input_lengths_hbm, 0).reshape((rows, 1)))
    integer_op(index_sbuf, index_sbuf, int32_column(rows, 1, 0), nl.subtract)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, 0, 0), nl.maximum)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, plan.steps - 1, 0), nl.minimum)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, plan.sequences, 0), nl.multiply)
    integer_op(index_sbuf, index_sbuf, int32_column(rows, group.first, 1), nl.add)
    last_sbuf = nl.ndarray((rows, plan.states), dtype=nl.float32, buffer=nl.sbuf)
    rows_hbm = alpha_hbm.reshape((plan.steps * plan.sequences, plan.states))
    nisa.dma_copy(dst=last_sbuf, src=rows_hbm.vector_select(0, index_sbuf))
    return last_sbuf


def _at_state(group: Group, alphas_sbuf: nl.NkiTensor, target_length_sbuf: nl.NkiTensor, offset: float) -> nl.NkiTensor:
    """Return the alpha of state number ``2 * target length + offset`` of each sequence.

    It is ``NOTHING``, which stands for the logarithm of 0, where there is no such state.
    """
    rows, states = group.rows, group.plan.states
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


def _without_time(nll_sbuf: nl.NkiTensor, input_length_sbuf: nl.NkiTensor, target_length_sbuf: nl.NkiTensor) -> None:
    """Set the losses of sequences with an input length of 0 in ``nll_sbuf``.

    Such a loss is 0 if the target is empty; else there is no alignment.
    """
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
