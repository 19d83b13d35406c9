# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rounds of a backward, and the buffers that they share.

A *round* (:class:`Round`) is the work on one block of classes with one block of positions. X and W are the operands, G
is the gradient of the logits; dX, dW and db are the gradients of X, W and the bias. A *stripe* is a range of features,
a *piece* of X some tiles of 128 positions of one stripe, and a :class:`Unit` is a part of the work on a stripe in a
round. :class:`SharedBuffers` has the buffers of all rounds, the banks of PSUM, and the objects that compute logits, G,
dX, dW and db from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Ring
from nkilib.experimental.loss.linear.backward.bias_gradient import BiasGradient, UnroundedBiasGradient
from nkilib.experimental.loss.linear.backward.geometry import GRADIENT_SLOTS, weight_tiles
from nkilib.experimental.loss.linear.backward.gradient_block import GradientBlock
from nkilib.experimental.loss.linear.backward.input_gradient import InputGradient, InputSum, OwnClasses
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan, ClassCover
from nkilib.experimental.loss.linear.backward.streams import BackwardStreams, OperandPair
from nkilib.experimental.loss.linear.backward.tile_maker import BackwardProblem, TileMaker
from nkilib.experimental.loss.linear.backward.weight_gradient import WeightGradient
from nkilib.experimental.loss.linear.block_schedule import Block, Span, balanced_spans
from nkilib.experimental.loss.linear.launch import Gradients, LinearOperands
from nkilib.experimental.loss.linear.logits import CLASSES_OF_TILE, LogitsInHbm, LogitTiles
from nkilib.nki import nl

# Banks of PSUM. The first logits of a block take the banks that dX leaves first. Two operand pairs have three tiles of
# logits each at a time.
_INPUT_BANKS = (6, 7)
_LOGIT_BANKS = {1: (6, 7, 0, 1, 2), 2: (6, 7, 0, 1, 2, 5)}
_TRANSPOSE_BANKS = {1: (3, 4, 5), 2: (3, 4)}
# Where X^T and W^T stream: the last tiles of dW leave the bank for transposes last.
_STREAMED_LOGIT_BANKS, _STREAMED_TRANSPOSE_BANKS = (6, 7, 0, 1, 2, 3, 4), (5,)
_WEIGHT_BANKS = (0, 1, 2, 3, 4, 5)
# A tile is transposed after so many more tiles: then it is ready, whatever its options. Without a cap one more tile is
# nearly enough, and for a block of few tiles better: the last tiles are transposed while dX waits for them.
TRANSPOSED_LATER, _FEW_TRANSPOSED_LATER, _FEW_TILES = 2, 1, 8
# The share of a block that is prepared while the previous block is multiplied with W and X, which takes Tensor two
# thirds of its time. The rest is prepared while logits are computed.
_PREPARED_AHEAD = 0.7


@dataclass(frozen=True)
class Round:
    """The work on a block of classes and a block of positions, and what it loads for the next round.

    Attributes:
        classes, positions: the blocks.
        next_classes: the first classes of the next block, whose W^T is loaded during this round; None if the next round
            has the same block of classes, or if no classes are loaded ahead.
        next_positions: the block of positions of the next round; None if this is known to be the core's last round.
        is_first_of_core, is_last_of_core: whether the block of classes is known, when the kernel is built, to be the
            core's first or last one.
        is_first, is_last: whether the block of positions is the first or last one.
    """

    classes: Block
    positions: Span
    next_classes: Block | None
    next_positions: Span | None
    is_first_of_core: bool
    is_last_of_core: bool
    is_first: bool
    is_last: bool

    @property
    def tiles(self) -> int:
        """The number of tiles of positions."""
        return div_ceil(self.positions.size, PARTITIONS)

    def rows(self, tile: int) -> int:
        """Return the number of positions of tile number ``tile``, at most 128."""
        return min(PARTITIONS, self.positions.size - tile * PARTITIONS)


