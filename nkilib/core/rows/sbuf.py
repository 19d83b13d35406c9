# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Memory of kernels in SBUF: ring buffers of tiles, the division of a partition between them, and scratch.

- ring buffers: :func:`ring_of` allocates tiles, :class:`Ring` returns them round-robin, :class:`TileRing` by the number
  of a chunk;
- the division of a partition: a kernel states its needs for any chunk size as an :class:`SbufPlan`;
  :meth:`SbufPlan.divided` makes a :class:`DividedSbuf` of it for one chunk size, which allocates the chunk buffers and
  the scratch;
- :class:`Scratch`: the float32 tiles and the constants of the elementwise and the row-wise kernels;
- :func:`dtype_bytes`, :func:`element_bytes`: the sizes of elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Final

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.nki import nisa, nl

# One chunk is loaded, one is Vector's, one Scalar's or stored; a fourth buffer covers the latencies between them. More
# buy nothing.
MAX_CHUNK_BUFFERS = 4
# A piece and the one that is prepared while it is finished.
PIECES_AT_A_TIME: Final = 2


def dtype_bytes(dtype: nl.DType) -> int:
    """Return the bytes of an element of bfloat16, float16 or float32."""
    return 4 if dtype == nl.float32 else 2


def element_bytes(*dtypes: nl.DType) -> int:
    """Return the sum of the sizes in bytes of one element of each type."""
    return sum(dtype_bytes(dtype) for dtype in dtypes)


def ring_of(count: int, columns: int, dtype: nl.DType) -> list[nl.NkiTensor]:
    """Return ``count`` new tiles [128, columns]."""
    return [nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass
class Ring:
    """Tiles of one shape, used round-robin: the next tile is the one that was taken longest ago.

    The body of a device loop is traced once, so every iteration has to start at the same tile: :meth:`restart`.

    Attributes:
        tiles: the tiles in the order of use.
    """

    tiles: list[nl.NkiTensor]
    _taken: int = field(default=0, init=False)

    @classmethod
    def of_sbuf(cls, count: int, shape: tuple[int, ...], dtype: nl.DType) -> Ring:
        """Return a ring of ``count`` new tiles in SBUF."""
        return cls([nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)])

    def next_tile(self) -> nl.NkiTensor:
        """Return the next tile of the ring."""
        self._taken += 1
        return self.tiles[(self._taken - 1) % len(self.tiles)]

    def next_shaped(self, shape: tuple[int, ...]) -> nl.NkiTensor:
        """Return the next tile [128, columns] of the ring as a view of ``shape``, whose first dimension is
        partitions.
        """
        return self.next_tile()[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)

    def restart(self) -> None:
        """Let :meth:`next_tile` return the first tile next."""
        self._taken = 0


