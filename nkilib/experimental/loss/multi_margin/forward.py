# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The losses of the rows of one core, stored or summed.

A row is read once. The element at its target is gathered before. The sum over the row includes the term of
the target itself; that term is computed by the same float32 operations, and subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.partial_sums import PartialSums
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.row_sums import RowSums
from nkilib.core.rows.stream import Chunk, Stream
from nkilib.core.rows.tiles import float32_like
from nkilib.experimental.loss.multi_margin.host.tiling import BUFFERS
from nkilib.experimental.loss.multi_margin.launch import Launch, RowBlock
from nkilib.experimental.loss.multi_margin.terms import Scratch, hinges, hinges_on_vector, square_hinges, sum_without
from nkilib.experimental.loss.multi_margin.thresholds import Thresholds, thresholds_of_blocks
from nkilib.nki import nisa, nl

# Of each cycle of chunks Vector processes one and Scalar the others: both engines are then faster than the loads.
_CYCLE, _CHUNK_OF_VECTOR = 3, 1


def forward_of_core(launch: Launch, loss_hbm: nl.NkiTensor) -> None:
    """Compute the losses of the rows of this core, [N], or the sum of the losses of all cores, [1]."""
    sums = None if launch.is_each else PartialSums.make(launch.number_of_blocks)
    blocks = launch.blocks()
    if blocks:
        _Forward.make(launch, blocks).run(blocks, loss_hbm, sums)
    if sums is not None:
        sums.store(loss_hbm)


@dataclass(frozen=True)
class _PendingBlock:
    """A block whose terms are being summed.

    Attributes:
        block: the rows.
        thresholds: the thresholds of the rows.
        parts: the sum of the terms of each chunk.
        own_sbuf: the term of the target itself, which the sums include, float32 [rows, 1].
    """

    block: RowBlock
    thresholds: Thresholds
    parts: RowSums
    own_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class _Forward:
    """The operands and buffers that all blocks share.

    Attributes:
        launch: the launch of the kernel.
        stream: the stream of the input.
        scratch: float32 tiles for the terms of p = 2; None for p = 1.
        zeros_sbuf: a tile of zeros as large as a chunk.
    """

    launch: Launch
    stream: Stream[Batch]
    scratch: Scratch | None
    zeros_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, blocks: list[RowBlock]) -> _Forward:
        buffers = ring_of(BUFFERS, launch.tiling.chunk_size, launch.input_hbm.dtype)
        stream = Stream.make(launch.input_hbm, [block.batch for block in blocks], buffers, is_first_halved=True)
        scratch = Scratch.make(launch, nl.float32) if launch.options.p == 2 else None
        (zeros_sbuf,) = ring_of(1, launch.tiling.chunk_size, nl.bfloat16)
        nisa.memset(dst=zeros_sbuf, value=0.0)
        return cls(launch, stream, scratch, zeros_sbuf)

    def run(self, blocks: list[RowBlock], loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Process all rows. The sums of a block are finished during the next block, so that no engine waits
        for them.
        """
        all_thresholds = thresholds_of_blocks(self.launch, blocks)
        previous: _PendingBlock | None = None
        for visit, block in enumerate(blocks):
            pending = self._begin(block, next(all_thresholds))
            for number in range(self.stream.num_chunks):
                load = visit * self.stream.num_chunks + number
                self._terms(self.stream.chunk(load), self.stream.loaded(load), pending)
                if number == 0 and previous is not None:
                    self._finish(previous, loss_hbm, sums)
            previous = pending
        if previous is not None:
            self._finish(previous, loss_hbm, sums)

    def _begin(self, block: RowBlock, thresholds: Thresholds) -> _PendingBlock:
        """Begin a block with the term of the target itself, which the sums over chunks will include."""
        own_sbuf, term_sbuf = float32_like(thresholds.value_sbuf), float32_like(thresholds.value_sbuf)
        terms = hinges if self.scratch is None else square_hinges
        terms(term_sbuf, thresholds.value_sbuf, thresholds.bias_sbuf, own_sbuf)
        return _PendingBlock(block, thresholds, RowSums.make(block.batch.rows, self.stream.num_chunks), own_sbuf)

    def _terms(self, chunk: Chunk[Batch], input_sbuf: nl.NkiTensor, pending: _PendingBlock) -> None:
        bias_sbuf, sum_sbuf = pending.thresholds.bias_sbuf, pending.parts.part(chunk.number, chunk.batch.rows)
        if self.scratch is not None:
            square_hinges(self.scratch.tile(chunk.load, input_sbuf), input_sbuf, bias_sbuf, sum_sbuf)
        elif chunk.number % _CYCLE == _CHUNK_OF_VECTOR:
            hinges_on_vector(input_sbuf, self.zeros_sbuf, bias_sbuf, sum_sbuf)
        else:
            hinges(input_sbuf, input_sbuf, bias_sbuf, sum_sbuf)

    def _finish(self, pending: _PendingBlock, loss_hbm: nl.NkiTensor, sums: PartialSums | None) -> None:
        """Store the losses of a block, or put them into ``sums``."""
        rows = pending.block.batch.rows
        losses_sbuf = nl.ndarray((rows, 1), dtype=loss_hbm.dtype, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=losses_sbuf if sums is None else sums.of_part(pending.block.number, rows),
            data=sum_without(pending.parts, pending.own_sbuf),
            op0=nl.multiply,
            operand0=self.launch.factor,
            op1=nl.multiply,
            operand1=pending.thresholds.elements.weight_sbuf,
        )
        if sums is None:
            pending.block.batch.stored(loss_hbm, losses_sbuf)
