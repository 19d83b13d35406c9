# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of a core's rows, stored or summed: a pass of Scalar over the other classes for each target."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, InputBuffers, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores, scores_of_group
from nkilib.experimental.loss.multilabel_margin.targets import TARGETS_OF_TRIP, Ordinals, TargetReader, of_trip
from nkilib.nki import nisa, nl

# Of a block at a time: scores, marks of targets, and two float32 numbers a target.
_BYTES_OF_CLASS = 14


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """The losses [N], or their sum [1]."""
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    _Forward.make(launch).run(loss_hbm, sums)
    if sums is not None:
        sums.store(loss_hbm)


@dataclass(frozen=True)
class _Forward:
    """What all blocks have in common.

    Attributes:
        launch: of the kernel.
        reader: of the targets.
        unused_sbuf: what instructions write that only sum up, float32 [128, C].
    """

    launch: Launch
    reader: TargetReader
    unused_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch) -> _Forward:
        unused_sbuf = nl.ndarray((PARTITIONS, launch.classes), dtype=nl.float32, buffer=nl.sbuf)
        return cls(launch, TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf), unused_sbuf)

    def run(self, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Go through all rows."""
        groups = self.launch.groups(_BYTES_OF_CLASS)
        buffers = InputBuffers.make(self.launch, len(groups[0]))
        lengths = self.reader.lengths(self.launch.blocks())
        trips = self.reader.trips(lengths)
        for group in groups:
            inputs = buffers.loaded(group)
            lists = [self.reader.lists(block, lengths) for block in group]
            found = scores_of_group(inputs, lists, self.reader.ordinals, trips, self.unused_sbuf)
            for block, sum_sbuf in zip(group, self._summed(found, trips), strict=True):
                if block.is_stored:
                    self._finish(block, sum_sbuf, loss_hbm, sums)

    def _summed(self, found: list[Scores], trips: nisa.VirtualRegister) -> list[nl.NkiTensor]:
        """The sum of all terms of each row of each block, float32 [rows, 1]."""
        parts = [float32_like(scores.biases_sbuf) for scores in found]
        for parts_sbuf in parts:
            nisa.memset(dst=parts_sbuf, value=0.0)

        def sum_terms(trip: nisa.VirtualRegister) -> None:
            for place in range(TARGETS_OF_TRIP):
                for scores, parts_sbuf in zip(found, parts, strict=True):
                    nisa.activation(
                        dst=self.unused_sbuf[0 : parts_sbuf.shape[0], :],
                        op=nl.relu,
                        data=scores.others_sbuf,
                        bias=of_trip(scores.biases_sbuf, trip, place),
                        reduce_op=nl.add,
                        reduce_res=of_trip(parts_sbuf, trip, place),
                        reduce_cmd=nisa.reduce_cmd.reset_reduce,
                    )

        nl.fori_loop(0, trips, sum_terms)
        return [_total(parts_sbuf) for parts_sbuf in parts]

    def _finish(
        self, block: RowBlock, sum_sbuf: nl.NkiTensor, loss_hbm: nl.NkiTensor, sums: PartialSums | None
    ) -> None:
        """The losses of a block, stored or summed."""
        rows = block.batch.rows
        losses_sbuf = nl.ndarray((rows, 1), dtype=loss_hbm.dtype, buffer=nl.sbuf)
        to_sbuf = losses_sbuf if sums is None else sums.of_part(block.number, rows)
        nisa.tensor_scalar(dst=to_sbuf, data=sum_sbuf, op0=nl.multiply, operand0=self.launch.factor)
        if sums is None:
            block.batch.stored(loss_hbm, losses_sbuf)


def _total(parts_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """The sum of each row of a tile [rows, trips, targets of a trip]."""
    rows, trips, places = parts_sbuf.shape
    sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=parts_sbuf.reshape((rows, trips * places)), axis=1)
    return sum_sbuf
