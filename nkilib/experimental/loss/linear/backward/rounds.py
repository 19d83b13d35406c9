# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rounds of a backward: a block of classes and a block of positions each, with what all rounds of a core share.

:class:`Round` and :class:`Unit` are the units of work. :class:`SharedBuffers` has the buffers and banks of all rounds
and the objects that use them. :class:`InputGradient` adds up dX = G W over the blocks of classes in HBM, and
:class:`InputSum` adds it up over the cores.

A program that has no room for another copy of its body has a loop over all classes of a core (:class:`ClassCover`). All
of its blocks have one size. Where they do not fill the share of a core, they reach into the share of the other one:
both cores write the same dW and db of the classes that they share, and each adds only its own classes to dX. So a
vocabulary needs neither whole blocks nor whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.rows.sbuf import Ring
from nkilib.experimental.loss.linear.backward.bias_gradient import BiasGradient, UnroundedBiasGradient
from nkilib.experimental.loss.linear.backward.geometry import GRADIENT_SLOTS, LEAST_ROOM, weight_tiles
from nkilib.experimental.loss.linear.backward.gradient_block import GradientBlock, PowerOfTwo
from nkilib.experimental.loss.linear.backward.memory_plan import BackwardPlan
from nkilib.experimental.loss.linear.backward.streams import BackwardStreams, OperandPair
from nkilib.experimental.loss.linear.backward.tile_maker import TileMaker
from nkilib.experimental.loss.linear.backward.weight_gradient import WeightGradient
from nkilib.experimental.loss.linear.block_schedule import FEWEST_ITERATIONS, Block, Span, Step, balanced_spans, cut
from nkilib.experimental.loss.linear.launch import Gradients, LinearOperands
from nkilib.experimental.loss.linear.logits import CLASSES_OF_TILE, LogitsInHbm, LogitTiles
from nkilib.nki import nisa, nl

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
    """The work on a block of classes and a block of positions, with the blocks that follow.

    Attributes:
        classes, positions: the blocks.
        next_classes: the classes whose W^T is to be loaded meanwhile; None if it is loaded, or nothing follows.
        next_positions: the positions whose X^T is to be loaded; None if nothing follows.
        is_first_of_core, is_last_of_core: whether the block of classes is the core's first, or last.
        is_first, is_last: whether the block of positions is the first, or last.
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
        """Return the number of positions of a tile."""
        return min(PARTITIONS, self.positions.size - tile * PARTITIONS)


@dataclass(frozen=True)
class Unit:
    """A unit of work of a stripe: some tiles of dX, and a piece of X for dW.

    Attributes:
        number: the number of the unit within its stripe.
        tiles: the tiles of positions whose dX is computed.
        piece: the tiles of positions of the piece of X.
        group: the number of the group of tiles of dW.
        loads: whether the piece has to be loaded.
    """

    number: int
    tiles: range
    piece: range
    group: int
    loads: bool


@dataclass(frozen=True)
class ClassCover:
    """The classes that the loop of a core covers.

    Attributes:
        first: the first class.
        size: the number of classes of a block, a multiple of 128.
        iterations: the number of iterations, the same for all cores.
        own: the core's own share of the classes.
        shared: the number of classes that the loops of both cores cover.
    """

    first: int
    size: int
    iterations: int
    own: Span
    shared: int

    @property
    def is_exact(self) -> bool:
        """Whether the loop covers no classes but the core's own."""
        return self.first == self.own.first and self.iterations * self.size == self.own.size

    def synchronise(self, gradients_hbm: list[nl.NkiTensor]) -> None:
        """Synchronise the cores at a barrier at the end of an iteration.

        Classes that both cores write are written by one core in its first iterations, and by the other one in its last.
        """
        if self.shared > 0:
            for gradient_hbm in gradients_hbm:
                nisa.core_barrier(gradient_hbm, tuple(range(nl.num_programs())))

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block; nothing of a block is loaded before."""

        def iteration(first: nisa.NkiScalar) -> None:
            body(Step(Block(first, self.size), 0, 0, None))

        nl.fori_loop(self.first, self.first + self.iterations * self.size, iteration, self.size)


def planned_cover(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassCover | None:
    """Return the loop of a core; None if the program has room for more copies of its body, or if there is no such loop.

    The loop needs more than one block of positions and a vocabulary of at least the covered classes. If the cores share
    classes, it also needs a dW that is not added to, because it would be added twice, and enough iterations for the
    cores to write the shared classes one after the other.
    """
    has_room = plan.blocks_of_program(num_positions) >= LEAST_ROOM
    if has_room or plan.keeps_logits or plan.position_blocks == 1:
        return None
    while plan.blocks_of_program(num_positions) < 1.0 and plan.class_tiles > 1:
        plan = plan.shorter()
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    iterations = div_ceil(tiles, plan.class_tiles)
    size = div_ceil(tiles, iterations) * PARTITIONS
    vocab_size, covered = shares[-1].end, iterations * size
    if iterations < FEWEST_ITERATIONS or covered > vocab_size:
        return None
    shared = len(shares) * covered - vocab_size
    if shared > 0 and (plan.adds_to_weight or iterations < 2 * div_ceil(shared, size)):
        return None
    share = shares[core]
    return ClassCover(min(share.first, vocab_size - covered), size, iterations, share, shared)


@dataclass(frozen=True)
class OwnClasses:
    """A mask of the core's own classes of a block: 1 for own classes, and 0 for others.

    Attributes:
        count: the number of the core's own classes.
        places_sbuf: the classes of the block, counted from the core's first one, float32 [128, tiles of classes].
        mask_sbuf: the mask, float32 [128, tiles of classes].
    """

    count: int
    places_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, cover: ClassCover) -> OwnClasses:
        """Allocate the tiles, with ``places_sbuf`` for the first block; the mask is still to be computed."""
        shape = (PARTITIONS, cover.size // PARTITIONS)
        places_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=places_sbuf, pattern=[[PARTITIONS, shape[1]]], offset=0, channel_multiplier=1)
        own = cls(cover.own.size, places_sbuf, nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
        own.step(cover.first - cover.own.first)
        return own

    def find(self) -> None:
        """Compute the mask of the block."""
        nisa.tensor_scalar(dst=self.mask_sbuf, data=self.places_sbuf, op0=nl.greater_equal, operand0=0.0)
        nisa.scalar_tensor_tensor(
            dst=self.mask_sbuf,
            data=self.places_sbuf,
            op0=nl.less,
            operand0=float(self.count),
            op1=nl.multiply,
            operand1=self.mask_sbuf,
        )

    def step(self, classes: int) -> None:
        """Make ``places_sbuf`` the class numbers of the block that begins ``classes`` classes later."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.add, operand0=float(classes))

    def keep(self, weight_sbuf: nl.NkiTensor) -> None:
        """Set the rows of W of classes that are not the core's own to 0, in a stripe [128, tiles of classes, features].

        GpSimd does so, because Vector has more to do.
        """
        for tile in range(self.mask_sbuf.shape[1]):
            tile_sbuf = weight_sbuf[:, tile, :]
            nisa.tensor_tensor(
                dst=tile_sbuf,
                data1=tile_sbuf,
                data2=self.mask_sbuf[:, tile : tile + 1].broadcast(1, tile_sbuf.shape[1]),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )


