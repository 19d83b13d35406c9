# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Chunks of student and teacher, loaded side by side, and the scratch tiles for their computation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from nkilib.core.rows.stream import Chunk, Rows, Stream
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.distillation.host.tiling import IN_FLIGHT
from nkilib.experimental.loss.distillation.options import LOWEST, POSITIONS, Launch, tile_dtype
from nkilib.experimental.loss.distillation.rows import raise_half, raise_lowest, row_tile
from nkilib.nki import nisa, nl

# PSUM tiles for pieces, in round-robin order: Scalar writes one while Vector reads the other.
_PSUM_SLOTS = 2


@dataclass(frozen=True)
class Piece:
    """A range of columns of a chunk, and a tile of PSUM for it.

    Attributes:
        number: the index of the piece in its chunk.
        start, end: the columns of the piece, counted in the chunk.
        tile_psum: the tile, float32 [rows, columns].
    """

    number: int
    start: int
    end: int
    tile_psum: nl.NkiTensor

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the columns of the piece in a tile of the chunk's size."""
        return tile_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class Buffers:
    """The buffers on chip for chunks of one size.

    Attributes:
        student, teacher: the tiles into which logits are loaded.
        pairs: the two tiles of each chunk as one, [128, 2, columns]; empty if their types differ.
        scratch: float32 tiles by their purpose, in round-robin order.
        unread_sbuf: a tile for values that are only summed; nothing reads it.
        pieces_psum: the PSUM tiles of pieces, in round-robin order.
        lowest_sbuf: ``LOWEST``, [128, 1].
    """

    student: list[nl.NkiTensor]
    teacher: list[nl.NkiTensor]
    pairs: list[nl.NkiTensor]
    scratch: dict[str, list[nl.NkiTensor]]
    unread_sbuf: nl.NkiTensor
    pieces_psum: list[nl.NkiTensor]
    lowest_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, ahead: int, scratch: dict[str, int], piece_columns: int = 0) -> Buffers:
        """Allocate the buffers of a kernel.

        Args:
            launch: the launch of the kernel.
            ahead: the number of chunks that are opened before the current one is done.
            scratch: the number of tiles for each purpose, by name.
            piece_columns: the maximum columns of a piece, of which PSUM holds two; 0 means no pieces.
        """
        size = launch.tiling.chunk_size

        def tiles(count: int, dtype: nl.DType, *middle: int) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, *middle, size), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]

        piece = min(size, piece_columns)
        slots = _PSUM_SLOTS if piece else 0
        student_dtype, teacher_dtype = tile_dtype(launch.student_hbm.dtype), tile_dtype(launch.teacher_hbm.dtype)
        count = IN_FLIGHT + ahead
        pairs = tiles(count, student_dtype, 2) if student_dtype == teacher_dtype else []
        return cls(
            [tile_sbuf[:, 0, :] for tile_sbuf in pairs] or tiles(count, student_dtype),
            [tile_sbuf[:, 1, :] for tile_sbuf in pairs] or tiles(count, teacher_dtype),
            pairs,
            {name: tiles(count, nl.float32) for name, count in scratch.items()},
            tiles(1, nl.bfloat16)[0],
            [nl.ndarray((POSITIONS, piece), dtype=nl.float32, buffer=nl.psum) for _ in range(slots)],
            row_tile(1, LOWEST),
        )

    @property
    def ahead(self) -> int:
        """The number of chunks that are opened before the current one is done."""
        return len(self.student) - IN_FLIGHT

    def raise_lowest(self, load: int, student_sbuf: nl.NkiTensor, teacher_sbuf: nl.NkiTensor) -> None:
        """Replace -inf by ``LOWEST`` in both logits of chunk number ``load``, in place.

        If both are bfloat16, this takes one instruction. Vector has no time for all float32 logits: GpSimd takes half
        of the teacher's.
        """
        rows, columns = student_sbuf.shape
        if self.pairs and student_sbuf.dtype == nl.bfloat16:
            raise_lowest(self.pairs[load % len(self.pairs)][0:rows, :, 0:columns])
            return
        raise_lowest(student_sbuf)
        raise_half(teacher_sbuf, self.lowest_sbuf)

    def tile(self, name: str, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return scratch for chunk number ``load``, of the shape of another tile of that chunk."""
        rows, columns = like_sbuf.shape
        tiles = self.scratch[name]
        return tiles[load % len(tiles)][0:rows, 0:columns]

    def pieces(self, load: int, like_sbuf: nl.NkiTensor) -> list[Piece]:
        """Return the pieces of chunk number ``load``."""
        rows, columns = like_sbuf.shape
        size, slots = self.pieces_psum[0].shape[1], len(self.pieces_psum)
        most = div_ceil(self.student[0].shape[1], size)
        return [
            Piece(
                number,
                start,
                min(start + size, columns),
                self.pieces_psum[(load * most + number) % slots][0:rows, 0 : min(size, columns - start)],
            )
            for number, start in enumerate(range(0, columns, size))
        ]


@dataclass(frozen=True)
class PairChunk(Generic[Rows]):
    """A chunk of student's and teacher's logits.

    Attributes:
        chunk: the chunk of the stream.
        visit: the index of its rows among all that a stream visits.
        student_sbuf, teacher_sbuf: logits, [rows, columns]; they may be -inf only if there are no differences.
        difference_sbuf: teacher - student, or the reverse, float32; None if the visit needs no differences.
    """

    chunk: Chunk[Rows]
    visit: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor
    difference_sbuf: nl.NkiTensor | None

    @property
    def difference(self) -> nl.NkiTensor:
        """The difference, for a visit that needs it; raises AssertionError if there is none."""
        if self.difference_sbuf is None:
            raise AssertionError("this visit takes no differences")
        return self.difference_sbuf


@dataclass(frozen=True)
class PairStream(Generic[Rows]):
    """A stream of both matrices, in the same chunks.

    Attributes:
        student, teacher: the chunks of each matrix.
        buffers: the buffers on chip.
        is_reverse: whether differences are student - teacher.
        has_differences: whether each visit needs differences.
        at_opening: the function to call with each chunk when it is opened, before the previous one is taken; None for
            none.
        opened: the chunks that are on chip, or being loaded, by their numbers.
    """

    student: Stream[Rows]
    teacher: Stream[Rows]
    buffers: Buffers
    is_reverse: bool
    has_differences: list[bool]
    at_opening: Callable[[PairChunk[Rows]], None] | None
    opened: dict[int, PairChunk[Rows]] = field(default_factory=dict)

    @classmethod
    def make(
        cls,
        launch: Launch,
        visits: list[Rows],
        buffers: Buffers,
        has_differences: list[bool],
        at_opening: Callable[[PairChunk[Rows]], None] | None = None,
    ) -> PairStream[Rows]:
        """Create a stream of rows that are visited in this order."""
        return cls(
            Stream.make(launch.student_hbm, visits, buffers.student),
            Stream.make(launch.teacher_hbm, visits, buffers.teacher),
            buffers,
            launch.is_reverse,
            has_differences,
            at_opening,
        )

    @property
    def num_chunks(self) -> int:
        """The number of chunks per row."""
        return self.student.num_chunks

    def taken(self, load: int) -> PairChunk[Rows]:
        """Return chunk number ``load``; call it with 0, 1, 2, ...

        The next chunks are opened before: GpSimd computes their differences while Vector and Scalar process this one.
        """
        self._open_all(load, load + self.buffers.ahead)
        return self.opened.pop(load)

    def opened_chunk(self, load: int) -> PairChunk[Rows]:
        """Return a chunk that is taken later, one of the chunks opened ahead."""
        self._open_all(load, load)
        return self.opened[load]

    def _open_all(self, first: int, last: int) -> None:
        for number in range(first, min(last + 1, self.student.loads)):
            if number not in self.opened:
                self.opened[number] = self._open(number)

    def _load(self, load: int) -> None:
        """Issue the loads for which there are buffers, alternating between the matrices, when chunk ``load`` is opened.

        A buffer is free once its chunk has been taken.
        """
        for number in range(0 if load == 0 else load + IN_FLIGHT - 1, min(load + IN_FLIGHT, self.student.loads)):
            for side in (self.student, self.teacher):
                nisa.dma_copy(dst=side.on_chip(number), src=side.chunk(number).of(side.matrix_hbm))

    def _open(self, load: int) -> PairChunk[Rows]:
        self._load(load)
        student_sbuf, teacher_sbuf = self.student.on_chip(load), self.teacher.on_chip(load)
        visit, difference_sbuf = load // self.num_chunks, None
        if self.has_differences[visit]:
            self.buffers.raise_lowest(load, student_sbuf, teacher_sbuf)
            difference_sbuf = self.buffers.tile("difference", load, student_sbuf)
            first_sbuf, second_sbuf = (student_sbuf, teacher_sbuf) if self.is_reverse else (teacher_sbuf, student_sbuf)
            nisa.tensor_tensor(
                dst=difference_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd
            )
        pair = PairChunk(self.student.chunk(load), visit, student_sbuf, teacher_sbuf, difference_sbuf)
        if self.at_opening is not None:
            self.at_opening(pair)
        return pair
