"""The losses of a core's rows, stored or summed: a pass of Scalar over the other classes for each target."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multilabel_margin.launch import PARTITIONS, Launch, RowBlock
from nkilib.experimental.loss.multilabel_margin.scores import Scores
from nkilib.experimental.loss.multilabel_margin.targets import Ordinals, TargetReader, of_trip
from nkilib.nki import nisa, nl

BUFFERS = 2


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """The losses [N], or their sum [1]."""
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    _Forward.make(launch).run(loss_hbm, sums)
    if sums is not None:
        total_sbuf = sums.total(pipe=0)
        if nl.program_id(0) == 0:
            nisa.dma_copy(dst=loss_hbm.reshape((1, 1)), src=total_sbuf)


@dataclass(frozen=True)
class _Forward:
    """What all blocks have in common.

    Attributes:
        launch: of the kernel.
        reader: of the targets.
        buffers_sbuf: tiles [128, C] of the input, which blocks take in turn.
        unused_sbuf: what instructions write that only sum up, float32 [128, C].
    """

    launch: Launch
    reader: TargetReader
    buffers_sbuf: list[nl.NkiTensor]
    unused_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch) -> _Forward:
        shape = (PARTITIONS, launch.classes)
        buffers = [nl.ndarray(shape, dtype=launch.input_hbm.dtype, buffer=nl.sbuf) for _ in range(BUFFERS)]
        unused_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        return cls(launch, TargetReader.make(launch, Ordinals.make(launch.classes), unused_sbuf), buffers, unused_sbuf)

    def run(self, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Go through all rows."""
        blocks = self.launch.blocks()
        lengths_sbuf = self.reader.lengths(blocks)
        trips = self.reader.trips(lengths_sbuf)
        for place, block in enumerate(blocks):
            rows = block.batch.rows
            input_sbuf = self.launch.loaded(block, self.buffers_sbuf[place % BUFFERS])
            lists = self.reader.lists(place, block, lengths_sbuf[0:rows, place : place + 1])
            scores = Scores.make(input_sbuf, lists, self.reader.ordinals, trips, self.unused_sbuf)
            if block.is_stored:
                self._finish(block, self._summed(scores, trips), loss_hbm, sums)
            else:
                self._summed(scores, trips)

    def _summed(self, scores: Scores, trips: nisa.VirtualRegister) -> nl.NkiTensor:
        """The sum of all terms of each row, float32 [rows, 1]."""
        parts_sbuf = float32_like(scores.biases_sbuf)
        nisa.memset(dst=parts_sbuf, value=0.0)
        rows = parts_sbuf.shape[0]

        def sum_terms(trip: nisa.VirtualRegister) -> None:
            for place in range(parts_sbuf.shape[2]):
                nisa.activation(
                    dst=self.unused_sbuf[0:rows, :],
                    op=nl.relu,
                    data=scores.others_sbuf,
                    bias=of_trip(scores.biases_sbuf, trip, place),
                    reduce_op=nl.add,
                    reduce_res=of_trip(parts_sbuf, trip, place),
                    reduce_cmd=nisa.reduce_cmd.reset_reduce,
                )

        nl.fori_loop(0, trips, sum_terms)
        sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        columns = parts_sbuf.shape[1] * parts_sbuf.shape[2]
        nisa.tensor_reduce(dst=sum_sbuf, op=nl.add, data=parts_sbuf.reshape((rows, columns)), axis=1)
        return sum_sbuf

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