@dataclass(frozen=True)
class InputGradient:
    """The dX of this core, summed over blocks of classes in HBM.

    Attributes:
        partial_hbm: the sum, float32 [N, D].
        banks: banks of PSUM.
        results: tiles on their way to HBM, float32 [128, stripe].
        power: the power of two that the gradient of the logits is scaled by; None for 1.
    """

    partial_hbm: nl.NkiTensor
    banks: Ring
    results: Ring
    power: PowerOfTwo | None

    def restart(self) -> None:
        """Begin a block: restart the ring buffer of the results."""
        self.results.restart()

    def clear(self) -> None:
        """Store zeros as the sum, for loops where all blocks add to it, because none is known to be the first."""
        zeros_sbuf = self.results.tiles[0]
        nisa.memset(dst=zeros_sbuf, value=0.0)
        positions, features = self.partial_hbm.shape
        for rows in cut(positions, PARTITIONS):
            for columns in cut(features, zeros_sbuf.shape[1]):
                place_hbm = self.partial_hbm[rows.first : rows.end, columns.first : columns.end]
                nisa.dma_copy(dst=place_hbm, src=zeros_sbuf[0 : rows.size, 0 : columns.size])

    def add_tile(
        self,
        gradient: GradientBlock,
        weight_sbuf: nl.NkiTensor,
        place_hbm: nl.NkiTensor,
        tile: int,
        classes: int,
        is_first: bool,
    ) -> None:
        """Compute dX of a tile of positions and a stripe of features, and store it or add it to the sum.

        Args:
            gradient: the block of the gradient.
            weight_sbuf: W, [128, tiles of classes, stripe].
            place_hbm: the place of the result in ``partial_hbm``, [rows, stripe].
            tile: the number of the tile of positions in the block.
            classes: the number of classes of the block.
            is_first: whether the result is stored; otherwise it is added.
        """
        rows, features = place_hbm.shape
        first = tile * PARTITIONS
        bank_psum = self.banks.next_tile()[0:rows, 0:features]
        for number, span in enumerate(cut(classes, PARTITIONS)):
            nisa.nc_matmul(
                dst=bank_psum,
                stationary=gradient.classes_first_sbuf[0 : span.size, number, first : first + rows],
                moving=weight_sbuf[0 : span.size, number, 0:features],
                accumulate=number > 0,
            )
        result_sbuf = self.results.next_tile()[0:rows, 0:features]
        if self.power is None:
            nisa.tensor_copy(dst=result_sbuf, src=bank_psum, engine=nisa.engine.scalar)
        else:
            nisa.activation(dst=result_sbuf, op=nl.copy, data=bank_psum, scale=self.power.inverse_sbuf[0:rows, :])
        if is_first:
            nisa.dma_copy(dst=place_hbm, src=result_sbuf)
        else:
            nisa.dma_compute(dst=place_hbm, srcs=[place_hbm, result_sbuf], reduce_op=nl.add)


