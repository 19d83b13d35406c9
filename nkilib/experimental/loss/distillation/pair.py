# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Chunks of student and teacher, loaded side by side, and the tiles that are computed in beside them."""

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

# Tiles of PSUM that pieces take in turn: Scalar writes one while Vector reads the other.
_PSUM_TURNS = 2


@dataclass(frozen=True)
class Piece:
    """Some columns of a chunk, and a tile of PSUM for them.

    Attributes:
        number: in its chunk.
        start, end: its columns, counted in the chunk.
        tile_psum: float32 [rows, columns].
    """

    number: int
    start: int
    end: int
    tile_psum: nl.NkiTensor

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Its columns of a tile of the chunk's size."""
        return tile_sbuf[:, self.start : self.end]


@dataclass(frozen=True)
class Buffers:
    """On chip, for chunks of a size.

    Attributes:
        student, teacher: where logits are loaded to.
        both: the two of each chunk as one tile, [128, 2, columns]; empty where their types differ.
        scratch: float32 tiles by what they are for, in turns.
        unread_sbuf: of what is only summed; nothing reads it.
        pieces_psum: that pieces take in turn.
        lowest_sbuf: ``LOWEST``, [128, 1].
    """

    student: list[nl.NkiTensor]
    teacher: list[nl.NkiTensor]
    both: list[nl.NkiTensor]
    scratch: dict[str, list[nl.NkiTensor]]
    unread_sbuf: nl.NkiTensor
    pieces_psum: list[nl.NkiTensor]
    lowest_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, ahead: int, scratch: dict[str, int], piece_columns: int = 0) -> Buffers:
        """Those of a kernel.

        Args:
            launch: of the kernel.
            ahead: chunks that are opened before the one that is worked on is done.
            scratch: how many tiles, by name.
            piece_columns: of a piece at most, of which there are two in PSUM; 0: none.
        """
        size = launch.tiling.chunk_size

        def tiles(count: int, dtype: nl.DType, *middle: int) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, *middle, size), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]

        piece = min(size, piece_columns)
        turns = _PSUM_TURNS if piece else 0
        student_dtype, teacher_dtype = tile_dtype(launch.student_hbm.dtype), tile_dtype(launch.teacher_hbm.dtype)
        count = IN_FLIGHT + ahead
        both = tiles(count, student_dtype, 2) if student_dtype == teacher_dtype else []
        return cls(
            [tile_sbuf[:, 0, :] for tile_sbuf in both] or tiles(count, student_dtype),
            [tile_sbuf[:, 1, :] for tile_sbuf in both] or tiles(count, teacher_dtype),
            both,
            {name: tiles(count, nl.float32) for name, count in scratch.items()},
            tiles(1, nl.bfloat16)[0],
            [nl.ndarray((POSITIONS, piece), dtype=nl.float32, buffer=nl.psum) for _ in range(turns)],
            row_tile(1, LOWEST),
        )

    @property
    def ahead(self) -> int:
        """Chunks that are opened before the one that is worked on is done."""
        return len(self.student) - IN_FLIGHT

    def raise_lowest(self, load: int, student_sbuf: nl.NkiTensor, teacher_sbuf: nl.NkiTensor) -> None:
        """-inf of both logits of chunk number ``load`` becomes ``LOWEST``, where they stand.

        16-bit logits in one instruction. Of float32 Vector has no time for all: GpSimd takes some of the teacher's.
        """
        rows, columns = student_sbuf.shape
        if self.both and student_sbuf.dtype == nl.bfloat16:
            raise_lowest(self.both[load % len(self.both)][0:rows, :, 0:columns])
            return
        raise_lowest(student_sbuf)
        raise_half(teacher_sbuf, self.lowest_sbuf)

    def tile(self, name: str, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Scratch for chunk number ``load``, of the shape of another tile of that chunk."""
        rows, columns = like_sbuf.shape
        tiles = self.scratch[name]
        return tiles[load % len(tiles)][0:rows, 0:columns]

    def pieces(self, load: int, like_sbuf: nl.NkiTensor) -> list[Piece]:
        """Those of chunk number ``load``."""
        rows, columns = like_sbuf.shape
        size, turns = self.pieces_psum[0].shape[1], len(self.pieces_psum)
        most = div_ceil(self.student[0].shape[1], size)
        return [
            Piece(
                number,
                start,
                min(start + size, columns),
                self.pieces_psum[(load * most + number) % turns][0:rows, 0 : min(size, columns - start)],
            )
            for number, start in enumerate(range(0, columns, size))
        ]


@dataclass(frozen=True)
class PairChunk(Generic[Rows]):
    """A chunk of both.

    Attributes:
        chunk: which one.
        visit: of its rows among all that a stream visits.
        student_sbuf, teacher_sbuf: logits, [rows, columns].
        difference_sbuf: teacher - student, or the other way round, float32; None where the visit takes none. Then the
            logits may be -inf.
    """

    chunk: Chunk[Rows]
    visit: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor
    difference_sbuf: nl.NkiTensor | None

    @property
    def difference(self) -> nl.NkiTensor:
        """Of a visit that takes it."""
        if self.difference_sbuf is None:
            raise AssertionError("this visit takes no differences")
        return self.difference_sbuf


@dataclass(frozen=True)
class PairStream(Generic[Rows]):
    """Both matrices, in the same chunks.

    Attributes:
        student, teacher: the chunks of each.
        buffers: on chip.
        is_reverse: differences are student - teacher.
        has_differences: of each visit.
        at_opening: called with each chunk when it is opened, before the one before is taken; None for nothing.
        opened: chunks that are on chip, or on their way, by their numbers.
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
        """Of rows that are visited in that order."""
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
        """Of a row."""
        return self.student.num_chunks

    def taken(self, load: int) -> PairChunk[Rows]:
        """Chunk number ``load``; to be called with 0, 1, 2, ...

        The next ones are opened before: GpSimd takes their differences while Vector and Scalar have this one.
        """
        self._open_all(load, load + self.buffers.ahead)
        return self.opened.pop(load)

    def opened_chunk(self, load: int) -> PairChunk[Rows]:
        """A chunk that is taken later, one of as many as are opened ahead."""
        self._open_all(load, load)
        return self.opened[load]

    def _open_all(self, first: int, last: int) -> None:
        for number in range(first, min(last + 1, self.student.loads)):
            if number not in self.opened:
                self.opened[number] = self._open(number)

    def _load(self, load: int) -> None:
        """Issue the loads for which there are buffers, of both matrices in turn, when chunk number ``load`` is opened.

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
