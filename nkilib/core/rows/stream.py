# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Chunks of a matrix, loaded ahead of the computation, and a loop over pieces that begins the next piece before it
finishes the current one.

A :class:`Stream` loads the chunks (:class:`Chunk`) of a core in their order. :func:`run_overlapped` is the loop. It
takes *pieces* (parts of chunks, or whole chunks) from a :class:`PieceStream`, and does the two steps of
:class:`Overlapped` for each piece. A *visit* is the processing of one loaded chunk. :class:`SplitRows` are rows whose
chunks are columns of a part of a row of the matrix.

Each queue and each engine runs its instructions in the order of issue. If a piece were finished before the next one is
begun, an engine that has nothing to do with the end of this piece would still wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import RowsOfMatrix
from nkilib.core.rows.row_plan import RowBatch, RowPiece
from nkilib.nki import nisa, nl

Rows = TypeVar("Rows", bound=RowsOfMatrix)
Placed = TypeVar("Placed")
Placed_contra = TypeVar("Placed_contra", contravariant=True)
Begun = TypeVar("Begun")


def num_chunks(columns: int, first_size: int, chunk_size: int) -> int:
    """Return the number of chunks of a row of ``columns`` columns: one of ``first_size``, the others of ``chunk_size``
    columns.
    """
    return 1 + div_ceil(max(0, columns - first_size), chunk_size)


def loads_in_flight(buffers: int) -> int:
    """Return how many chunks are loaded at a time, given the number of buffers.

    With three or more buffers, the buffer of the previous chunk, which may still be in use, gets no load yet: a load
    that waits for this buffer would hold up the later instructions of its queue.
    """
    return max(min(2, buffers), buffers - 1)