@dataclass(frozen=True)
class InputSum:
    """The sum of dX over the cores, rounded once, by DMA alone; each core sums an equal share of the rows.

    Attributes:
        gradient_hbm: dX, [N, D].
        partials_hbm: the partial sums of the cores that have classes, float32 [N, D].
        core: the core of this launch, one that has classes.
    """

    gradient_hbm: nl.NkiTensor
    partials_hbm: list[nl.NkiTensor]
    core: int

    def synchronise(self, positions: Span, features: Span) -> None:
        """Synchronise at a barrier, until all cores have their partial sums of a region of dX."""
        if len(self.partials_hbm) == 1:
            return
        for partial_hbm in self.partials_hbm:
            place_hbm = partial_hbm[positions.first : positions.end, features.first : features.end]
            nisa.core_barrier(place_hbm, tuple(range(len(self.partials_hbm))))

    def add(self, positions: Span, features: Span, part: int, parts: int) -> None:
        """Add up the cores' partial sums of a part of this core's rows of a region, after its :meth:`synchronise`.

        Args:
            positions, features: the region.
            part, parts: the number of the part, and the number of parts. Each part is a transfer; with several short
                ones, other transfers need not wait for a long one.
        """
        share = div_ceil(positions.size, len(self.partials_hbm))
        of_core = min(share, positions.size - self.core * share)
        of_part = div_ceil(of_core, parts)
        first = positions.first + self.core * share + part * of_part
        end = min(first + of_part, positions.first + self.core * share + of_core)
        if first >= end:
            return
        place = slice(first, end), slice(features.first, features.end)
        partials_hbm = [partial_hbm[place] for partial_hbm in self.partials_hbm]
        if len(partials_hbm) == 1:
            nisa.dma_copy(dst=self.gradient_hbm[place], src=partials_hbm[0])
        else:
            nisa.dma_compute(dst=self.gradient_hbm[place], srcs=partials_hbm, reduce_op=nl.add)


class BackwardProblem(NamedTuple):
    """The problem that a loss hands to the backward.

    Attributes:
        pairs: the operand pairs that logits are computed from: one or two. The gradients are those of the first one.
        make_tiles: a function of a plan that returns the tile maker of the gradient of the logits.
    """

    pairs: list[OperandPair]
    make_tiles: Callable[[BackwardPlan], TileMaker]

    @property
    def operands(self) -> LinearOperands:
        """The operands X and W whose gradients are computed."""
        return self.pairs[0].operands


def _bias_gradient(
    plan: BackwardPlan,
    gradient_hbm: nl.NkiTensor | None,
    streams: BackwardStreams,
    tiles: TileMaker,
    has_softcap: bool,
) -> BiasGradient | UnroundedBiasGradient | None:
    """Return the object that computes db; None if it is not wanted."""
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
    """Allocate all banks of PSUM."""
    shape = (PARTITIONS, CLASSES_OF_TILE)
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(nl.tile_size.psum_num_banks)]


