"""W^T that streams by X^T in slices of features: for few positions of many features, whose X^T stays in SBUF.

Otherwise W^T of a block of classes stays there for its logits, and the next one is loaded only beside dX and dW, when
the DMA engines have most to do. A slice is done with after some microseconds, so W^T is loaded while it is multiplied,
and X^T once for all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward_plan import TILES_OF_SLICE, BackwardPlan
from nkilib.experimental.loss.linear.blocks import Block, Span, cut
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.operands import PARTITIONS, Matrix
from nkilib.experimental.loss.linear.rings import Ring
from nkilib.experimental.loss.linear.staging import Staging
from nkilib.nki import nl


@dataclass(frozen=True)
class WeightSlices:
    """X^T of all positions, and the slices of W^T.

    Attributes:
        launch, plan: of the kernel.
        inputs_sbuf: X^T, [128, tiles of features, positions].
        ring: slices of W^T, [128, tiles of features of a slice, classes of a tile of logits].
        staging: for W of another type.
    """

    launch: LinearOperands
    plan: BackwardPlan
    inputs_sbuf: nl.NkiTensor
    ring: Ring
    staging: Staging | None

    @classmethod
    def make(cls, launch: LinearOperands, plan: BackwardPlan, staging: Staging | None) -> WeightSlices:
        """Nothing is loaded yet."""
        shape = (PARTITIONS, plan.feature_tiles, plan.position_tiles * PARTITIONS)
        inputs_sbuf = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf)
        slice_shape = (PARTITIONS, min(TILES_OF_SLICE, plan.feature_tiles), plan.classes_of_tile)
        ring = Ring.of_sbuf(plan.buffers.weight_slices, slice_shape, launch.dtype)
        return cls(launch, plan, inputs_sbuf, ring, staging)

    @property
    def features(self) -> list[Span]:
        """Of the slices."""
        return cut(self.launch.num_features, TILES_OF_SLICE * PARTITIONS)

    def inputs_of(self, features: Span, positions: Span) -> nl.NkiTensor:
        """X^T of a slice, [128, tiles of features, positions]."""
        tiles = slice(features.first // PARTITIONS, div_ceil(features.end, PARTITIONS))
        return self.inputs_sbuf[:, tiles, positions.first : positions.end]

    def load(self, classes: Block, features: Span) -> nl.NkiTensor:
        """A slice of W^T of the classes of a tile of logits, in the next buffer."""
        slice_sbuf = self.ring.next_tile()
        has_classes_first = self.launch.has_classes_first
        weight_hbm = classes.of(self.launch.weight_hbm, 0 if has_classes_first else 1)
        matrix = Matrix(weight_hbm, not has_classes_first, self.staging)
        matrix.columns_of(features.first, features.size).load_transposed(slice_sbuf)
        return slice_sbuf

    def is_loaded_ahead(self, classes: int) -> bool:
        """Whether the step before loads the first slices of a block of which it knows so many classes.

        They are those of a whole tile of logits, so that how many classes follow makes no difference.
        """
        return classes >= self.plan.classes_of_tile

    def load_ahead(self, classes: Block) -> None:
        """The first slices of a block, as many as there are buffers."""
        self.ring.restart()
        for features in self._first_features:
            self.load(self._first_classes(classes), features)

    def take_ahead(self) -> list[nl.NkiTensor]:
        """What :meth:`load_ahead` has loaded."""
        self.ring.restart()
        return [self.ring.next_tile() for _ in self._first_features]

    def load_opening(self, classes: Block | None) -> None:
        """X^T, and beside it the first slices of a block, in the order in which they are needed."""
        self.ring.restart()
        for number, features in enumerate(self.features):
            positions = Span(0, self.launch.num_positions)
            matrix = Matrix(self.launch.input_hbm).columns_of(features.first, features.size)
            matrix.load_transposed(self.inputs_of(features, positions))
            if classes is not None and number < len(self._first_features):
                self.load(self._first_classes(classes), features)

    @property
    def _first_features(self) -> list[Span]:
        return self.features[: len(self.ring.tiles)]

    def _first_classes(self, classes: Block) -> Block:
        return classes.part(0, min(classes.size, self.plan.classes_of_tile))
