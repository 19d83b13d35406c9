# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The loads of the backward: W^T and X^T for the logits, W for dX, X for dW, biases and class weights.

N positions, D features, V classes; X [N, D] and W ([V, D], or [D, V]) are the operands; dX and dW are their gradients.
A *round* is the work on one block of classes with one block of positions. A *stripe* is a range of features of W or X;
a *piece* of X is some tiles of 128 positions of one stripe; a *slice* is a few tiles of 128 features of W^T or X^T; a
*part* of W^T (:class:`WeightPart`) is what one transfer loads.

Logits are computed from one or two pairs of X and W (:class:`OperandPair`), and :class:`BackwardStreams` has the
buffers of all pairs. Operands that stream have separate ring buffers, or X^T, X and W share two halves of one memory
(:class:`StreamMemory`).

With many features, W^T streams by slices of features (:class:`WeightSlices`), each multiplied within microseconds. X^T
of few positions stays in SBUF; otherwise it streams too, for each tile of classes. Without slices, W^T of a block of
classes stays in SBUF for its logits (:class:`PairBuffers`), and W^T of the next block is loaded in parts while dX and
dW are computed, when the DMA engines have most to do. If the forward has kept the logits, they are loaded in place of
X^T and W^T.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Ring, dtype_bytes
from nkilib.experimental.loss.linear.backward.geometry import TILES_OF_SLICE
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.block_schedule import Block, Span, balanced_spans, cut
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.logits import LogitsInHbm
from nkilib.experimental.loss.linear.operands import ClassRow, Matrix, Staging
from nkilib.nki import nl

_HALVES = 2


@dataclass(frozen=True)
class OperandPair:
    """X and W, and the options with which logits are computed from their product.

    Attributes:
        operands: X, W and the bias.
        softcap: the cap of the logits; None for none.
        lowest_bias: the value that lower biases are raised to; None if the bias stays as it is.
        masked_score: under a cap, the score of a masked class, in place of its tanh -1; ``lowest_bias`` is then twice
            this value. None if the score stays -1.
        scores_stay: whether the scores (the logits, or under a cap tanh(logit / cap)) are needed until a tile of the
            gradient is computed; else only until :meth:`TileMaker.open`.
    """

    operands: LinearOperands
    softcap: float | None = None
    lowest_bias: float | None = None
    masked_score: float | None = None
    scores_stay: bool = True


@dataclass(frozen=True)
class StreamMemory:
    """The memory of the operands that stream: X^T for the logits, W for dX, X for dW.

    Attributes:
        plan: the plan of the launch.
        dtype: the dtype of the products with W and X.
        shared_sbuf: two halves of memory that X^T, X and W share, [128, 2, elements of a half]; None if each operand
            has separate memory.
    """

    plan: BackwardPlan
    dtype: nl.DType
    shared_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, plan: BackwardPlan, dtype: nl.DType) -> StreamMemory:
        """Return the memory for a plan, after allocating ``shared_sbuf`` if X^T, X and W share memory in the plan."""
        shared_sbuf = None
        if plan.buffers.shares_memory:
            shared_sbuf = nl.ndarray((PARTITIONS, _HALVES, plan.half_size), dtype=dtype, buffer=nl.sbuf)
        return cls(plan, dtype, shared_sbuf)

    def inputs(self, pairs: list[OperandPair]) -> list[Ring]:
        """Return for each operand pair the ring buffer of tiles of X^T, [128, tiles of features, 128].

        In shared memory the tiles of both pairs are side by side. If two tiles do not fit in one half, each tile takes
        a half.
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

        In shared memory pieces have the second half, and stripes of W the first half. The last stripe of W is read
        before the last piece of X, so the next tile of X^T is loaded into the first half.
        """
        buffers = self.plan.buffers
        return self._ring(buffers.pieces, 1, buffers.tiles_of_piece, self.plan.stripe)

    def stripes(self) -> Ring:
        """Return the ring buffer of stripes of W, [128, tiles of classes, stripe]."""
        return self._ring(self.plan.buffers.weight_stripes, 0, self.plan.class_tiles, self.plan.stripe)

    def _ring(self, count: int, half: int, tiles: int, columns: int) -> Ring:
        """Return a ring buffer of ``count`` tiles [128, tiles, columns].

        The tiles have separate memory, or are side by side in half number ``half`` of the shared memory.
        """
        if self.shared_sbuf is None:
            return Ring.of_sbuf(count, (PARTITIONS, tiles, columns), self.dtype)
        size, slots = tiles * columns, []
        for place in range(count):
            part_sbuf = self.shared_sbuf[:, half, place * size : (place + 1) * size]
            slots.append(part_sbuf.reshape_dim(1, (tiles, columns)))
        return Ring(slots)