@dataclass(frozen=True)
class Unit:
    """A part of the work on a stripe: dX of some tiles of positions, and the product of one piece of X with G for dW.

    Attributes:
        number: the number of the unit within its stripe.
        tiles: the tiles of positions, counted in the block of positions, whose dX is computed.
        piece: the tiles of positions, counted in the block of positions, that the piece of X has.
        group: the number, within the stripe, of the group of tiles of dW that the product is added to.
        loads: whether the piece of X has to be loaded for this unit, because the unit before it has another one.
    """

    number: int
    tiles: range
    piece: range
    group: int
    loads: bool


def _bias_gradient(
    plan: BackwardPlan,
    gradient_hbm: nl.NkiTensor | None,
    streams: BackwardStreams,
    tiles: TileMaker,
    has_softcap: bool,
) -> BiasGradient | UnroundedBiasGradient | None:
    """Return the object that computes db; None if db is not wanted (``gradient_hbm`` is None).

    It is :class:`UnroundedBiasGradient` if 16-bit products round G and the bias has another dtype, else
    :class:`BiasGradient`.
    """
    if gradient_hbm is None:
        return None
    operands = streams.operands
    if not operands.rounds_more_than_bias:
        return BiasGradient.make(plan, gradient_hbm, tiles.power)
    # Not the row of the bias, which would take all classes at once: it may hold the bias of the next classes already.
    return UnroundedBiasGradient.make(
        plan, gradient_hbm, tiles.float32_tiles, tiles.power, operands.num_positions, has_softcap
    )


def _banks() -> list[nl.NkiTensor]:
    shape = (PARTITIONS, CLASSES_OF_TILE)
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(nl.tile_size.psum_num_banks)]


def _logit_tiles(
    pair: OperandPair, plan: BackwardPlan, banks_psum: list[nl.NkiTensor], shared: TileMaker | None
) -> LogitTiles:
    """Return the banks of PSUM and the tiles of SBUF in which the logits of an operand pair are computed.

    If the scores stay (:attr:`OperandPair.scores_stay`), SBUF has as many tiles of scores as the plan opens at a time.
    If ``shared`` is None, logits plus bias have separate tiles. If ``shared`` is the tile maker of G, memory is saved:
    under a cap, logits plus bias are stored in the tile that later gets their tanh; without a cap, in a tile of G if
    :attr:`TileMaker.may_hold_scores`.
    """
    has_softcap, opened = pair.softcap is not None, plan.buffers.opened if pair.scores_stay else GRADIENT_SLOTS

    def tiles_sbuf(is_needed: bool, slots: int) -> list[nl.NkiTensor]:
        slots = slots if is_needed and not plan.keeps_logits else 0
        return Ring.of_sbuf(slots, (PARTITIONS, plan.classes_of_tile), nl.float32).tiles

    tangents = tiles_sbuf(has_softcap, opened)
    if shared is not None and has_softcap:
        biased = tangents
    elif shared is not None and shared.may_hold_scores:
        biased = shared.float32_tiles
    else:
        biased = tiles_sbuf(pair.operands.bias_hbm is not None, GRADIENT_SLOTS if has_softcap else opened)
    return LogitTiles(pair.operands.num_features, pair.softcap, banks_psum, biased, tangents, pair.masked_score)


