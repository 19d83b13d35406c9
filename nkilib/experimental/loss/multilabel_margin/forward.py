# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of the rows of one core, stored or summed. For each target, Scalar makes a pass over the other
classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, InputBuffers, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores, scores_of_group
from nkilib.experimental.loss.multilabel_margin.targets import (
    TARGETS_OF_ITERATION,
    Ordinals,
    TargetReader,
    of_iteration,
)
from nkilib.nki import nisa, nl

# Bytes of a partition for each class of a block: scores, marks of targets, and two float32 numbers for each target.
_BYTES_OF_CLASS = 14


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """Compute the losses of the rows of this core, [N], or the sum of the losses of all cores, [1]."""
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    _Forward.make(launch).run(loss_hbm, sums)
    if sums is not None:
        sums.store(loss_hbm)


@dataclass(frozen=True)
class _Forward:
    """The operands and buffers that all blocks share.

    Attributes:
        launch: the launch of the kernel.
        reader: the reader of the targets.
        unused_sbuf: a scratch tile for the output of instructions of which only the sum is used, float32 [128,
            C].
    """

    launch: Launch
    reader: TargetReader
    unused_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch) -> _Forward:
        unused_sbuf = nl.ndarray((PARTITIONS, launch.classes), dtype=nl.float32, buffer=nl.sbuf)
        return cls(launch, TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf), unused_sbuf)

    def run(self, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Process all rows."""
        groups = self.launch.groups(_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        iterations = self.reader.iterations(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            scores = scores_of_group(inputs, lists, self.reader.ordinals, iterations, self.unused_sbuf)
            for block, sum_sbuf in zip(group, self._summed(scores, iterations), strict=True):
                if block.is_stored:
                    self._finish(block, sum_sbuf, loss_hbm, sums)

    def _summed(self, group_scores: list[Scores], iterations: nisa.VirtualRegister) -> list[nl.NkiTensor]:
        """Return the sum of all terms of each row of each block, float32 [rows, 1]."""
        parts = [float32_like(scores.biases_sbuf) for scores in group_scores]
        for parts_sbuf in parts:
            nisa.memset(dst=parts_sbuf, value=0.0)

        def sum_terms(iteration: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_ITERATION):
                for scores, parts_sbuf in zip(group_scores, parts, strict=True):
                    nisa.activation(
                        dst=self.unused_sbuf[0 : parts_sbuf.shape[0], :],
                        op=nl.relu,
                        data=scores.others_sbuf,
                        bias=of_iteration(scores.biases_sbuf, iteration, place),
                        reduce_op=nl.add,
                        reduce_res=of_iteration(parts_sbuf, iteration, place),
                        reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    )

        nl.fori_loop(0, iterations, sum_terms)
        return [_total(parts_sbuf) for parts_sbuf in parts]

    def _finish(
        self, block: RowBlock, sum_sbuf: nl.NkiTensor, loss_hbm: nl.NkiTensor, sums: PartialSums | None
    ) -> None:
        """Store the losses of a block, or put them into ``sums``."""
        rows = block.batch.rows
        losses_sbuf = nl.ndarray((rows, 1), dtype=loss_hbm.dtype, buffer=nl.sbuf)
        to_sbuf = losses_sbuf if sums is None else sums.of_part(block.number, rows)
        nisa.tensor_scalar(dst=to_sbuf, data=sum_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        if sums is None:
            block.batch.stored(loss_hbm, losses_sbuf)


def _total(parts_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the sum of each row of a tile [rows, iterations, targets of an iteration]."""
    rows, iterations, places = parts_sbuf.shape
    sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=parts_sbuf.reshape((rows, iterations * places)), axis=1)
    return sum_sbuf
