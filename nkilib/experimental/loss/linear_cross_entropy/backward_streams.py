"""What the backward loads: W^T and X^T for the logits, W for dX, X for dW, rows of the bias and of class weights."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.linear.blocks import Block, Span, balanced_spans, cut
from nkilib.experimental.loss.linear.kept_logits import KeptLogits
from nkilib.experimental.loss.linear.operands import PARTITIONS, Matrix, load_broadcast
from nkilib.experimental.loss.linear.rings import Ring
from nkilib.experimental.loss.linear.staging import Staging
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.weight_slices import WeightSlices
from nkilib.nki import nisa, nl

_HALVES = 2
# A masked class has a bias of -inf, and 0 * inf is NaN. Here its p is 0 likewise, and so is p times its logit.
_LOWEST_BIAS = -(2.0**100)


@dataclass(frozen=True)
class WeightPart:
    """A part of W^T of some classes, as large as a transfer is.

    Attributes:
        classes: which, in HBM.
        at: the first of them, counted in the block of classes.
        span: of these classes, or of the features where those are the rows in HBM.
    """

    classes: Block
    at: int
    span: Span


@dataclass(frozen=True)
class BackwardStreams:
    """The buffers of a launch, and what they are loaded with.

    Attributes:
        launch, plan: of the kernel.
        kept: the logits, where the launch has them; None where they are computed.
        slices: of W^T, and X^T, where W^T streams by; None where it stays.
        inputs: tiles of X^T, [128, tiles of features, 128]; of logits, float32 [128, classes], where they are kept.
        weight_sbuf: W^T of a block of classes, [128, tiles of features, classes]; None where logits are kept, or where
            it streams by.
        pieces: of X, [128, tiles of positions, stripe].
        stripes: of W, [128, tiles of classes, stripe].
        bias_sbuf, class_weight_sbuf: of a block, float32 [128, classes]; None without.
        staging: for W of another type than that of the products, which X has here.
        lowest_bias: what the bias is raised to where it is less; None where it stays.
    """

    launch: LinearLaunch
    plan: BackwardPlan
    kept: KeptLogits | None
    slices: WeightSlices | None
    inputs: Ring
    weight_sbuf: nl.NkiTensor | None
    pieces: Ring
    stripes: Ring
    bias_sbuf: nl.NkiTensor | None
    class_weight_sbuf: nl.NkiTensor | None
    staging: Staging | None
    lowest_bias: float | None

    @classmethod
    def make(
        cls,
        launch: LinearLaunch,
        options: Options,
        plan: BackwardPlan,
        kept: KeptLogits | None,
        has_slope: bool,
    ) -> BackwardStreams:
        """Nothing is loaded yet. ``has_slope``: p is multiplied with its logit, of which none may be -inf."""
        dtype, classes = launch.dtype, plan.class_tiles * PARTITIONS

        def row(is_needed: bool) -> nl.NkiTensor | None:
            return nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) if is_needed else None

        shape = (_HALVES, plan.half_size)
        shared_sbuf = None
        if plan.buffers.takes_turns:
            shared_sbuf = nl.ndarray((PARTITIONS, *shape), dtype=dtype, buffer=nl.sbuf)

        def ring(count: int, first_half: int, tiles: int, columns: int) -> Ring:
            """Tiles [128, tiles, columns]: of their own, or side by side in halves of what takes turns."""
            if shared_sbuf is None:
                return Ring.of_sbuf(count, (PARTITIONS, tiles, columns), dtype)
            size, found = tiles * columns, []
            for number in range(count):
                # A tile of X^T takes a half; the others lie one behind the other in theirs.
                half, place = (number, 0) if size * count > plan.half_size else (first_half, number)
                part_sbuf = shared_sbuf[:, half, place * size : (place + 1) * size]
                found.append(part_sbuf.reshape_dim(1, (tiles, columns)))
            return Ring(found)

        buffers = plan.buffers
        staging = Staging.make(plan.staging_bytes)
        slices = WeightSlices.make(launch, plan, staging) if plan.streams_weight else None
        if slices is not None:
            inputs, weight_sbuf = Ring([]), None
        elif kept is None:
            inputs = ring(buffers.input_tiles, 0, plan.feature_tiles, PARTITIONS)
            weight_sbuf = nl.ndarray((PARTITIONS, plan.feature_tiles, classes), dtype=dtype, buffer=nl.sbuf)
        else:
            inputs, weight_sbuf = Ring.of_sbuf(buffers.input_tiles, (PARTITIONS, classes), nl.float32), None
        return cls(
            launch,
            plan,
            kept,
            slices,
            inputs,
            weight_sbuf,
            # The last stripe of W is read before the last piece of X: the first tile of X^T takes its place.
            ring(buffers.pieces, 1, buffers.tiles_of_piece, plan.stripe),
            ring(buffers.weight_stripes, 0, plan.class_tiles, plan.stripe),
            row(launch.bias_hbm is not None and kept is None),
            row(options.needs_class_weights),
            staging,
            _LOWEST_BIAS / max(1.0, options.scale) if has_slope and options.softcap is None else None,
        )

    def load_opening(self, classes: Block, positions: Span) -> None:
        """What the first block starts with, in the order in which it is needed."""
        if self.slices is not None:
            self.slices.load_opening(classes if self.slices.is_loaded_ahead(classes.size) else None)
            self.load_rows(classes, 0)
            return
        self.inputs.restart()
        self.load_input(classes, 0, positions, 0)
        for part in self.weight_parts(classes, 0):
            self.load_weight(part)
        self.load_rows(classes, 0)
        if not self.plan.buffers.takes_turns:
            for tile in range(1, self.first_inputs(positions)):
                self.load_input(classes, 0, positions, tile)

    def load_first_inputs(self, positions: Span) -> None:
        """X^T alone that a block starts with, which loads its classes itself."""
        if self.kept is not None:
            return
        if self.slices is not None:
            self.slices.load_opening(None)
            return
        self.inputs.restart()
        for tile in range(1 if self.plan.buffers.takes_turns else self.first_inputs(positions)):
            self._load_transposed_input(positions, tile)

    def load_kept(self, positions: Span) -> None:
        """X, if it stays for all blocks: behind X^T of the first one, which is needed before."""
        if self.plan.keeps_pieces:
            self.pieces.restart()
            for stripe in self.stripes_of_features:
                for tiles in self.pieces_of(positions):
                    self._load_piece(positions, tiles, stripe)

    @property
    def stripes_of_features(self) -> list[Span]:
        """The stripes, as equal as tiles of 128 features can be."""
        if self.plan.stripe % PARTITIONS:
            return [Span(0, self.launch.num_features)]
        return balanced_spans(Span(0, self.launch.num_features), self.plan.stripe)

    def pieces_of(self, positions: Span) -> list[range]:
        """The tiles of positions of each piece of X of a block."""
        tiles = div_ceil(positions.size, PARTITIONS)
        return [range(span.first, span.end) for span in cut(tiles, self.plan.buffers.tiles_of_piece)]

    def load_late(self, classes: Block, at: int, positions: Span) -> None:
        """What is missing of a block of classes, from class ``at`` on."""
        if classes.size == 0:
            return
        for part in self.weight_parts(classes, at):
            self.load_weight(part)
        self.load_rows(classes, at)
        if self.kept is not None:
            self._load_first_logits(classes, at, positions)

    def load_first_input(self, classes: Block | None, positions: Span) -> None:
        """The first tile of X^T of a block, or the first logits of those classes."""
        if self.kept is not None:
            if classes is not None:
                self._load_first_logits(classes, 0, positions)
            return
        self.inputs.restart()
        if not self.plan.keeps_inputs:
            self._load_transposed_input(positions, 0)

    def load_second_inputs(self, positions: Span) -> list[nl.NkiTensor]:
        """Tiles of X^T after the first one, as many as there are buffers."""
        if self.kept is not None or self.plan.keeps_inputs:
            return []
        return [self._load_transposed_input(positions, tile) for tile in range(1, self.first_inputs(positions))]

    def _load_first_logits(self, classes: Block, at: int, positions: Span) -> None:
        self.inputs.restart()
        for tile in range(self.first_inputs(positions)):
            self.load_input(classes, at, positions, tile)

    def first_inputs(self, positions: Span) -> int:
        """How many tiles that are."""
        return min(self.plan.buffers.input_tiles, div_ceil(positions.size, PARTITIONS))

    def load_input(self, classes: Block, at: int, positions: Span, tile: int) -> nl.NkiTensor:
        """A tile of X^T of a block, or its logits of some classes, from class ``at`` on, in the next buffer."""
        if self.kept is None:
            return self._load_transposed_input(positions, tile)
        first = tile * PARTITIONS
        rows = min(PARTITIONS, positions.size - first)
        tile_sbuf = self.inputs.next_tile()
        self.kept.load(tile_sbuf[0:rows, at : at + classes.size], (positions.first + first) // PARTITIONS, classes)
        return tile_sbuf

    def _load_transposed_input(self, positions: Span, tile: int) -> nl.NkiTensor:
        rows = min(PARTITIONS, positions.size - tile * PARTITIONS)
        tile_sbuf = self.inputs.next_tile()
        of_tile = Matrix(self.launch.input_hbm).rows_of(positions.first + tile * PARTITIONS, rows)
        of_tile.load_transposed(tile_sbuf)
        return tile_sbuf

    def load_piece(self, positions: Span, tiles: range, stripe: Span) -> nl.NkiTensor:
        """Some tiles of X of a block and a stripe, in the next buffer; if all of X is kept, they are there already.

        Every group of tiles of dW goes through all pieces of a stripe before the next stripe begins. So a kept piece is
        chosen by its stripe and its tiles: in the order in which pieces are asked for, a stripe repeats.
        """
        if not self.plan.keeps_pieces:
            return self._load_piece(positions, tiles, stripe)
        pieces_of_stripe = len(self.pieces_of(positions))
        piece = tiles.start // self.plan.buffers.tiles_of_piece
        return self.pieces.tiles[self.stripes_of_features.index(stripe) * pieces_of_stripe + piece]

    def _load_piece(self, positions: Span, tiles: range, stripe: Span) -> nl.NkiTensor:
        first = tiles.start * PARTITIONS
        rows = min(tiles.stop * PARTITIONS, positions.size) - first
        piece_sbuf = self.pieces.next_tile()
        of_piece = Matrix(self.launch.input_hbm).rows_of(positions.first + first, rows)
        of_piece.columns_of(stripe.first, stripe.size).load(piece_sbuf)
        return piece_sbuf

    def load_stripe(self, classes: Block, stripe: Span) -> nl.NkiTensor:
        """A stripe of W of a block, in the next buffer."""
        stripe_sbuf = self.stripes.next_tile()
        self._weight(classes).columns_of(stripe.first, stripe.size).load(stripe_sbuf)
        return stripe_sbuf

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """What W^T of some classes is loaded in, in the order in which the logits need it."""
        if classes is None or classes.size == 0 or self.weight_sbuf is None:
            return []
        if self.launch.has_classes_first:
            pieces = cut(classes.size, PARTITIONS)
        else:
            step = div_ceil(self.plan.feature_tiles, self.plan.class_tiles) * PARTITIONS
            pieces = cut(self.launch.num_features, step)
        return [WeightPart(classes, at, span) for span in pieces]

    def load_weight(self, part: WeightPart) -> None:
        """A part of W^T, which kept logits do not need."""
        if self.weight_sbuf is None:
            return
        weight, span = self._weight(part.classes), part.span
        if self.launch.has_classes_first:
            at = part.at + span.first
            weight.rows_of(span.first, span.size).load_transposed(self.weight_sbuf[:, :, at : at + span.size])
            return
        tiles_sbuf = self.weight_sbuf[:, span.first // PARTITIONS : div_ceil(span.end, PARTITIONS), :]
        at_sbuf = tiles_sbuf[:, :, part.at : part.at + part.classes.size]
        weight.columns_of(span.first, span.size).load_transposed(at_sbuf)

    def load_rows(self, classes: Block | None, at: int) -> None:
        """Bias and class weights of some classes."""
        if classes is None or classes.size == 0:
            return
        of_launch = (self.launch.bias_hbm, self.launch.class_weight_hbm)
        for vector_hbm, row_sbuf in zip(of_launch, (self.bias_sbuf, self.class_weight_sbuf), strict=True):
            if vector_hbm is not None and row_sbuf is not None:
                load_broadcast(row_sbuf[:, at : at + classes.size], classes.of(vector_hbm))
        if self.bias_sbuf is not None and self.lowest_bias is not None:
            part_sbuf = self.bias_sbuf[:, at : at + classes.size]
            nisa.tensor_scalar(dst=part_sbuf, data=part_sbuf, op0=nl.maximum, operand0=self.lowest_bias)

    def _weight(self, classes: Block) -> Matrix:
        """W of some classes, [classes, features]."""
        has_classes_first = self.launch.has_classes_first
        weight_hbm = classes.of(self.launch.weight_hbm, 0 if has_classes_first else 1)
        return Matrix(weight_hbm, not has_classes_first, self.staging)
