# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory of the backward's streams: separate ring buffers, or two halves that X^T, X and W share."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.operand_pair import OperandPair
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.nki import nl

_HALVES = 2


@dataclass(frozen=True)
class StreamMemory:
    """The memory of the tiles that stream.

    Attributes:
        plan: the plan of the launch.
        dtype: the dtype of the products with W and X.
        shared_sbuf: [128, 2, elements of a half], which X^T, X and W share; None if each has its own memory.
    """

    plan: BackwardPlan
    dtype: nl.DType
    shared_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, plan: BackwardPlan, dtype: nl.DType) -> StreamMemory:
        """Return the memory for a plan. Allocates ``shared_sbuf`` if X^T, X and W share memory in the plan."""
        shared_sbuf = None
        if plan.buffers.shares_memory:
            shared_sbuf = nl.ndarray((PARTITIONS, _HALVES, plan.half_size), dtype=dtype, buffer=nl.sbuf)
        return cls(plan, dtype, shared_sbuf)

    def inputs(self, pairs: list[OperandPair]) -> list[Ring]:
        """Return the ring buffer of tiles of X^T, [128, tiles of features, 128], of each operand pair.

        In shared memory the tiles of both pairs are side by side. A tile takes a half if two do not fit in one half.
        """
        count, rings, first = self.plan.buffers.input_tiles, [], 0
        size = div_ceil(self.plan.input_bytes, dtype_bytes(self.dtype))
        for pair in pairs:
            dtype, depth = pair.operands.dtype, div_ceil(pair.operands.num_features, PARTITIONS)
            if self.shared_sbuf is None:
                rings.append(Ring.of_sbuf(count, (PARTITIONS, depth, PARTITIONS), dtype))
                continue
            elements = depth * PARTITIONS * dtype_bytes(dtype) // dtype_bytes(self.dtype)
            tiles = []
            for number in range(count):
                half, place = (number, 0) if size * count > self.plan.half_size else (0, number)
                start = place * size + first
                tile_sbuf = self.shared_sbuf[:, half, start : start + elements]
                if dtype != self.dtype:
                    tile_sbuf = tile_sbuf.view(dtype)
                tiles.append(tile_sbuf.reshape_dim(1, (depth, PARTITIONS)))
            rings.append(Ring(tiles))
            first += elements
        return rings

    def pieces(self) -> Ring:
        """Return the ring buffer of pieces of X, [128, tiles of positions, stripe].

        The last stripe of W is read before the last piece of X: the first tile of X^T takes the memory of that stripe.
        """
        buffers = self.plan.buffers
        return self._ring(buffers.pieces, 1, buffers.tiles_of_piece, self.plan.stripe)

    def stripes(self) -> Ring:
        """Return the ring buffer of stripes of W, [128, tiles of classes, stripe]."""
        return self._ring(self.plan.buffers.weight_stripes, 0, self.plan.class_tiles, self.plan.stripe)

    def _ring(self, count: int, half: int, tiles: int, columns: int) -> Ring:
        """Return a ring buffer of tiles [128, tiles, columns], in their own memory or side by side in a shared half."""
        if self.shared_sbuf is None:
            return Ring.of_sbuf(count, (PARTITIONS, tiles, columns), self.dtype)
        size, slots = tiles * columns, []
        for place in range(count):
            part_sbuf = self.shared_sbuf[:, half, place * size : (place + 1) * size]
            slots.append(part_sbuf.reshape_dim(1, (tiles, columns)))
        return Ring(slots)
