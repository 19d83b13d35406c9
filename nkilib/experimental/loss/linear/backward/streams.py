# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward's loads: W^T and X^T for the logits, W for dX, X for dW, rows of biases and of class weights."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.operand_pair import OperandPair, PairBuffers, WeightPart
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.stream_memory import StreamMemory
from nkilib.experimental.loss.linear.backward.weight_slices import WeightSlices
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, balanced_spans, cut
from nkilib.experimental.loss.linear.shared.kept_logits import KeptLogits
from nkilib.experimental.loss.linear.shared.launch import LinearOperands
from nkilib.experimental.loss.linear.shared.operands import ClassRow, Matrix
from nkilib.experimental.loss.linear.shared.staging import Staging
from nkilib.nki import nl


@dataclass(frozen=True)
class BackwardStreams:
    """The buffers of a launch, and the methods that load them.

    Attributes:
        plan: the plan of the kernel.
        kept: the kept logits, if the launch has them; None if they are computed.
        slices: the slices of W^T, and X^T, if W^T streams; None if it stays.
        pairs: X^T and W^T of each operand pair; the gradients are those of the first one.
        rows: the vectors of one value per class; the biases come first.
        pieces: pieces of X, [128, tiles of positions, stripe].
        stripes: stripes of W, [128, tiles of classes, stripe].
    """

    plan: BackwardPlan
    kept: KeptLogits | None
    slices: WeightSlices | None
    pairs: list[PairBuffers]
    rows: list[ClassRow]
    pieces: Ring
    stripes: Ring

    @classmethod
    def make(
        cls, pairs: list[OperandPair], plan: BackwardPlan, kept: KeptLogits | None, rows: list[ClassRow]
    ) -> BackwardStreams:
        """Allocate the buffers; nothing is loaded yet. ``rows`` are loaded besides the biases."""
        own, classes = pairs[0].operands, plan.class_tiles * PARTITIONS
        memory = StreamMemory.make(plan, own.dtype)
        staging = Staging.make(plan.staging_bytes)
        slices = WeightSlices.make(own, plan, staging) if plan.streams_weight else None
        if slices is not None:
            inputs = [Ring([])]
        elif kept is None:
            inputs = memory.inputs(pairs)
        else:
            inputs = [Ring.of_sbuf(plan.buffers.input_tiles, (PARTITIONS, classes), nl.float32)]

        def buffers(number: int, pair: OperandPair) -> PairBuffers:
            operands, weight_sbuf, bias = pair.operands, None, None
            if slices is None and kept is None:
                shape = (PARTITIONS, div_ceil(operands.num_features, PARTITIONS), classes)
                weight_sbuf = nl.ndarray(shape, dtype=operands.dtype, buffer=nl.sbuf)
            if operands.bias_hbm is not None and kept is None:
                bias = ClassRow.make(operands.bias_hbm, classes, pair.lowest_bias)
            return PairBuffers(number, operands, inputs[number], weight_sbuf, bias, staging)

        pair_buffers = [buffers(number, pair) for number, pair in enumerate(pairs)]
        biases = [buffer.bias for buffer in pair_buffers if buffer.bias is not None]
        return cls(plan, kept, slices, pair_buffers, [*biases, *rows], memory.pieces(), memory.stripes())

    @property
    def operands(self) -> LinearOperands:
        """The operands X and W whose gradients are computed."""
        return self.pairs[0].operands

    @property
    def input_buffers(self) -> int:
        """The number of buffers for tiles of X^T, or of kept logits."""
        return len(self.pairs[0].inputs.tiles)

    def restart_inputs(self) -> None:
        """Let the next tile of X^T take the first buffer."""
        for pair in self.pairs:
            pair.inputs.restart()

    def next_inputs(self) -> list[nl.NkiTensor]:
        """Return the next tile of X^T of each operand pair, which is loaded already."""
        return [pair.inputs.next_tile() for pair in self.pairs]

    def load_opening(self, classes: Block, positions: Span) -> None:
        """Load the operands that the first block starts with, in the order in which they are needed."""
        if self.slices is not None:
            self.slices.load_opening(classes if self.slices.is_loaded_ahead(classes.size) else None, positions)
            self.load_rows(classes, 0)
            return
        self.restart_inputs()
        self.load_input(classes, 0, positions, 0)
        for part in self.weight_parts(classes, 0):
            self.load_weight(part)
        self.load_rows(classes, 0)
        if not self.plan.buffers.shares_memory:
            for tile in range(1, self.first_inputs(positions)):
                self.load_input(classes, 0, positions, tile)

    def load_first_inputs(self, positions: Span) -> None:
        """Load only the X^T that a block starts with; the block loads its classes itself."""
        if self.kept is not None:
            return
        if self.slices is not None:
            self.slices.load_opening(None, positions)
            return
        self.restart_inputs()
        for tile in range(1 if self.plan.buffers.shares_memory else self.first_inputs(positions)):
            self._load_transposed_input(positions, tile)

    def load_kept(self, positions: Span) -> None:
        """Load X once, if it stays for all blocks; it is needed later than X^T of the first block."""
        if self.plan.keeps_pieces:
            self.pieces.restart()
            for stripe in self.stripes_of_features:
                for tiles in self.pieces_of(positions):
                    self._load_piece(positions, tiles, stripe)

    @property
    def stripes_of_features(self) -> list[Span]:
        """The features of each stripe; stripes are as equal as tiles of 128 features can be."""
        if self.plan.stripe % PARTITIONS:
            return [Span(0, self.operands.num_features)]
        return balanced_spans(Span(0, self.operands.num_features), self.plan.stripe)

    def pieces_of(self, positions: Span) -> list[range]:
        """Return the tiles of positions of each piece of X of a block."""
        tiles = div_ceil(positions.size, PARTITIONS)
        return [range(span.first, span.end) for span in cut(tiles, self.plan.buffers.tiles_of_piece)]

    def load_late(self, classes: Block, at: int, positions: Span) -> None:
        """Load the operands of ``classes``, the rest of a block from class ``at`` on that is not loaded yet."""
        if classes.size == 0:
            return
        for part in self.weight_parts(classes, at):
            self.load_weight(part)
        self.load_rows(classes, at)
        if self.kept is not None:
            self._load_first_logits(classes, at, positions)

    def load_first_input(self, classes: Block | None, positions: Span) -> None:
        """Load the first tile of X^T of a block, or the first kept logits of ``classes``."""
        if self.kept is not None:
            if classes is not None:
                self._load_first_logits(classes, 0, positions)
            return
        self.restart_inputs()
        if not self.plan.keeps_inputs:
            self._load_transposed_input(positions, 0)

    def load_second_inputs(self, positions: Span) -> list[list[nl.NkiTensor]]:
        """Load the tiles of X^T of each operand pair after the first one, as many as there are buffers."""
        if self.kept is not None or self.plan.keeps_inputs:
            return []
        return [self._load_transposed_input(positions, tile) for tile in range(1, self.first_inputs(positions))]

    def _load_first_logits(self, classes: Block, at: int, positions: Span) -> None:
        self.restart_inputs()
        for tile in range(self.first_inputs(positions)):
            self.load_input(classes, at, positions, tile)

    def first_inputs(self, positions: Span) -> int:
        """Return how many tiles of X^T a block of positions starts with, the first one included."""
        return min(self.plan.buffers.input_tiles, div_ceil(positions.size, PARTITIONS))

    def load_input(self, classes: Block, at: int, positions: Span, tile: int) -> list[nl.NkiTensor]:
        """Load a tile of X^T of each pair, or the logits of classes from class ``at`` on, into the next buffers."""
        if self.kept is None:
            return self._load_transposed_input(positions, tile)
        first = tile * PARTITIONS
        rows = min(PARTITIONS, positions.size - first)
        (tile_sbuf,) = self.next_inputs()
        self.kept.load(tile_sbuf[0:rows, at : at + classes.size], (positions.first + first) // PARTITIONS, classes)
        return [tile_sbuf]

    def _load_transposed_input(self, positions: Span, tile: int) -> list[nl.NkiTensor]:
        return [pair.load_input(positions, tile) for pair in self.pairs]

    def load_piece(self, positions: Span, tiles: range, stripe: Span) -> nl.NkiTensor:
        """Load some tiles of X of a block and a stripe into the next buffer; if all of X is kept, return them.

        Every group of tiles of dW goes through all pieces of a stripe before the next stripe begins. So a kept piece is
        chosen by its stripe and its tiles: in the order in which pieces are requested, a stripe repeats.
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
        of_piece = Matrix(self.operands.input_hbm).rows_of(positions.first + first, rows)
        of_piece.columns_of(stripe.first, stripe.size).load(piece_sbuf)
        return piece_sbuf

    def load_stripe(self, classes: Block, stripe: Span) -> nl.NkiTensor:
        """Load a stripe of W of a block into the next buffer."""
        stripe_sbuf = self.stripes.next_tile()
        self.pairs[0].weight(classes).columns_of(stripe.first, stripe.size).load(stripe_sbuf)
        return stripe_sbuf

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """Return the parts in which W^T of some classes is loaded, in the order in which the logits need them."""
        if classes is None or classes.size == 0:
            return []
        of_pairs = [pair.weight_parts(classes, at, self.plan.class_tiles) for pair in self.pairs]
        return [part for parts in zip_longest(*of_pairs) for part in parts if part is not None]

    def load_weight(self, part: WeightPart) -> None:
        """Load a part of W^T; kept logits do not need it."""
        self.pairs[part.pair].load_weight(part)

    def load_rows(self, classes: Block | None, at: int) -> None:
        """Load biases and class weights of some classes."""
        if classes is None or classes.size == 0:
            return
        for row in self.rows:
            row.load(classes, at)
        for row in self.rows:
            row.raise_lowest(at, classes.size)
