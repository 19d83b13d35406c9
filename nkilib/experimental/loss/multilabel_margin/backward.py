# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of the rows of one core: for each class a count of positive terms, which is exact, times a
per-row scalar.

A term belongs to a target and another class. For each target, Vector adds 1 to the count of every class
whose term is positive. The number of these classes is the difference of the sums of all counts before and
after. Minus that number is added to the count of the target's class.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, InputBuffers, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores, scores_of_group
from nkilib.experimental.loss.multilabel_margin.targets import (
    TARGETS_OF_ITERATION,
    Ordinals,
    TargetLists,
    TargetReader,
    of_iteration,
)
from nkilib.nki import nisa, nl

# Bytes of a partition for each class of a block: scores, counts, and three float32 numbers for each target.
_BYTES_OF_CLASS = 20


def backward_of_core(launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> None:
    """Write the gradient [N, C] of the rows of this core."""
    _Backward.make(launch, grad_loss_hbm, grad_input_hbm).run()


@dataclass(frozen=True)
class _Backward:
    """The operands and buffers that all blocks share.

    Attributes:
        launch: the launch of the kernel.
        reader: the reader of the targets.
        unused_sbuf: a scratch tile for outputs that are not used, float32 [128, C].
        grad_loss_hbm: the upstream gradients, [N], or that of the sum or mean, float32 [1].
        grad_input_hbm: the gradient, [N, C].
    """

    launch: Launch
    reader: TargetReader
    unused_sbuf: nl.NkiTensor
    grad_loss_hbm: nl.NkiTensor
    grad_input_hbm: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> _Backward:
        unused_sbuf = nl.ndarray((PARTITIONS, launch.classes), dtype=nl.float32, buffer=nl.sbuf)
        reader = TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf)
        return cls(launch, reader, unused_sbuf, grad_loss_hbm, grad_input_hbm)

    def run(self) -> None:
        """Process all rows."""
        groups = self.launch.groups(_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        iterations = self.reader.iterations(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            scores = scores_of_group(inputs, lists, self.reader.ordinals, iterations, self.unused_sbuf)
            counts = self._counted(scores, lists, iterations)
            for block, input_sbuf, counts_sbuf in zip(group, inputs, counts, strict=True):
                nisa.tensor_scalar(dst=input_sbuf, data=counts_sbuf, op0=nl.multiply, operand0=self._factor(block))
                if block.is_stored:
                    store_hbm = block.batch.part_of(self.grad_input_hbm, 0, self.launch.classes)
                    nisa.dma_copy(dst=store_hbm, src=input_sbuf)

    def _factor(self, block: RowBlock) -> nl.NkiTensor:
        """Return the factor that turns the counts of a row into its gradient, float32 [rows, 1]."""
        rows, grad_hbm = block.batch.rows, self.grad_loss_hbm
        grad_sbuf = nl.ndarray((rows, 1), dtype=grad_hbm.dtype, buffer=nl.sbuf)
        if self.launch.is_each:
            of_rows_hbm = grad_hbm.reshape((self.launch.rows, 1))
            nisa.dma_copy(dst=grad_sbuf, src=block.batch.part_of(of_rows_hbm, 0, 1))
        else:
            nisa.dma_copy(dst=grad_sbuf, src=grad_hbm.reshape((1, 1)).broadcast(0, rows))
        factor_sbuf = float32_like(grad_sbuf)
        nisa.tensor_scalar(dst=factor_sbuf, data=grad_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        return factor_sbuf

    def _counted(
        self, group_scores: list[Scores], lists: list[TargetLists], iterations: nisa.VirtualRegister
    ) -> list[nl.NkiTensor]:
        """Return, for each class, the number of positive terms of the class minus the number of positive terms of
        which it is the target.

        Returns:
            The counts of each block, float32 [rows, C].
        """
        counted = [_Counts.make(scores) for scores in group_scores]

        def count_terms(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for counts in counted:
                    counts.count(iteration, place)

        nl.fori_loop(0, iterations, count_terms)
        numbers = [_negative_differences(counts.sums_sbuf) for counts in counted]

        def give(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for counts, target_lists, numbers_sbuf in zip(counted, lists, numbers, strict=True):
                    target_sbuf, number_sbuf = (
                        target_lists.of_iteration(iteration, place),
                        of_iteration(numbers_sbuf, iteration, place),
                    )
                    counts.give(target_sbuf, number_sbuf, self.reader.ordinals, self.unused_sbuf)

        nl.fori_loop(0, iterations, give)
        return [counts.counts_sbuf for counts in counted]


@dataclass(frozen=True)
class _Counts:
    """The counts of positive terms of a block.

    Attributes:
        scores: the scores of the block.
        counts_sbuf: the number of positive terms of each class, float32 [rows, C].
        sums_sbuf: the sum of all counts of a row, after each of its targets has been counted, float32 [rows,
            iterations, targets of an iteration].
    """

    scores: Scores
    counts_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, scores: Scores) -> _Counts:
        """Start with counts of 0, and negate the biases of the scores: a term is positive if the score exceeds the
        result.
        """
        counts = cls(scores, float32_like(scores.others_sbuf), float32_like(scores.biases_sbuf))
        for tile_sbuf in (counts.counts_sbuf, counts.sums_sbuf):
            nisa.memset(dst=tile_sbuf, value=0.0)
        nisa.tensor_scalar(dst=scores.biases_sbuf, data=scores.biases_sbuf, op0=nl.multiply, operand0=-1.0)
        return counts

    def count(self, iteration: nisa.VirtualRegister, place: int) -> None:
        """Count the positive terms of one target of each row: number ``place`` of the loop's current iteration."""
        nisa.scalar_tensor_tensor(
            dst=self.counts_sbuf,
            data=self.scores.others_sbuf,
            op0=nl.greater,
            operand0=of_iteration(self.scores.biases_sbuf, iteration, place),
            op1=nl.add,
            operand1=self.counts_sbuf,
            reduce_op=nl.add,
            reduce_res=of_iteration(self.sums_sbuf, iteration, place),
        )

    def give(
        self, target_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor, ordinals: Ordinals, unused_sbuf: nl.NkiTensor
    ) -> None:
        """Add ``number_sbuf`` to the count of the class of one target of each row.

        Args:
            target_sbuf: the targets, as classes from 1; 0 where a row has no further target, [rows, 1].
            number_sbuf: the numbers to add, [rows, 1].
            ordinals: the numbers of the classes.
            unused_sbuf: a scratch tile, [128, C].
        """
        rows = self.counts_sbuf.shape[0]
        chosen_sbuf = unused_sbuf[0:rows, :]
        nisa.tensor_scalar(
            dst=chosen_sbuf,
            data=ordinals.rising_sbuf[0:rows, :],
            op0=nl.equal,
            operand0=target_sbuf,
            op1=nl.multiply,
            operand1=number_sbuf,
        )
        nisa.tensor_tensor(dst=self.counts_sbuf, data1=self.counts_sbuf, data2=chosen_sbuf, op=nl.add)


def _negative_differences(sums_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return for each number of a row the previous number minus this one; the number before the first one is 0."""
    rows, iterations, places = sums_sbuf.shape
    columns = iterations * places
    flat_sbuf, found_sbuf = sums_sbuf.reshape((rows, columns)), float32_like(sums_sbuf)
    to_sbuf = found_sbuf.reshape((rows, columns))
    nisa.tensor_scalar(dst=to_sbuf[:, 0:1], data=flat_sbuf[:, 0:1], op0=nl.multiply, operand0=-1.0)
    nisa.tensor_tensor(
        dst=to_sbuf[:, 1:columns],
        data1=flat_sbuf[:, 0 : columns - 1],
        data2=flat_sbuf[:, 1:columns],
        op=nl.subtract,
    )
    return found_sbuf