class Slice(NamedTuple):
    """A slice of W^T and the slice of X^T for the same features, for a tile of classes and a batch of positions.

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
        operands, plan: the operands and the plan of the kernel.
        inputs_sbuf: X^T of all positions, [128, tiles of features, positions]; None if X^T streams.
        ring: slices of W^T, [128, tiles of features of a slice, classes of a tile of logits].
        input_ring: slices of X^T, as many as of W^T, [128, tiles of features of a slice, positions of a batch]; empty
            if X^T stays.
        staging: the memory in which W is cast if its dtype is not the dtype of the products.
    """

    operands: LinearOperands
    plan: BackwardPlan
    inputs_sbuf: nl.NkiTensor | None
    ring: Ring
    input_ring: Ring
    staging: Staging | None

    @classmethod
    def make(cls, operands: LinearOperands, plan: BackwardPlan, staging: Staging | None) -> WeightSlices:
        """Allocate the memory; nothing is loaded yet."""
        slices, features = plan.buffers.weight_slices, min(TILES_OF_SLICE, plan.feature_tiles)
        inputs_sbuf, of_inputs = None, 0
        if plan.streams_inputs:
            of_inputs = slices
        else:
            shape = (PARTITIONS, plan.feature_tiles, plan.position_tiles * PARTITIONS)
            inputs_sbuf = nl.ndarray(shape, dtype=operands.dtype, buffer=nl.sbuf)
        ring = Ring.of_sbuf(slices, (PARTITIONS, features, plan.classes_of_tile), operands.dtype)
        batch = plan.tiles_of_batch * PARTITIONS
        input_ring = Ring.of_sbuf(of_inputs, (PARTITIONS, features, batch), operands.dtype)
        return cls(operands, plan, inputs_sbuf, ring, input_ring, staging)

    @property
    def features(self) -> list[Span]:
        """The range of features of each slice."""
        return cut(self.operands.num_features, TILES_OF_SLICE * PARTITIONS)

    def positions_of(self, positions: Span, tile: int) -> Span:
        """Return the positions of the batch that begins with tile number ``tile`` of the block ``positions``."""
        first = tile * PARTITIONS
        return Span(positions.first + first, min(self.plan.tiles_of_batch * PARTITIONS, positions.size - first))

    def load(self, classes: Block, positions: Span, features: Span) -> Slice:
        """Load a slice of W^T, and of X^T if X^T streams, into the next buffers, and return the slice on chip.

        The slice is for the classes of a tile of logits and for a batch of positions.
        """
        weight_sbuf = self.ring.next_tile()
        has_classes_first = self.operands.has_classes_first
        weight_hbm = classes.of(self.operands.weight_hbm, 0 if has_classes_first else 1)
        matrix = Matrix(weight_hbm, not has_classes_first, self.staging)
        matrix.columns_of(features.first, features.size).load_transposed(weight_sbuf)
        if self.inputs_sbuf is not None:
            return Slice(weight_sbuf, self._kept_inputs(self.inputs_sbuf, positions, features))
        inputs_sbuf = self.input_ring.next_tile()
        inputs = Matrix(self.operands.input_hbm).rows_of(positions.first, positions.size)
        inputs.columns_of(features.first, features.size).load_transposed(inputs_sbuf)
        return Slice(weight_sbuf, inputs_sbuf)

    def is_loaded_ahead(self, classes: int) -> bool:
        """Return whether the first slices of a block of classes are loaded during the previous round.

        By then the first ``classes`` classes of the block are known; they must be enough for one tile of logits.
        """
        return classes >= self.plan.classes_of_tile

    def load_ahead(self, classes: Block, positions: Span) -> None:
        """Load the first slices of a block, as many as there are buffers, before the block begins."""
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
        """Load the first slices of a block, and X^T if X^T stays, in the order in which they are needed.

        Args:
            classes: the block of classes; None to load only an X^T that stays.
            positions: the block of positions.
        """
        if self.inputs_sbuf is None:
            if classes is not None:
                self.load_ahead(classes, positions)
            return
        self._restart()
        for number, features in enumerate(self.features):
            matrix = Matrix(self.operands.input_hbm).columns_of(features.first, features.size)
            whole = Span(0, self.operands.num_positions)
            matrix.load_transposed(self._kept_inputs(self.inputs_sbuf, whole, features))
            if classes is not None and number < len(self._first_features):
                self.load(self._first_classes(classes), self.positions_of(positions, 0), features)

    def _kept_inputs(self, inputs_sbuf: nl.NkiTensor, positions: Span, features: Span) -> nl.NkiTensor:
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