@dataclass(frozen=True)
class Chunk(Generic[Rows]):
    """Some columns of the rows of a batch.

    Attributes:
        load: the index of the chunk among all chunks of the core, from 0.
        batch: the rows of the chunk.
        number: the number of the chunk in its row, from 0.
        start, end: the columns of the chunk, from ``start`` up to but not including ``end``.
    """

    load: int
    batch: Rows
    number: int
    start: int
    end: int

    @property
    def columns(self) -> int:
        """The number of columns."""
        return self.end - self.start

    def of(self, matrix_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the chunk's part of a matrix, as a view."""
        return self.batch.part_of(matrix_hbm, self.start, self.end)


@dataclass(frozen=True)
class SplitRows:
    """The parts of the rows of a batch, as the rows of chunks: a chunk has some columns of every part.

    Attributes:
        batch: the rows, each on ``batch.plan.parts`` partitions.
    """

    batch: RowBatch

    @property
    def rows(self) -> int:
        """The number of parts, one in each partition."""
        return self.batch.partitions

    @property
    def columns(self) -> int:
        """The number of columns of a part, padding included."""
        return self.batch.plan.columns

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns ``start`` to ``end`` of the parts, which all of them must have, [rows, parts of a row,
        columns].
        """
        batch, plan = self.batch, self.batch.plan
        rows_hbm = matrix_hbm[batch.first : batch.first + batch.lines, 0 : plan.parts * plan.width]
        return rows_hbm.reshape_dim(1, (plan.parts, plan.width))[:, :, start:end]

    def load(self, matrix_hbm: nl.NkiTensor, start: int, end: int, chunk_sbuf: nl.NkiTensor, padding: float) -> None:
        """Load columns of the parts into a tile [parts, columns]; ``padding`` where only the last part of a row has
        data.
        """
        self.batch.load(matrix_hbm, RowPiece(0, 1, start, end, 0), chunk_sbuf.expand_dim(1), padding)

    def store(self, matrix_hbm: nl.NkiTensor, start: int, end: int, chunk_sbuf: nl.NkiTensor) -> None:
        """Store a tile [parts, columns], without its padding, as columns of the parts."""
        self.batch.store(matrix_hbm, RowPiece(0, 1, start, end, 0), chunk_sbuf.expand_dim(1))


@dataclass(frozen=True)
class Stream(Generic[Rows]):
    """A matrix as the sequence of chunks that a core processes, and the ring buffer that the chunks are loaded into.

    Attributes:
        matrix_hbm: the matrix, [N, columns].
        batches: the batches of the core in the order of processing; a batch may occur more than once.
        columns: the number of columns of a row of a batch: those of the matrix, or of a part of a row of the matrix.
        buffers_sbuf: the tiles of the ring buffer, [rows, columns of a chunk].
        chunk_size: the number of columns of a chunk; the first and the last chunk of a row may have fewer.
        first_size: the number of columns of the first chunk of a row; a shorter row is one chunk.
        num_chunks: the number of chunks of a row.
    """

    matrix_hbm: nl.NkiTensor
    batches: list[Rows]
    columns: int
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
        columns: int | None = None,
    ) -> Stream[Rows]:
        """Return a stream whose chunks have as many columns as a buffer.

        Args:
            matrix_hbm, batches, buffers_sbuf: see the attributes.
            is_first_halved: whether the first chunk of a row has half as many columns, so that work that waits for it
                starts earlier.
            columns: the number of columns of a row; None for those of the matrix.
        """
        chunk_size = buffers_sbuf[0].shape[1]
        columns = matrix_hbm.shape[1] if columns is None else columns
        first_size = div_ceil(chunk_size, 2) if is_first_halved else chunk_size
        chunks = num_chunks(columns, first_size, chunk_size)
        return cls(matrix_hbm, batches, columns, buffers_sbuf, chunk_size, first_size, chunks)

    @property
    def loads(self) -> int:
        """The number of chunks of the core."""
        return len(self.batches) * self.num_chunks

    def chunk(self, load: int) -> Chunk[Rows]:
        """Return chunk number ``load`` of the core."""
        visit, number = divmod(load, self.num_chunks)
        end = self.first_size + number * self.chunk_size
        start = max(0, end - self.chunk_size)
        return Chunk(load, self.batches[visit], number, start, min(end, self.columns))

    def loaded(self, load: int) -> nl.NkiTensor:
        """Return the tile of a chunk, [rows, columns of the chunk], and issue the loads of later chunks into free
        buffers.

        Args:
            load: the index of the chunk; call with 0, 1, 2, ... in order.
        """
        in_flight = loads_in_flight(len(self.buffers_sbuf))
        first = 0 if load == 0 else load + in_flight - 1
        for number in range(first, min(load + in_flight, self.loads)):
            nisa.dma_copy(dst=self.on_chip(number), src=self.chunk(number).of(self.matrix_hbm))
        return self.on_chip(load)

    def on_chip(self, load: int) -> nl.NkiTensor:
        """Return the tile that chunk number ``load`` is loaded into."""
        chunk = self.chunk(load)
        buffer_sbuf = self.buffers_sbuf[load % len(self.buffers_sbuf)]
        if buffer_sbuf.shape == (chunk.batch.rows, chunk.columns):
            return buffer_sbuf
        return buffer_sbuf[0 : chunk.batch.rows, 0 : chunk.columns]


class PieceStream(Protocol[Placed]):
    """A protocol: the pieces that a core processes, in order; a visit has one or several pieces."""

    @property
    def visits(self) -> int:
        """The number of visits."""

    def pieces(self, visit: int) -> list[Placed]:
        """Return the pieces of a visit, and issue the loads of later pieces."""


class Overlapped(Protocol[Placed_contra, Begun]):
    """A protocol: the work on a piece in two steps. The engines may work on other pieces in between."""

    def begin(self, placed: Placed_contra) -> Begun:
        """Issue the first step, and return its result."""

    def finish(self, placed: Placed_contra, begun: Begun) -> None:
        """Issue the second step, which gets the result of the first."""


def run_overlapped(stream: PieceStream[Placed], work: Overlapped[Placed, Begun]) -> None:
    """Process all pieces of a stream: finish a piece after the next one has begun, and the last piece at the end."""
    ready: tuple[Placed, Begun] | None = None
    for visit in range(stream.visits):
        for placed in stream.pieces(visit):
            begun = work.begin(placed)
            if ready is not None:
                work.finish(*ready)
            ready = placed, begun
    if ready is not None:
        work.finish(*ready)