@dataclass(frozen=True)
class TileRing:
    """A ring buffer of tiles of a chunk's size, for successive chunks; empty if a kernel needs no such tiles."""

    tiles_sbuf: list[nl.NkiTensor]

    def tile(self, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile for chunk number ``load`` of the core, cut to the shape of ``like_sbuf``."""
        rows, columns = like_sbuf.shape
        return self.tiles_sbuf[load % len(self.tiles_sbuf)][0:rows, 0:columns]


@dataclass(frozen=True)
class DividedSbuf:
    """An :class:`SbufPlan` for one chunk size.

    Attributes:
        rows, chunk_size, dtype: the shape and type of a chunk.
        turns: the number of tiles of a scratch ring buffer.
        chunk_buffers: the number of chunk buffers: as many as fit, at most one for each chunk that the core loads. With
            two or more, loads and stores run in parallel with the computation.
    """

    rows: int
    chunk_size: int
    dtype: nl.DType
    turns: int
    chunk_buffers: int

    def taken_bytes(self, plan: SbufPlan) -> int:
        """Return the bytes of a partition that the chunk buffers and the scratch rings take.

        Args:
            plan: the plan that was divided.
        """
        scratch = self.turns * plan.num_scratch * FLOAT32_BYTES
        return self.chunk_size * (self.chunk_buffers * dtype_bytes(self.dtype) + scratch)

    def buffers(self) -> list[nl.NkiTensor]:
        """Return new tiles for the chunk buffers."""
        return self._tiles(self.chunk_buffers, self.dtype)

    def ring(self, is_needed: bool) -> TileRing:
        """Return a new ring buffer of scratch tiles; an empty one if it is not needed."""
        return TileRing(self._tiles(self.turns if is_needed else 0, nl.float32))

    def _tiles(self, count: int, dtype: nl.DType) -> list[nl.NkiTensor]:
        shape = (self.rows, self.chunk_size)
        return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)]


@dataclass(frozen=True)
class SbufPlan:
    """The bytes and tiles that a kernel needs in a partition of SBUF, for any chunk size.

    Attributes:
        small_bytes: the bytes for small tiles, with room for alignment.
        num_scratch: the number of float32 scratch tiles that a chunk needs, each of the chunk's size.
    """

    small_bytes: int
    num_scratch: int = 0

    @property
    def bytes_that_fit(self) -> int:
        """The bytes per partition that are left for chunk buffers and scratch."""
        return usable_sbuf_bytes() - self.small_bytes

    def largest_chunk(self, dtype: nl.DType) -> int:
        """Return the largest number of columns of a chunk whose buffer and scratch fit a partition."""
        return self.bytes_that_fit // (dtype_bytes(dtype) + self.num_scratch * FLOAT32_BYTES)

    def divided(
        self, rows: int, chunk_size: int, dtype: nl.DType, loads: int, most_buffers: int = MAX_CHUNK_BUFFERS
    ) -> DividedSbuf:
        """Return the plan for one chunk size.

        Args:
            rows, chunk_size, dtype: the shape and type of a chunk.
            loads: the number of chunks that the core loads.
            most_buffers: the largest number of chunk buffers.
        """
        scratch_bytes = self.num_scratch * chunk_size * FLOAT32_BYTES
        chunk_bytes = chunk_size * dtype_bytes(dtype)
        # Two of each scratch tile, where they leave room for two chunk buffers.
        turns = 2 if loads > 1 and 2 * (scratch_bytes + chunk_bytes) <= self.bytes_that_fit else 1
        fitting = (self.bytes_that_fit - turns * scratch_bytes) // chunk_bytes
        return DividedSbuf(rows, chunk_size, dtype, turns, max(1, min(most_buffers, fitting, loads)))


@dataclass
class Scratch:
    """The scratch of elementwise and row-wise kernels. A *piece* is the columns that an instruction processes at a
    time.

    Attributes:
        tiles_sbuf: a ring buffer of tiles for pieces, float32 [128, columns of a piece].
        constants_sbuf: for each number that an instruction takes from a tile, a float32 tile [128, 1] of that number.
        taken: the number of tiles taken so far.
    """

    tiles_sbuf: list[nl.NkiTensor]
    constants_sbuf: dict[float, nl.NkiTensor] = field(default_factory=dict)
    taken: int = 0

    @classmethod
    def make(cls, tiles_of_piece: int, columns: int) -> Scratch:
        """Return new scratch for pieces that take ``tiles_of_piece`` tiles each."""
        return cls(ring_of(PIECES_AT_A_TIME * tiles_of_piece, columns, nl.float32))

    @property
    def tiles_of_piece(self) -> int:
        """The number of tiles that a piece may take."""
        return len(self.tiles_sbuf) // PIECES_AT_A_TIME

    @property
    def columns(self) -> int:
        """The largest number of columns of a piece."""
        columns: int = self.tiles_sbuf[0].shape[1]
        return columns

    def next(self, rows: int, columns: int) -> nl.NkiTensor:
        """Return the tile that was taken longest ago, cut to [rows, columns]."""
        tile_sbuf = self.tiles_sbuf[self.taken % len(self.tiles_sbuf)]
        self.taken += 1
        return tile_sbuf[0:rows, 0:columns]

    def constant(self, number: float, rows: int) -> nl.NkiTensor:
        """Return a tile [rows, 1] that holds ``number``. The tile of a number is made at the first call."""
        if number not in self.constants_sbuf:
            constant_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=constant_sbuf, value=number)
            self.constants_sbuf[number] = constant_sbuf
        return self.constants_sbuf[number][0:rows, :]