@dataclass(frozen=True)
class WeightPart:
    """A part of W^T of some classes that one transfer loads.

    Attributes:
        pair: the number of the operand pair.
        classes: the classes, counted from the first class of W.
        at: the index of the first of ``classes`` in the block of classes.
        span: a range of ``classes``, counted from the first of these, if W is [V, D]; else a range of features.
    """

    pair: int
    classes: Block
    at: int
    span: Span


@dataclass(frozen=True)
class PairBuffers:
    """The buffers of an operand pair.

    Attributes:
        number: the number of the pair.
        operands: X, W and the bias.
        inputs: tiles of X^T, [128, tiles of features, 128]; if logits are kept, tiles of logits, float32 [128,
            classes].
        weight_sbuf: W^T of a block of classes, [128, tiles of features, classes]; None if logits are kept, or if W^T
            streams.
        bias: the bias of a block; None without a bias.
        staging: the memory in which W is cast if its dtype is not the dtype of the products; X has that dtype.
    """

    number: int
    operands: LinearOperands
    inputs: Ring
    weight_sbuf: nl.NkiTensor | None
    bias: ClassRow | None
    staging: Staging | None

    @property
    def feature_tiles(self) -> int:
        """The number of tiles of 128 features."""
        return div_ceil(self.operands.num_features, PARTITIONS)

    def load_input(self, positions: Span, tile: int) -> nl.NkiTensor:
        """Load tile number ``tile`` of X^T of a block of positions into the next buffer, and return the buffer."""
        rows = min(PARTITIONS, positions.size - tile * PARTITIONS)
        tile_sbuf = self.inputs.next_tile()
        of_tile = Matrix(self.operands.input_hbm).rows_of(positions.first + tile * PARTITIONS, rows)
        of_tile.load_transposed(tile_sbuf)
        return tile_sbuf

    def weight(self, classes: Block) -> Matrix:
        """Return W of some classes in HBM, [classes, features]."""
        has_classes_first = self.operands.has_classes_first
        weight_hbm = classes.of(self.operands.weight_hbm, 0 if has_classes_first else 1)
        return Matrix(weight_hbm, not has_classes_first, self.staging)

    def weight_parts(self, classes: Block, at: int, class_tiles: int) -> list[WeightPart]:
        """Return the parts in which W^T of some classes is loaded; none if W^T has no buffer.

        Args:
            classes: the classes, counted from the first class of W.
            at: the index of the first of these classes in the block of classes.
            class_tiles: the number of tiles of classes of a block.
        """
        if self.weight_sbuf is None:
            return []
        if self.operands.has_classes_first:
            pieces = cut(classes.size, PARTITIONS)
        else:
            step = div_ceil(self.feature_tiles, class_tiles) * PARTITIONS
            pieces = cut(self.operands.num_features, step)
        return [WeightPart(self.number, classes, at, span) for span in pieces]

    def load_weight(self, part: WeightPart) -> None:
        """Load a part of W^T into ``weight_sbuf``; do nothing if ``weight_sbuf`` is None."""
        if self.weight_sbuf is None:
            return
        weight, span = self.weight(part.classes), part.span
        if self.operands.has_classes_first:
            at = part.at + span.first
            weight.rows_of(span.first, span.size).load_transposed(self.weight_sbuf[:, :, at : at + span.size])
            return
        tiles_sbuf = self.weight_sbuf[:, span.first // PARTITIONS : div_ceil(span.end, PARTITIONS), :]
        at_sbuf = tiles_sbuf[:, :, part.at : part.at + part.classes.size]
        weight.columns_of(span.first, span.size).load_transposed(at_sbuf)


@dataclass(frozen=True)
class BackwardStreams:
    """The buffers of a launch, and the methods that load them.

    Attributes:
        plan: the plan of the kernel.
        kept: the logits that the forward kept; None if logits are computed.
        slices: the buffers of slices if W^T streams; None if W^T stays in SBUF.
        pairs: the buffers of each operand pair; only gradients of the first pair are computed.
        rows: the vectors of one value per class; the biases come first.
        pieces: pieces of X, [128, tiles of positions, stripe].
        stripes: stripes of W, [128, tiles of classes, stripe].
    """

    plan: BackwardPlan
    kept: LogitsInHbm | None
    slices: WeightSlices | None
    pairs: list[PairBuffers]
    rows: list[ClassRow]
    pieces: Ring
    stripes: Ring

    @classmethod
    def make(
        cls, pairs: list[OperandPair], plan: BackwardPlan, kept: LogitsInHbm | None, rows: list[ClassRow]
    ) -> BackwardStreams:
        """Allocate the buffers; nothing is loaded yet. ``rows`` are the vectors of one value per class besides the
        biases.
        """
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
        """Let the next tile of X^T use the first buffer of its ring."""
        for pair in self.pairs:
            pair.inputs.restart()

    def next_inputs(self) -> list[nl.NkiTensor]:
        """Return the next buffer of X^T of each operand pair, without loading anything."""
        return [pair.inputs.next_tile() for pair in self.pairs]

    def load_opening(self, classes: Block, positions: Span) -> None:
        """Load the operands with which the first block starts, in the order in which they are needed."""
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
            for tile in range(1, self.opening_inputs(positions)):
                self.load_input(classes, 0, positions, tile)

    def load_inputs_alone(self, positions: Span) -> None:
        """Load only the X^T with which a block starts; the block loads the operands of its classes itself."""
        if self.kept is not None:
            return
        if self.slices is not None:
            self.slices.load_opening(None, positions)
            return
        self.restart_inputs()
        for tile in range(1 if self.plan.buffers.shares_memory else self.opening_inputs(positions)):
            self._load_transposed_input(positions, tile)

    def load_kept(self, positions: Span) -> None:
        """Load all pieces of X if the plan keeps them in SBUF for all blocks; else do nothing."""
        if self.plan.keeps_pieces:
            self.pieces.restart()
            for stripe in self.stripes_of_features:
                for tiles in self.pieces_of(positions):
                    self._load_piece(positions, tiles, stripe)

    @property
    def stripes_of_features(self) -> list[Span]:
        """The range of features of each stripe; stripes are as equal as tiles of 128 features allow."""
        if self.plan.stripe % PARTITIONS:
            return [Span(0, self.operands.num_features)]
        return balanced_spans(Span(0, self.operands.num_features), self.plan.stripe)

    def pieces_of(self, positions: Span) -> list[range]:
        """Return the tiles of positions of each piece of X in a block of positions."""
        tiles = div_ceil(positions.size, PARTITIONS)
        return [range(span.first, span.end) for span in cut(tiles, self.plan.buffers.tiles_of_piece)]

    def load_late(self, classes: Block, at: int, positions: Span) -> None:
        """Load what a block of classes still lacks: the rows, and W^T or the first kept logits of ``positions``.

        ``classes`` are the classes of the block that are not loaded yet, from index ``at`` of the block on.
        """
        if classes.size == 0:
            return
        for part in self.weight_parts(classes, at):
            self.load_weight(part)
        self.load_rows(classes, at)
        if self.kept is not None:
            self._load_first_logits(classes, at, positions)

    def load_first_tile(self, classes: Block | None, positions: Span) -> None:
        """Load the first tile of X^T of a block of positions, or with kept logits the first logits of the block.

        These are the logits of ``classes``; with None no kept logits are loaded.
        """
        if self.kept is not None:
            if classes is not None:
                self._load_first_logits(classes, 0, positions)
            return
        self.restart_inputs()
        if not self.plan.keeps_inputs:
            self._load_transposed_input(positions, 0)

    def load_second_inputs(self, positions: Span) -> list[list[nl.NkiTensor]]:
        """Load the tiles of X^T after the first one into the free buffers; return each tile's buffers, one per pair."""
        if self.kept is not None or self.plan.keeps_inputs:
            return []
        return [self._load_transposed_input(positions, tile) for tile in range(1, self.opening_inputs(positions))]

    def _load_first_logits(self, classes: Block, at: int, positions: Span) -> None:
        self.restart_inputs()
        for tile in range(self.opening_inputs(positions)):
            self.load_input(classes, at, positions, tile)

    def opening_inputs(self, positions: Span) -> int:
        """Return how many tiles of X^T are loaded at the start of a block of positions, including the first one."""
        return min(self.plan.buffers.input_tiles, div_ceil(positions.size, PARTITIONS))

    def load_input(self, classes: Block, at: int, positions: Span, tile: int) -> list[nl.NkiTensor]:
        """Load one tile of a block of positions into the next buffers, and return these buffers.

        There is one buffer of X^T for each operand pair, or one buffer of kept logits.

        Args:
            classes: the classes of the kept logits to load; not used without kept logits.
            at: the column of the buffer for the first of these classes.
            positions: the block of positions.
            tile: the number of the tile in that block.
        """
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
        """Return a piece of X in SBUF: from its buffer if the plan keeps all pieces, else loaded into the next buffer.

        The same piece is requested several times, because every group of tiles of dW uses all pieces of a stripe before
        the next stripe begins.

        Args:
            positions: the block of positions.
            tiles: the numbers of the piece's tiles of positions in the block.
            stripe: the stripe of features.
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
        """Load a stripe of W, of a block of classes, into the next buffer, and return the buffer."""
        stripe_sbuf = self.stripes.next_tile()
        self.pairs[0].weight(classes).columns_of(stripe.first, stripe.size).load(stripe_sbuf)
        return stripe_sbuf

    def weight_parts(self, classes: Block | None, at: int) -> list[WeightPart]:
        """Return the parts in which W^T of ``classes`` is loaded, in the order in which the logits need them.

        ``at`` is the index of the first of these classes in its block.
        """
        if classes is None or classes.size == 0:
            return []
        of_pairs = [pair.weight_parts(classes, at, self.plan.class_tiles) for pair in self.pairs]
        return [part for parts in zip_longest(*of_pairs) for part in parts if part is not None]

    def load_weight(self, part: WeightPart) -> None:
        """Load a part of W^T into the buffer of its operand pair; do nothing if W^T has no such buffer."""
        self.pairs[part.pair].load_weight(part)

    def load_rows(self, classes: Block | None, at: int) -> None:
        """Load biases and class weights of ``classes`` into the rows of the block, from column ``at`` on."""
        if classes is None or classes.size == 0:
            return
        for row in self.rows:
            row.load(classes, at)
        for row in self.rows:
            row.raise_lowest(at, classes.size)
