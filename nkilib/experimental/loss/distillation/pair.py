"""Chunks of student and teacher, loaded side by side, and the tiles that are computed in beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from nkilib.core.rows.stream import Chunk, Rows, Stream
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.distillation.host.tiling import BUFFERS, PIECE_COLUMNS
from nkilib.experimental.loss.distillation.options import LOWEST, POSITIONS, Launch, tile_dtype
from nkilib.experimental.loss.distillation.rows import raise_lowest, row_tile
from nkilib.nki import nisa, nl

# Scratch tiles of each kind, which chunks take in turn.
_TURNS = 2


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
        scratch: float32 tiles by what they are for, ``_TURNS`` of each.
        pieces_psum: that pieces take in turn.
        lowest_sbuf: ``LOWEST``, [128, 1].
    """

    student: list[nl.NkiTensor]
    teacher: list[nl.NkiTensor]
    scratch: dict[str, list[nl.NkiTensor]]
    pieces_psum: list[nl.NkiTensor]
    lowest_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, launch: Launch, scratch: tuple[str, ...], psum_turns: int) -> Buffers:
        """Those of a kernel, with scratch of the names."""
        size = launch.tiling.chunk_size

        def tiles(count: int, dtype: nl.DType) -> list[nl.NkiTensor]:
            return [nl.ndarray((POSITIONS, size), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]

        piece = min(size, PIECE_COLUMNS)
        return cls(
            tiles(BUFFERS, tile_dtype(launch.student_hbm.dtype)),
            tiles(BUFFERS, tile_dtype(launch.teacher_hbm.dtype)),
            {name: tiles(_TURNS, nl.float32) for name in scratch},
            [nl.ndarray((POSITIONS, piece), dtype=nl.float32, buffer=nl.psum) for _ in range(psum_turns)],
            row_tile(1, LOWEST),
        )

    def tile(self, name: str, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Scratch for chunk number ``load``, of the shape of another tile of that chunk."""
        rows, columns = like_sbuf.shape
        return self.scratch[name][load % _TURNS][0:rows, 0:columns]

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
    """

    chunk: Chunk[Rows]
    visit: int
    student_sbuf: nl.NkiTensor
    teacher_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class PairStream(Generic[Rows]):
    """Both matrices, in the same chunks."""

    student: Stream[Rows]
    teacher: Stream[Rows]
    buffers: Buffers

    @classmethod
    def make(cls, launch: Launch, visits: list[Rows], buffers: Buffers) -> PairStream[Rows]:
        """Of rows that are visited in that order."""
        return cls(
            Stream.make(launch.student_hbm, visits, buffers.student),
            Stream.make(launch.teacher_hbm, visits, buffers.teacher),
            buffers,
        )

    @property
    def num_chunks(self) -> int:
        """Of a row."""
        return self.student.num_chunks

    @property
    def pieces_of_row(self) -> int:
        """At most."""
        return self.num_chunks * div_ceil(self.student.chunk_size, PIECE_COLUMNS)

    def loaded(self, load: int) -> PairChunk[Rows]:
        """A chunk of both, in which nothing is -inf; the next ones are on their way."""
        student_sbuf, teacher_sbuf = self.student.loaded(load), self.teacher.loaded(load)
        for tile_sbuf, is_shared in ((student_sbuf, False), (teacher_sbuf, True)):
            is_slow = is_shared and tile_sbuf.dtype == nl.float32
            raise_lowest(tile_sbuf, self.buffers.lowest_sbuf if is_slow else None)
        return PairChunk(self.student.chunk(load), load // self.num_chunks, student_sbuf, teacher_sbuf)


def take_difference(dst_sbuf: nl.NkiTensor, first_sbuf: nl.NkiTensor, second_sbuf: nl.NkiTensor) -> None:
    """first - second in float32, on GpSimd, beside what Vector does."""
    nisa.tensor_tensor(
        dst=dst_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.subtract, engine=nisa.engine.gpsimd
    )
