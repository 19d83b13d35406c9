# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of a partition of SBUF: chunk buffers of the size asked for, scratch beside them, and small tiles."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.nki import nl

# One chunk is loaded, one is Vector's, one Scalar's or stored; a fourth buffer covers the latencies between them. More
# buy nothing.
MAX_CHUNK_BUFFERS = 4
# Scratch is float32.
SCRATCH_BYTES = 4


def dtype_bytes(dtype: nl.DType) -> int:
    """Return the bytes of an element of bfloat16, float16 or float32."""
    return 4 if dtype == nl.float32 else 2


@dataclass(frozen=True)
class TileRing:
    """Tiles of a chunk's size, a ring buffer over the chunks. The ring is empty where a kernel needs no tiles."""

    tiles_sbuf: list[nl.NkiTensor]

    def tile(self, load: int, like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the tile for chunk number ``load`` of the core, in the shape of another tile of that chunk."""
        rows, columns = like_sbuf.shape
        return self.tiles_sbuf[load % len(self.tiles_sbuf)][0:rows, 0:columns]


@dataclass(frozen=True)
class SbufPlan:
    """The needs of a kernel in a partition of SBUF, for any chunk size.

    Attributes:
        small_bytes: the bytes set aside for small tiles, with room for alignment.
        num_scratch: the number of float32 tiles of a chunk's size that a chunk needs besides its buffer.
    """

    small_bytes: int
    num_scratch: int = 0

    @property
    def bytes_that_fit(self) -> int:
        """The bytes of a partition that chunk buffers and scratch may take."""
        return usable_sbuf_bytes() - self.small_bytes

    def largest_chunk(self, dtype: nl.DType) -> int:
        """Return the columns of the largest chunk whose buffer and scratch fit together."""
        return self.bytes_that_fit // (dtype_bytes(dtype) + self.num_scratch * SCRATCH_BYTES)

    def divided(self, rows: int, chunk_size: int, dtype: nl.DType, loads: int) -> DividedSbuf:
        """Return the plan for chunks [rows, chunk_size] of ``dtype``, if the core loads ``loads`` of them."""
        scratch_bytes = self.num_scratch * chunk_size * SCRATCH_BYTES
        chunk_bytes = chunk_size * dtype_bytes(dtype)
        # Two of each scratch tile, where they leave room for two chunk buffers.
        turns = 2 if loads > 1 and 2 * (scratch_bytes + chunk_bytes) <= self.bytes_that_fit else 1
        fitting = (self.bytes_that_fit - turns * scratch_bytes) // chunk_bytes
        return DividedSbuf(rows, chunk_size, dtype, turns, max(1, min(MAX_CHUNK_BUFFERS, fitting, loads)))


@dataclass(frozen=True)
class DividedSbuf:
    """A plan for chunks of one size.

    Attributes:
        rows, chunk_size, dtype: the shape and type of a chunk.
        turns: the number of tiles in a ring buffer of scratch.
        chunk_buffers: the number of chunk buffers: all that fit, but at most one for each load. With two or more, loads
            and stores run in parallel with the computation.
    """

    rows: int
    chunk_size: int
    dtype: nl.DType
    turns: int
    chunk_buffers: int

    def taken_bytes(self, plan: SbufPlan) -> int:
        """Return the bytes of a partition that chunk buffers and the scratch of the plan take."""
        scratch = self.turns * plan.num_scratch * SCRATCH_BYTES
        return self.chunk_size * (self.chunk_buffers * dtype_bytes(self.dtype) + scratch)

    def buffers(self) -> list[nl.NkiTensor]:
        """Allocate the chunk buffers."""
        return self._tiles(self.chunk_buffers, self.dtype)

    def ring(self, is_needed: bool) -> TileRing:
        """Allocate the ring buffer of one of the plan's scratch tiles; an empty ring if it is not needed."""
        return TileRing(self._tiles(self.turns if is_needed else 0, nl.float32))

    def _tiles(self, count: int, dtype: nl.DType) -> list[nl.NkiTensor]:
        shape = (self.rows, self.chunk_size)
        return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)]
