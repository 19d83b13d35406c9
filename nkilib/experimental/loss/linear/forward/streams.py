# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the forward multiplies: X^T of a block of positions, which stays, and W^T, one block of classes after another.

Beside W^T stands what there is of each class, bias and class weights; beside the positions, where their results belong.
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

# Blocks that take a buffer in turn: one is multiplied while the next one is loaded.
BUFFERS = 2
# The first load of a launch is cut along the features, so that the first product starts before all of it is there.
_PIECES_OF_OPENING = 4


@dataclass(frozen=True)
class ClassTiles:
    """What is known of a block of classes.

    Attributes:
        weight_sbuf: W^T, [128, ceil(D / 128), classes].
        bias_sbuf, factors_sbuf: bias and class weights, float32 [128, classes], the same on all partitions; None for
            what the launch does not need.
    """

    weight_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor | None
    factors_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool) -> ClassTiles:
        """Not written yet."""
        shape = (PARTITIONS, div_ceil(launch.num_features, PARTITIONS), classes)

        def vector(is_needed: bool) -> nl.NkiTensor | None:
            return nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) if is_needed else None

        weight_sbuf = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf)
        return cls(weight_sbuf, vector(launch.bias_hbm is not None), vector(has_factors))

    def part(self, start: int, count: int) -> ClassTiles:
        """Classes ``start`` to ``start + count``, views."""

        def of(tile_sbuf: nl.NkiTensor | None) -> nl.NkiTensor | None:
            return None if tile_sbuf is None else tile_sbuf[:, start : start + count]

        return ClassTiles(self.weight_sbuf[:, :, start : start + count], of(self.bias_sbuf), of(self.factors_sbuf))


@dataclass(frozen=True)
class ClassStream:
    """The buffers, and what is loaded into them.

    Attributes:
        launch: with the tensors.
        buffers: that the blocks take in turn.
        staging: for W of another type than that of the products.
    """

    launch: LinearOperands
    buffers: list[ClassTiles]
    staging: Staging | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool, staging: Staging | None) -> ClassStream:
        """For blocks of at most so many classes."""
        return cls(launch, [ClassTiles.make(launch, classes, has_factors) for _ in range(BUFFERS)], staging)

    def open(self, first: Step | None) -> None:
        """Load what the first step takes for loaded."""
        if first is not None:
            loaded = first.block.part(0, first.loaded)
            self._load(loaded, self.buffers[first.number % BUFFERS], _PIECES_OF_OPENING)

    @staticmethod
    def share_a_buffer(step: Step, other: Step | None) -> bool:
        """Whether the blocks of two steps take the same buffer."""
        return other is not None and (step.number - other.number) % BUFFERS == 0

    def advance(self, step: Step) -> ClassTiles:
        """Load what is missing of a step's block, and begin with the next one; the tiles of this one."""
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
        each = div_ceil(depth, pieces)
        for first in range(0, depth, each):
            start, end = first * PARTITIONS, min((first + each) * PARTITIONS, launch.num_features)
            part = weight.columns_of(start, end - start) if pieces > 1 else weight
            part.load_transposed(tiles.weight_sbuf[:, first : min(first + each, depth), 0 : block.size])
        for vector_hbm, tile_sbuf in (
            (launch.bias_hbm, tiles.bias_sbuf),
            (launch.class_weight_hbm, tiles.factors_sbuf),
        ):
            if vector_hbm is not None and tile_sbuf is not None:
                load_broadcast(tile_sbuf[:, 0 : block.size], block.of(vector_hbm))


@dataclass(frozen=True)
class StoredPositions:
    """Where the results of a block of positions are stored.

    Attributes:
        block: the positions.
    """

    block: Block

    @property
    def start(self) -> int:
        """They are a batch by themselves."""
        return 0

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store float32 [128, tiles] as the values of a vector [N] that belong to the positions."""
        return store_positions(self.block.of(vector_hbm), values_sbuf)[-1]


def load_input(
    tiles_sbuf: Sequence[nl.NkiTensor], input_hbm: nl.NkiTensor, block: Block, staging: Staging | None
) -> None:
    """X^T of a block: [128, ceil(D / 128), 128] each; behind the last position stand zeros, whose logits are finite."""
    for number, tile_sbuf in enumerate(tiles_sbuf):
        count = min(PARTITIONS, block.size - number * PARTITIONS)
        if count < PARTITIONS:
            nisa.memset(dst=tile_sbuf, value=0.0)
        of_tile = Matrix(block.part(number * PARTITIONS, count).of(input_hbm), staging=staging)
        of_tile.load_transposed(tile_sbuf)
