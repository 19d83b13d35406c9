# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Slices of features in which W^T streams past X^T: for many features.

X^T of few positions stays; otherwise it streams too. Without slices, W^T of a block of classes stays in SBUF for its
logits, and the next one is loaded only beside dX and dW, when the DMA engines have most to do. A slice is done after
some microseconds, so W^T is loaded while it is multiplied, and X^T once for all blocks, or with W^T for each tile of
classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import TILES_OF_SLICE
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, cut
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.operands import Matrix
from nkilib.experimental.loss.linear.shared.staging import Staging
from nkilib.nki import nl


class Slice(NamedTuple):
    """A slice of W^T and a slice of X^T of the same features, for a tile of classes and a batch of positions.

    Attributes:
        weight_sbuf: W^T, [128, tiles of features, classes of a tile of logits].
        inputs_sbuf: X^T, [128, tiles of features, positions of the batch, possibly more].
    """

    weight_sbuf: nl.NkiTensor
    inputs_sbuf: nl.NkiTensor


@dataclass(frozen=True)
class WeightSlices:
    """The buffers of the slices of W^T, and of the X^T that they are multiplied with.

    Attributes:
        launch, plan: the operands and the plan of the kernel.
        inputs_sbuf: X^T of all positions, [128, tiles of features, positions]; None if it streams.
        ring: slices of W^T, [128, tiles of features of a slice, classes of a tile of logits].
        input_ring: slices of X^T, as many as of W^T, [128, tiles of features of a slice, positions of a batch]; empty
            if X^T stays.
        staging: the staging memory for a W of another type.
    """

    launch: LinearOperands
    plan: BackwardPlan
    inputs_sbuf: nl.NkiTensor | None
    ring: Ring
    input_ring: Ring
    staging: Staging | None

    @classmethod
    def make(cls, launch: LinearOperands, plan: BackwardPlan, staging: Staging | None) -> WeightSlices:
        """Allocate the memory; nothing is loaded yet."""
        slices, features = plan.buffers.weight_slices, min(TILES_OF_SLICE, plan.feature_tiles)
        inputs_sbuf, of_inputs = None, 0
        if plan.streams_inputs:
            of_inputs = slices
        else:
            shape = (PARTITIONS, plan.feature_tiles, plan.position_tiles * PARTITIONS)
            inputs_sbuf = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf)
        ring = Ring.of_sbuf(slices, (PARTITIONS, features, plan.classes_of_tile), launch.dtype)
        batch = plan.tiles_of_batch * PARTITIONS
        input_ring = Ring.of_sbuf(of_inputs, (PARTITIONS, features, batch), launch.dtype)
        return cls(launch, plan, inputs_sbuf, ring, input_ring, staging)

    @property
    def features(self) -> list[Span]:
        """The features of each slice."""
        return cut(self.launch.num_features, TILES_OF_SLICE * PARTITIONS)

    def positions_of(self, positions: Span, tile: int) -> Span:
        """Return the span of the batch that begins with tile number ``tile`` of a block of positions.

        Args:
            positions: the block.
            tile: the number of the batch's first tile in the block; a batch has at most ``plan.tiles_of_batch`` tiles.
        """
        first = tile * PARTITIONS
        return Span(positions.first + first, min(self.plan.tiles_of_batch * PARTITIONS, positions.size - first))

    def load(self, classes: Block, positions: Span, features: Span) -> Slice:
        """Load a slice of the classes of a tile of logits and of a batch of positions into the next buffers."""
        weight_sbuf = self.ring.next_tile()
        has_classes_first = self.launch.has_classes_first
        weight_hbm = classes.of(self.launch.weight_hbm, 0 if has_classes_first else 1)
        matrix = Matrix(weight_hbm, not has_classes_first, self.staging)
        matrix.columns_of(features.first, features.size).load_transposed(weight_sbuf)
        if self.inputs_sbuf is not None:
            return Slice(weight_sbuf, self._kept_inputs(self.inputs_sbuf, positions, features))
        inputs_sbuf = self.input_ring.next_tile()
        inputs = Matrix(self.launch.input_hbm).rows_of(positions.first, positions.size)
        inputs.columns_of(features.first, features.size).load_transposed(inputs_sbuf)
        return Slice(weight_sbuf, inputs_sbuf)

    def is_loaded_ahead(self, classes: int) -> bool:
        """Return whether the previous step loads the first slices of a block of which it knows ``classes`` classes.

        It does if it knows a whole tile of logits, so that the number of further classes makes no difference.
        """
        return classes >= self.plan.classes_of_tile

    def load_ahead(self, classes: Block, positions: Span) -> None:
        """Load the first slices of a block, as many as there are buffers."""
        self._restart()
        for features in self._first_features:
            self.load(self._first_classes(classes), self.positions_of(positions, 0), features)

    def take_ahead(self, positions: Span) -> list[Slice]:
        """Return the slices that :meth:`load_ahead` has loaded for a block of positions."""
        self._restart()
        slices = []
        for features in self._first_features:
            weight_sbuf = self.ring.next_tile()
            if self.inputs_sbuf is None:
                inputs_sbuf = self.input_ring.next_tile()
            else:
                inputs_sbuf = self._kept_inputs(self.inputs_sbuf, self.positions_of(positions, 0), features)
            slices.append(Slice(weight_sbuf, inputs_sbuf))
        return slices

    def load_opening(self, classes: Block | None, positions: Span) -> None:
        """Load the X^T that stays, and with it the first slices of a block, in the order in which they are needed."""
        if self.inputs_sbuf is None:
            if classes is not None:
                self.load_ahead(classes, positions)
            return
        self._restart()
        for number, features in enumerate(self.features):
            matrix = Matrix(self.launch.input_hbm).columns_of(features.first, features.size)
            whole = Span(0, self.launch.num_positions)
            matrix.load_transposed(self._kept_inputs(self.inputs_sbuf, whole, features))
            if classes is not None and number < len(self._first_features):
                self.load(self._first_classes(classes), self.positions_of(positions, 0), features)

    def _kept_inputs(self, inputs_sbuf: nl.NkiTensor, positions: Span, features: Span) -> nl.NkiTensor:
        """Return X^T of some positions and a slice, [128, tiles of features, positions]."""
        tiles = slice(features.first // PARTITIONS, div_ceil(features.end, PARTITIONS))
        return inputs_sbuf[:, tiles, positions.first : positions.end]

    def _restart(self) -> None:
        self.ring.restart()
        self.input_ring.restart()

    @property
    def _first_features(self) -> list[Span]:
        return self.features[: len(self.ring.tiles)]

    def _first_classes(self, classes: Block) -> Block:
        return classes.part(0, min(classes.size, self.plan.classes_of_tile))
