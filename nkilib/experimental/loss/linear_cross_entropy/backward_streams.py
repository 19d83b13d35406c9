"""What the backward loads for its products: W for dX, X for dW; and class weights."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan
from nkilib.experimental.loss.linear_cross_entropy.blocks import Block, Span
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS, Matrix, load_broadcast
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.rings import Ring
from nkilib.experimental.loss.linear_cross_entropy.score_sources import weight_of
from nkilib.nki import nl


@dataclass(frozen=True)
class BackwardStreams:
    """The buffers of a launch, and what they are loaded with.

    Attributes:
        launch, plan: of the kernel.
        pieces: of X, [128, tiles of positions, stripe].
        stripes: of W, [128, tiles of classes, stripe].
        class_weight_sbuf: of a block, float32 [128, classes]; None without.
    """

    launch: LinearLaunch
    plan: BackwardPlan
    pieces: Ring
    stripes: Ring
    class_weight_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearLaunch, options: Options, plan: BackwardPlan) -> BackwardStreams:
        """Nothing is loaded yet."""
        class_weight_sbuf = None
        if options.needs_class_weights:
            shape = (PARTITIONS, plan.class_tiles * PARTITIONS)
            class_weight_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        buffers, dtype = plan.buffers, launch.dtype
        return cls(
            launch,
            plan,
            Ring.of_sbuf(buffers.pieces, (PARTITIONS, buffers.tiles_of_piece, plan.stripe), dtype),
            Ring.of_sbuf(buffers.weight_stripes, (PARTITIONS, plan.class_tiles, plan.stripe), dtype),
            class_weight_sbuf,
        )

    def load_piece(self, positions: Span, tiles: range, stripe: Span) -> nl.NkiTensor:
        """Some tiles of X of a block, in the next buffer."""
        first = tiles.start * PARTITIONS
        rows = min(tiles.stop * PARTITIONS, positions.size) - first
        piece_sbuf = self.pieces.next_tile()
        of_piece = Matrix(self.launch.input_hbm).rows_of(positions.first + first, rows)
        of_piece.columns_of(stripe.first, stripe.size).load(piece_sbuf)
        return piece_sbuf

    def load_stripe(self, classes: Block, stripe: Span) -> nl.NkiTensor:
        """A stripe of W of a block, in the next buffer."""
        stripe_sbuf = self.stripes.next_tile()
        weight_of(self.launch, classes).columns_of(stripe.first, stripe.size).load(stripe_sbuf)
        return stripe_sbuf

    def load_class_weights(self, classes: Block, at: int) -> None:
        """Of some classes, the first of which is class ``at`` of their block."""
        if self.launch.class_weight_hbm is not None and self.class_weight_sbuf is not None:
            load_broadcast(self.class_weight_sbuf[:, at : at + classes.size], classes.of(self.launch.class_weight_hbm))