@dataclass(frozen=True)
class SharedBuffers:
    """The buffers and objects that all rounds of a core share.

    Attributes:
        operands: X and W whose gradients are computed.
        plan: the plan of the backward.
        core: the number of this core.
        positions: the blocks of positions.
        streams: the buffers of the operands that stream.
        logits: for each operand pair, the tiles in which its logits are computed; unused if logits are kept.
        tiles: the tile maker of G.
        block: the block of G.
        transpose_banks: the banks of PSUM for transposes in the first half of a round.
        input_banks: the banks of PSUM for dX, and for transposes in the second half of a round.
        input_gradient: computes dX of this core; None if dX is not wanted.
        input_sum: adds up dX over the cores; None if dX is not wanted.
        weight_gradient: computes dW; None if dW is not wanted.
        bias_gradient: computes db; None if db is not wanted.
        own_classes: the mask of the core's own classes in a block, for dX; None if no block has classes of the other
            core.
    """

    operands: LinearOperands
    plan: BackwardPlan
    core: int
    positions: list[Span]
    streams: BackwardStreams
    logits: list[LogitTiles]
    tiles: TileMaker
    block: GradientBlock
    transpose_banks: Ring
    input_banks: Ring
    input_gradient: InputGradient | None
    input_sum: InputSum | None
    weight_gradient: WeightGradient | None
    bias_gradient: BiasGradient | UnroundedBiasGradient | None
    own_classes: OwnClasses | None

    @classmethod
    def make(
        cls,
        problem: BackwardProblem,
        plan: BackwardPlan,
        gradients: Gradients,
        partials_hbm: list[nl.NkiTensor],
        core: int,
        kept: LogitsInHbm | None,
        cover: ClassCover | None,
    ) -> SharedBuffers:
        """Allocate all buffers; none of the operands is loaded yet.

        Args:
            problem, plan: the problem and the plan of the backward.
            gradients: the gradients of the launch.
            partials_hbm: the float32 sums of dX of each core.
            core: the number of this core.
            kept: the logits that the forward kept; None to compute them.
            cover: the classes of a single device loop; None if the core has other blocks.
        """
        tiles, operands, pairs = problem.make_tiles(plan), problem.operands, len(problem.pairs)
        banks_psum = _banks()
        positions = balanced_spans(Span(0, operands.num_positions), plan.position_tiles * PARTITIONS)
        input_banks = Ring([banks_psum[bank] for bank in _INPUT_BANKS])
        input_gradient = input_sum = weight_gradient = None
        if gradients.input_hbm is not None:
            results = Ring.of_sbuf(plan.buffers.input_results, (PARTITIONS, plan.stripe), nl.float32)
            input_gradient = InputGradient(partials_hbm[core], input_banks, results, tiles.power)
            input_sum = InputSum(gradients.input_hbm, partials_hbm, core)
        if gradients.weight_hbm is not None:
            banks = [banks_psum[bank] for bank in _WEIGHT_BANKS[: weight_tiles()]]
            weight_gradient = WeightGradient.make(
                operands, plan, gradients.weight_hbm, gradients.weight_sum_hbm, banks, tiles.power
            )
        streams = BackwardStreams.make(problem.pairs, plan, kept, tiles.rows)
        has_softcap = problem.pairs[0].softcap is not None
        bias_gradient = _bias_gradient(plan, gradients.bias_hbm, streams, tiles, has_softcap)
        shares_tiles = isinstance(bias_gradient, UnroundedBiasGradient)
        needs_transposed = input_gradient is not None or isinstance(bias_gradient, BiasGradient)
        of_logits, of_transposes = _LOGIT_BANKS[pairs], _TRANSPOSE_BANKS[pairs]
        if plan.streams_inputs:
            of_logits, of_transposes = _STREAMED_LOGIT_BANKS, _STREAMED_TRANSPOSE_BANKS
        logit_banks = [banks_psum[bank] for bank in of_logits]
        return cls(
            operands,
            plan,
            core,
            positions,
            streams,
            [
                _logit_tiles(pair, plan, logit_banks, tiles if number == 0 and shares_tiles else None)
                for number, pair in enumerate(problem.pairs)
            ],
            tiles,
            GradientBlock.make(plan, operands.dtype, needs_transposed),
            Ring([banks_psum[bank] for bank in of_transposes]),
            input_banks,
            input_gradient,
            input_sum,
            weight_gradient,
            bias_gradient,
            None if cover is None or cover.is_exact or input_gradient is None else OwnClasses.make(cover),
        )

    def restart(self) -> None:
        """Begin a round: restart all ring buffers."""
        for ring in (self.transpose_banks, self.input_banks, self.streams.pieces, self.streams.stripes):
            ring.restart()
        for gradient in (self.input_gradient, self.weight_gradient):
            if gradient is not None:
                gradient.restart()

    def begin(self, first_class: int) -> None:
        """Start at the core's first class, and prepare most tiles of G of the first block of positions.

        See :meth:`TileMaker.prepare`.

        Args:
            first_class: the core's first class.
        """
        self.tiles.begin(first_class)
        self.tiles.prepare(self.positions[0], 0, 0.0, _PREPARED_AHEAD)

    def prepare_ahead(self, round_: Round, step: int, steps: int) -> None:
        """Prepare some tiles of G of the next round; see :meth:`TileMaker.prepare`.

        Args:
            round_: the current round.
            step, steps: the work is split into ``steps`` equal steps, and this call does step number ``step``.
        """
        if round_.next_positions is not None:
            skipped = round_.classes.size if round_.is_last else 0
            done, end = step / steps, (step + 1) / steps
            self.tiles.prepare(round_.next_positions, skipped, _PREPARED_AHEAD * done, _PREPARED_AHEAD * end)

    def prepare_rest(self, round_: Round, start: int, end: int) -> None:
        """Prepare the tiles of G of this round that :meth:`prepare_ahead` has left.

        Args:
            start, end: the range of tiles of positions that are computed meanwhile; the same fraction of the remaining
                tiles is prepared.
        """
        shares = (_PREPARED_AHEAD + (1.0 - _PREPARED_AHEAD) * tile / round_.tiles for tile in (start, end))
        self.tiles.prepare(round_.positions, 0, *shares)

    def transposed_later(self, round_: Round) -> int:
        """Return how many further tiles are computed before a tile is transposed, so that Tensor does not wait."""
        has_few = round_.tiles <= _FEW_TILES and not self.tiles.opens_groups and not self.plan.keeps_logits
        return _FEW_TRANSPOSED_LATER if has_few else TRANSPOSED_LATER

    def transpose(self, round_: Round, tile: int, banks: Ring) -> None:
        """Transpose tile ``tile`` of positions of the block of G, through the PSUM banks ``banks``."""
        self.block.transpose(tile, round_.rows(tile), round_.classes.size, banks)

    def add_bias(self, round_: Round) -> None:
        """Add the block of G of a round, whose tiles are all transposed, to db; do nothing if db is not wanted."""
        if self.bias_gradient is not None:
            positions = round_.positions.size
            self.bias_gradient.add(self.block, round_.classes, positions, round_.is_first, round_.is_last)

    def add_input(self, round_: Round, stripe: Span, tile: int, weight_sbuf: nl.NkiTensor | None) -> None:
        """Compute dX of tile ``tile`` of positions and one stripe; do nothing if dX is not wanted.

        In the core's first block of classes dX is stored, in later blocks it is added to the sum.

        Args:
            stripe: the stripe of features.
            tile: the number of the tile of positions in the block.
            weight_sbuf: the stripe of W; None if dX is not wanted.
        """
        if self.input_gradient is None or weight_sbuf is None:
            return
        first = round_.positions.first + tile * PARTITIONS
        place_hbm = self.input_gradient.partial_hbm[first : first + round_.rows(tile), stripe.first : stripe.end]
        classes, is_first = round_.classes.size, round_.is_first_of_core
        self.input_gradient.add_tile(self.block, weight_sbuf, place_hbm, tile, classes, is_first)

    def load_stripe(self, round_: Round, stripe: Span) -> nl.NkiTensor | None:
        """Load a stripe of W for the classes of a round, for dX, and return its buffer; None if dX is not wanted.

        Rows of W for classes of the other core are set to 0 (:class:`.input_gradient.OwnClasses`).
        """
        if self.input_gradient is None:
            return None
        weight_sbuf = self.streams.load_stripe(round_.classes, stripe)
        if self.own_classes is not None:
            self.own_classes.keep(weight_sbuf[:, :, 0 : stripe.size])
        return weight_sbuf