def _logit_tiles(
    pair: OperandPair, plan: BackwardPlan, banks_psum: list[nl.NkiTensor], shared: TileMaker | None
) -> LogitTiles:
    """Return the tiles of logits of an operand pair, in banks that other work uses at other times.

    If the scores stay (:attr:`OperandPair.scores_stay`), SBUF has as many tiles of them as the plan opens at a time.
    ``shared`` is the tile maker of the gradient if memory is to be spared: the sums of logits and bias are then in the
    tiles that are computed from them. None for tiles of their own.
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
    """The parts that all blocks share.

    Attributes:
        operands: X and W whose gradients are computed.
        plan: the plan of the kernel.
        core: the core of this launch.
        positions: the blocks of positions.
        streams: the buffers of the operands that stream.
        logits: for each operand pair, the tiles that compute logits, if they are not kept.
        tiles: the tile maker of the gradient of the logits.
        block: the block of the gradient.
        transpose_banks: banks of PSUM for transposes beside the logits.
        input_banks: banks of PSUM for dX, and for transposes beside dW.
        input_gradient, input_sum, weight_gradient, bias_gradient: the objects that compute dX, its sum over the cores,
            dW and db; None for gradients that are not wanted.
        own_classes: the mask of the core's own classes in a block, for dX; None if all of them are its own.
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
        """Allocate the parts; none of the operands is loaded yet."""
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
        """Begin at ``first_class``, the first that the core works on; prepare most of the first block of positions."""
        self.tiles.begin(first_class)
        self.tiles.prepare(self.positions[0], 0, 0.0, _PREPARED_AHEAD)

    def prepare_ahead(self, round_: Round, step: int, steps: int) -> None:
        """Prepare some of the next round's tiles: share ``step`` of the ``steps`` shares that are prepared ahead."""
        if round_.next_positions is not None:
            skipped = round_.classes.size if round_.is_last else 0
            done, end = step / steps, (step + 1) / steps
            self.tiles.prepare(round_.next_positions, skipped, _PREPARED_AHEAD * done, _PREPARED_AHEAD * end)

    def prepare_rest(self, round_: Round, start: int, end: int) -> None:
        """Prepare what :meth:`prepare_ahead` has left, while tiles ``start`` to ``end`` of positions are computed."""
        shares = (_PREPARED_AHEAD + (1.0 - _PREPARED_AHEAD) * tile / round_.tiles for tile in (start, end))
        self.tiles.prepare(round_.positions, 0, *shares)

    def transposed_later(self, round_: Round) -> int:
        """Return how many more tiles are computed before a computed tile is transposed."""
        has_few = round_.tiles <= _FEW_TILES and not self.tiles.opens_groups and not self.plan.keeps_logits
        return _FEW_TRANSPOSED_LATER if has_few else TRANSPOSED_LATER

    def transpose(self, round_: Round, tile: int, banks: Ring) -> None:
        """Transpose a tile of positions of the block."""
        self.block.transpose(tile, round_.rows(tile), round_.classes.size, banks)

    def add_bias(self, round_: Round) -> None:
        """Add db of the block, all of whose tiles are transposed."""
        if self.bias_gradient is not None:
            positions = round_.positions.size
            self.bias_gradient.add(self.block, round_.classes, positions, round_.is_first, round_.is_last)

    def add_input(self, round_: Round, stripe: Span, tile: int, weight_sbuf: nl.NkiTensor | None) -> None:
        """Compute dX of a tile, and store it or add it to the sum."""
        if self.input_gradient is None or weight_sbuf is None:
            return
        first = round_.positions.first + tile * PARTITIONS
        place_hbm = self.input_gradient.partial_hbm[first : first + round_.rows(tile), stripe.first : stripe.end]
        classes, is_first = round_.classes.size, round_.is_first_of_core
        self.input_gradient.add_tile(self.block, weight_sbuf, place_hbm, tile, classes, is_first)

    def load_stripe(self, round_: Round, stripe: Span) -> nl.NkiTensor | None:
        """Load a stripe of W; None if dX is not wanted, which alone needs it."""
        if self.input_gradient is None:
            return None
        weight_sbuf = self.streams.load_stripe(round_.classes, stripe)
        if self.own_classes is not None:
            self.own_classes.keep(weight_sbuf[:, :, 0 : stripe.size])
        return weight_sbuf
