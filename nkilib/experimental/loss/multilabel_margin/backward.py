# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of a core's rows: counts of positive terms, which are exact, times one number a row.

For each target Vector adds 1 to every class whose term is positive, and how many these are is read from the sums before
and after. Minus that number goes to the class of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, InputBuffers, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores, scores_of_group
from nkilib.experimental.loss.multilabel_margin.targets import (
    TARGETS_OF_TRIP,
    Ordinals,
    TargetLists,
    TargetReader,
    of_trip,
)
from nkilib.nki import nisa, nl

# Of a block at a time: scores, counts, and three float32 numbers a target.
_BYTES_OF_CLASS = 20


def backward_of_core(launch: Launch, grad_loss_hbm: nl.NkiTensor, grad_input_hbm: nl.NkiTensor) -> None:
    """The gradient [N, C] of the rows of this core."""
    _Backward.make(launch, grad_loss_hbm, grad_input_hbm).run()


@dataclass(frozen=True)
class _Backward:
    """What all blocks have in common.

    Attributes:
        launch: of the kernel.
        reader: of the targets.
        unused_sbuf: float32 [128, C].
        grad_loss_hbm: [N], or float32 [1].
        grad_input_hbm: [N, C].
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
        """Go through all rows."""
        groups = self.launch.groups(_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        trips = self.reader.trips(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            found = scores_of_group(inputs, lists, self.reader.ordinals, trips, self.unused_sbuf)
            counts = self._counted(found, lists, trips)
            for block, input_sbuf, counts_sbuf in zip(group, inputs, counts, strict=True):
                nisa.tensor_scalar(dst=input_sbuf, data=counts_sbuf, op0=nl.multiply, operand0=self._factor(block))
                if block.is_stored:
                    store_hbm = block.batch.part_of(self.grad_input_hbm, 0, self.launch.classes)
                    nisa.dma_copy(dst=store_hbm, src=input_sbuf)

    def _factor(self, block: RowBlock) -> nl.NkiTensor:
        """What counts are multiplied by, float32 [rows, 1]."""
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
        self, found: list[Scores], lists: list[TargetLists], trips: nisa.VirtualRegister
    ) -> list[nl.NkiTensor]:
        """How many positive terms raise a class of a block, less those that it is the target of: float32 [rows, C]."""
        counted = [_Counts.make(scores) for scores in found]

        def count_terms(trip: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_TRIP):
                for counts in counted:
                    counts.count(trip, place)

        nl.fori_loop(0, trips, count_terms)
        numbers = [_negative_differences(counts.sums_sbuf) for counts in counted]

        def give(trip: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_TRIP):
                for counts, each, numbers_sbuf in zip(counted, lists, numbers, strict=True):
                    target_sbuf, number_sbuf = each.of_trip(trip, place), of_trip(numbers_sbuf, trip, place)
                    counts.give(target_sbuf, number_sbuf, self.reader.ordinals, self.unused_sbuf)

        nl.fori_loop(0, trips, give)
        return [counts.counts_sbuf for counts in counted]


@dataclass(frozen=True)
class _Counts:
    """Of a block.

    Attributes:
        scores: of it.
        counts_sbuf: of positive terms, float32 [rows, C].
        sums_sbuf: of the counts of a row after each target, float32 [rows, trips, targets of a trip].
    """

    scores: Scores
    counts_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, scores: Scores) -> _Counts:
        """All 0. The biases of the scores become what scores of positive terms are above."""
        counts = cls(scores, float32_like(scores.others_sbuf), float32_like(scores.biases_sbuf))
        for tile_sbuf in (counts.counts_sbuf, counts.sums_sbuf):
            nisa.memset(dst=tile_sbuf, value=0.0)
        nisa.tensor_scalar(dst=scores.biases_sbuf, data=scores.biases_sbuf, op0=nl.multiply, operand0=-1.0)
        return counts

    def count(self, trip: nisa.VirtualRegister, place: int) -> None:
        """The positive terms of a target of each row."""
        nisa.scalar_tensor_tensor(
            dst=self.counts_sbuf,
            data=self.scores.others_sbuf,
            op0=nl.greater,
            operand0=of_trip(self.scores.biases_sbuf, trip, place),
            op1=nl.add,
            operand1=self.counts_sbuf,
            reduce_op=nl.add,
            reduce_res=of_trip(self.sums_sbuf, trip, place),
        )

    def give(
        self, target_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor, ordinals: Ordinals, unused_sbuf: nl.NkiTensor
    ) -> None:
        """Add the number of a target to the count of its class, where there was 0."""
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
    """Of each number the one before it less itself, in a tile of the same shape; before the first one is 0."""
    rows, trips, places = sums_sbuf.shape
    columns = trips * places
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
