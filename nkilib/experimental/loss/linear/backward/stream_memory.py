# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The memory of what streams in the backward: rings of their own, or halves that X^T, X and W take in turn."""

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
    """Where tiles that stream stand.

    Attributes:
        plan: of the launch.
        dtype: of the products with W and X.
        shared_sbuf: [128, 2, elements of a half], which X^T, X and W take in turn; None where each has its own.
    """

    plan: BackwardPlan
    dtype: nl.DType
    shared_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, plan: BackwardPlan, dtype: nl.DType) -> StreamMemory:
        """As the plan has it."""
        shared_sbuf = None
        if plan.buffers.takes_turns:
            shared_sbuf = nl.ndarray((PARTITIONS, _HALVES, plan.half_size), dtype=dtype, buffer=nl.sbuf)
        return cls(plan, dtype, shared_sbuf)

    def inputs(self, pairs: list[OperandPair]) -> list[Ring]:
        """Tiles of X^T, [128, tiles of features, 128], by operand pair.

        In memory that is shared, those of both pairs are side by side: a tile takes a half, if two do not fit one.
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
        """Pieces of X, [128, tiles of positions, stripe].

        The last stripe of W is read before the last piece of X: the first tile of X^T takes its place.
        """
        buffers = self.plan.buffers
        return self._ring(buffers.pieces, 1, buffers.tiles_of_piece, self.plan.stripe)

    def stripes(self) -> Ring:
        """Stripes of W, [128, tiles of classes, stripe]."""
        return self._ring(self.plan.buffers.weight_stripes, 0, self.plan.class_tiles, self.plan.stripe)

    def _ring(self, count: int, half: int, tiles: int, columns: int) -> Ring:
        """Tiles [128, tiles, columns]: of their own, or side by side in a half of what takes turns."""
        if self.shared_sbuf is None:
            return Ring.of_sbuf(count, (PARTITIONS, tiles, columns), self.dtype)
        size, found = tiles * columns, []
        for place in range(count):
            part_sbuf = self.shared_sbuf[:, half, place * size : (place + 1) * size]
            found.append(part_sbuf.reshape_dim(1, (tiles, columns)))
        return Ring(found)
