# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiles of a group that are fixed for all times: lengths, labels, and masks of the labels."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.ctc.plan import Group
from nkilib.nki import nisa, nl

# The logarithm of 0, for numbers that stay finite: sums of it with itself and with others stay below NOWHERE.
NOTHING = -1e30
NOWHERE = -1e29


@dataclass(frozen=True)
class Sequences:
    """The lengths and labels of the sequences of a group, and masks of the labels. P is the number of partitions
    of the group.

    In tiles with ``pairs + 1`` columns, columns k and k + 1 belong to the labels before and behind blank k of
    the block.

    Attributes:
        group: the group of the sequences.
        input_length_sbuf, target_length_sbuf: float32 [P, 1].
        class_sbuf: float32 [P, pairs + 1], labels as classes; an arbitrary class where there is no label.
        mask_sbuf: float32 [P, pairs + 1], 0 for a label of the target, else ``NOTHING``, the logarithm of 0.
        is_end_sbuf: uint32 [P, pairs + 1], 1 for the label behind the target.
        may_skip_sbuf: uint32 [P, pairs], 1 where the label of pair k may follow the label before it directly.
    """

    group: Group
    input_length_sbuf: nl.NkiTensor
    target_length_sbuf: nl.NkiTensor
    class_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor
    is_end_sbuf: nl.NkiTensor
    may_skip_sbuf: nl.NkiTensor

    @classmethod
    def load(
        cls,
        group: Group,
        targets_hbm: nl.NkiTensor | None,
        input_lengths_hbm: nl.NkiTensor,
        target_lengths_hbm: nl.NkiTensor,
    ) -> Sequences:
        """Load the lengths and labels of a group from HBM, and compute the masks."""
        pairs = group.plan.pairs
        input_length_sbuf = blocks_of_lengths(group, input_lengths_hbm)
        target_length_sbuf = blocks_of_lengths(group, target_lengths_hbm)
        label_sbuf, number_sbuf = _labels(group, targets_hbm)
        is_behind_sbuf = group.tile(pairs + 1)
        nisa.tensor_scalar(dst=is_behind_sbuf, data=number_sbuf, op0=nl.greater_equal, operand0=target_length_sbuf)
        mask_sbuf, class_sbuf = group.tile(pairs + 1), group.tile(pairs + 1)
        is_end_sbuf = group.tile(pairs + 1, dtype=nl.uint32)
        nisa.tensor_scalar(dst=mask_sbuf, data=is_behind_sbuf, op0=nl.multiply, operand0=NOTHING)
        nisa.memset(dst=mask_sbuf[0 : group.rows, 0:1], value=NOTHING)  # before the first label
        nisa.tensor_scalar(dst=is_end_sbuf, data=number_sbuf, op0=nl.equal, operand0=target_length_sbuf)
        last = float(group.plan.classes - 1)
        nisa.tensor_scalar(dst=class_sbuf, data=label_sbuf, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=last)
        # A class that does not exist has probability 0.
        _add_difference(mask_sbuf, class_sbuf, label_sbuf, is_behind_sbuf)
        may_skip_sbuf = group.tile(pairs, dtype=nl.uint32)
        differs_sbuf = group.tile(pairs)
        nisa.tensor_tensor(
            dst=differs_sbuf, data1=label_sbuf[:, 1 : pairs + 1], data2=label_sbuf[:, 0:pairs], op=nl.not_equal
        )
        nisa.tensor_tensor(dst=may_skip_sbuf, data1=differs_sbuf, data2=is_behind_sbuf[:, 1 : pairs + 1], op=nl.maximum)
        nisa.memset(dst=may_skip_sbuf[0 : group.rows, 0:1], value=1)  # the first label follows the start
        return cls(group, input_length_sbuf, target_length_sbuf, class_sbuf, mask_sbuf, is_end_sbuf, may_skip_sbuf)


def lengths(rows: int, lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load a vector of int32 lengths as a float32 column [rows, 1]."""
    loaded_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=lengths_hbm.reshape((rows, 1)))
    length_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=length_sbuf, src=loaded_sbuf)
    return length_sbuf


def blocks_of_lengths(group: Group, lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load the lengths of a group into each block, float32 [P, 1]."""
    loaded_sbuf = group.tile(1, dtype=nl.int32)
    nisa.memset(dst=loaded_sbuf, value=0)
    for block in range(group.plan.blocks):
        source = group.sequences(lengths_hbm, 0).reshape((group.rows, 1))
        nisa.dma_copy(dst=loaded_sbuf[group.block(block)], src=source)
    length_sbuf = group.tile(1)
    nisa.tensor_copy(dst=length_sbuf, src=loaded_sbuf)
    return length_sbuf


def _labels(group: Group, targets_hbm: nl.NkiTensor | None) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return the labels, 0 where a target has none, and the index of each in its target: float32 [P, pairs + 1]
    each.

    The first index, of the column before the first label, is -1.
    """
    plan = group.plan
    loaded_sbuf = group.tile(plan.pairs + 1, dtype=nl.int32)
    number_sbuf = group.tile(plan.pairs + 1)
    nisa.memset(dst=loaded_sbuf, value=0)
    nisa.memset(dst=number_sbuf, value=0.0)
    for block in range(plan.blocks):
        first = block * plan.pairs - 1
        start, end = max(0, first), min(plan.labels, first + plan.pairs + 1)
        partitions = group.block(block)
        if targets_hbm is not None and start < end:
            source = group.sequences(targets_hbm, 0).slice(1, start, end)
            nisa.dma_copy(dst=loaded_sbuf[partitions, start - first : end - first], src=source)
        nisa.iota(dst=number_sbuf[partitions], pattern=[[1, plan.pairs + 1]], offset=first)
    label_sbuf = group.tile(plan.pairs + 1)
    nisa.tensor_copy(dst=label_sbuf, src=loaded_sbuf)
    return label_sbuf, number_sbuf


def _add_difference(
    mask_sbuf: nl.NkiTensor, class_sbuf: nl.NkiTensor, label_sbuf: nl.NkiTensor, scratch_sbuf: nl.NkiTensor
) -> None:
    """Add ``NOTHING`` to the mask where a label is no class, that is where clamping it to a class has changed it."""
    is_none_sbuf = nl.ndarray(mask_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_none_sbuf, data1=class_sbuf, data2=label_sbuf, op=nl.not_equal)
    nisa.scalar_tensor_tensor(
        dst=mask_sbuf, data=is_none_sbuf, op0=nl.multiply, operand0=NOTHING, op1=nl.add, operand1=mask_sbuf
    )
