# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The operands of the forward: X^T of a block of positions, which stays, and W^T, one block of classes after another.

Bias and class weights of the classes are loaded with W^T. The places of the results belong to the positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import Block, Step
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.operands import Matrix, load_broadcast, store_positions
from nkilib.experimental.loss.linear.shared.staging import Staging
from nkilib.nki import nisa, nl

# Buffer slots of the blocks: one block is multiplied while the next one is loaded.
BUFFERS = 2
# The first load of a launch is split along the features, so that the first product starts before all of it is there.
_PIECES_OF_OPENING = 4


@dataclass(frozen=True)
class ClassTiles:
    """The operands of a block of classes.

    Attributes:
        weight_sbuf: W^T, [128, ceil(D / 128), classes].
        bias_sbuf, factors_sbuf: bias and class weights, float32 [128, classes], the same on all partitions; None if the
            launch does not need them.
    """

    weight_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor | None
    factors_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool) -> ClassTiles:
        """Allocate the tiles; nothing is written yet."""
        shape = (PARTITIONS, div_ceil(launch.num_features, PARTITIONS), classes)

        def vector(is_needed: bool) -> nl.NkiTensor | None:
            return nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) if is_needed else None

        weight_sbuf = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf)
        return cls(weight_sbuf, vector(launch.bias_hbm is not None), vector(has_factors))

    def part(self, start: int, count: int) -> ClassTiles:
        """Return views of classes ``start`` to ``start + count``."""

        def of(tile_sbuf: nl.NkiTensor | None) -> nl.NkiTensor | None:
            return None if tile_sbuf is None else tile_sbuf[:, start : start + count]

        return ClassTiles(self.weight_sbuf[:, :, start : start + count], of(self.bias_sbuf), of(self.factors_sbuf))


@dataclass(frozen=True)
class ClassStream:
    """The buffers of a stream of classes, and the methods that load them.

    Attributes:
        launch: the operands of the kernel.
        buffers: the buffer slots, which the blocks use round-robin.
        staging: the staging memory for a W of another type than the products.
    """

    launch: LinearOperands
    buffers: list[ClassTiles]
    staging: Staging | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool, staging: Staging | None) -> ClassStream:
        """Allocate buffers for blocks of at most ``classes`` classes."""
        return cls(launch, [ClassTiles.make(launch, classes, has_factors) for _ in range(BUFFERS)], staging)

    def open(self, first: Step | None) -> None:
        """Load W^T, bias and class weights of the classes that the first step expects to be loaded."""
        if first is not None:
            loaded = first.block.part(0, first.loaded)
            self._load(loaded, self.buffers[first.number % BUFFERS], _PIECES_OF_OPENING)

    @staticmethod
    def share_a_buffer(step: Step, other: Step | None) -> bool:
        """Return whether the blocks of two steps use the same buffer."""
        return other is not None and (step.number - other.number) % BUFFERS == 0

    def advance(self, step: Step) -> ClassTiles:
        """Load the missing rest of a step's block, begin to load the next one, and return the tiles of this one."""
        block, tiles = step.block, self.buffers[step.number % BUFFERS]
        missing = block.size - step.loaded
        if missing > 0:
            self._load(block.part(step.loaded, missing), tiles.part(step.loaded, missing), 1)
        if step.following is not None:
            self._load(step.following, self.buffers[(step.number + 1) % BUFFERS], 1)
        return tiles.part(0, block.size)

    def _load(self, block: Block, tiles: ClassTiles, pieces: int) -> None:
        launch = self.launch
        weight_hbm = block.of(launch.weight_hbm, 0 if launch.has_classes_first else 1)
        weight = Matrix(weight_hbm, not launch.has_classes_first, self.staging)
        depth = div_ceil(launch.num_features, PARTITIONS)
        tiles_per_piece = div_ceil(depth, pieces)
        for first in range(0, depth, tiles_per_piece):
            start, end = first * PARTITIONS, min((first + tiles_per_piece) * PARTITIONS, launch.num_features)
            part = weight.columns_of(start, end - start) if pieces > 1 else weight
            part.load_transposed(tiles.weight_sbuf[:, first : min(first + tiles_per_piece, depth), 0 : block.size])
        for vector_hbm, tile_sbuf in (
            (launch.bias_hbm, tiles.bias_sbuf),
            (launch.class_weight_hbm, tiles.factors_sbuf),
        ):
            if vector_hbm is not None and tile_sbuf is not None:
                load_broadcast(tile_sbuf[:, 0 : block.size], block.of(vector_hbm))


@dataclass(frozen=True)
class StoredPositions:
    """The destination of the results of a block of positions.

    Attributes:
        block: the positions.
    """

    block: Block

    @property
    def start(self) -> int:
        """The number of the first batch: 0, because the positions are stored by themselves."""
        return 0

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store ``values_sbuf``, float32 [128, tiles], at the positions of the block in ``vector_hbm``, [N].

        Returns the last store.
        """
        return store_positions(self.block.of(vector_hbm), values_sbuf)[-1]


def load_input(
    tiles_sbuf: Sequence[nl.NkiTensor], input_hbm: nl.NkiTensor, block: Block, staging: Staging | None
) -> None:
    """Load X^T of a block, into tiles [128, ceil(D / 128), 128].

    Zeros follow the last position; their logits are finite.
    """
    for number, tile_sbuf in enumerate(tiles_sbuf):
        count = min(PARTITIONS, block.size - number * PARTITIONS)
        if count < PARTITIONS:
            nisa.memset(dst=tile_sbuf, value=0.0)
        of_tile = Matrix(block.part(number * PARTITIONS, count).of(input_hbm), staging=staging)
        of_tile.load_transposed(tile_sbuf)
