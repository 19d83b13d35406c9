# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loads of chunks ahead of the computation: each queue and each engine runs its instructions in the order of issue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from nkilib.core.rows.batches import RowsOfMatrix
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

Rows = TypeVar("Rows", bound=RowsOfMatrix)


def num_chunks(columns: int, first_size: int, chunk_size: int) -> int:
    """Of a row of so many columns, whose first chunk has a size of its own."""
    return 1 + div_ceil(max(0, columns - first_size), chunk_size)


def loads_in_flight(buffers: int) -> int:
    """How many chunks are being loaded at a time.

    Of three or more buffers, one is left to the chunk before, which is still computed on or stored: a load that waits
    for it would hold up whatever its queue has to do next.
    """
    return max(min(2, buffers), buffers - 1)


@dataclass(frozen=True)
class Chunk(Generic[Rows]):
    """Some columns of the rows of a batch.

    Attributes:
        load: its number among all chunks of the core.
        batch: its rows.
        number: in its row, from 0.
        start, end: its columns.
    """

    load: int
    batch: Rows
    number: int
    start: int
    end: int

    @property
    def columns(self) -> int:
        """How many."""
        return self.end - self.start

    def of(self, matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """The part of a matrix that the chunk is, a view."""
        return self.batch.part_of(matrix_hbm, self.start, self.end)


@dataclass(frozen=True)
class Stream(Generic[Rows]):
    """A matrix as the chunks that a core takes one after the other, and the buffers that they take in turn.

    Attributes:
        matrix_hbm: [N, columns].
        batches: of the core, in the order of its visits; a batch may be visited more than once.
        buffers_sbuf: one or more tiles [rows, columns of a chunk].
        chunk_size: columns of a chunk but for the first and the last one of a row, which may have fewer.
        first_size: columns of the first chunk of a row, if the row has as many.
        num_chunks: of a row.
    """

    matrix_hbm: nl.NkiTensor
    batches: list[Rows]
    buffers_sbuf: list[nl.NkiTensor]
    chunk_size: int
    first_size: int
    num_chunks: int

    @classmethod
    def make(
        cls,
        matrix_hbm: nl.NkiTensor,
        batches: list[Rows],
        buffers_sbuf: list[nl.NkiTensor],
        is_first_halved: bool = False,
    ) -> Stream[Rows]:
        """In chunks of a buffer's columns.

        Args:
            matrix_hbm, batches, buffers_sbuf: as the attributes.
            is_first_halved: the first chunk of a row has half as many columns: what waits for it starts earlier.
        """
        chunk_size = buffers_sbuf[0].shape[1]
        first_size = div_ceil(chunk_size, 2) if is_first_halved else chunk_size
        chunks = num_chunks(matrix_hbm.shape[1], first_size, chunk_size)
        return cls(matrix_hbm, batches, buffers_sbuf, chunk_size, first_size, chunks)

    @property
    def loads(self) -> int:
        """Chunks of the core."""
        return len(self.batches) * self.num_chunks

    def chunk(self, load: int) -> Chunk[Rows]:
        """Chunk number ``load`` of the core, counted over all batches."""
        visit, number = divmod(load, self.num_chunks)
        end = self.first_size + number * self.chunk_size
        start = max(0, end - self.chunk_size)
        return Chunk(load, self.batches[visit], number, start, min(end, self.matrix_hbm.shape[1]))

    def loaded(self, load: int) -> nl.NkiTensor:
        """A chunk on chip; also issues the loads of later ones, for which there are buffers: they take them in turn.

        Args:
            load: which one; to be called with 0, 1, 2, ...

        Returns:
            tile [rows, columns of the chunk].
        """
        in_flight = loads_in_flight(len(self.buffers_sbuf))
        first = 0 if load == 0 else load + in_flight - 1
        for number in range(first, min(load + in_flight, self.loads)):
            nisa.dma_copy(dst=self.on_chip(number), src=self.chunk(number).of(self.matrix_hbm))
        return self.on_chip(load)

    def on_chip(self, load: int) -> nl.NkiTensor:
        """The tile that chunk number ``load`` is loaded into."""
        chunk = self.chunk(load)
        buffer_sbuf = self.buffers_sbuf[load % len(self.buffers_sbuf)]
        if buffer_sbuf.shape == (chunk.batch.rows, chunk.columns):
            return buffer_sbuf
        return buffer_sbuf[0 : chunk.batch.rows, 0 : chunk.columns]
