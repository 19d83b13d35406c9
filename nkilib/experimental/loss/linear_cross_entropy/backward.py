"""The backward: a block of the gradient of the logits stands in SBUF, and what it is multiplied with streams by.

For a block of classes and one of positions:

1. the logits, tile by tile, the gradient of each, and its transpose by Tensor;
2. a stripe of features after the other, dX = G W over the classes and dW = G^T X over the positions, in turns, while
   W^T of the next block is loaded.

The cores share the classes, and at the end the float32 sums of dX. Of each stripe of the last block they do so while
the next stripe is computed. The first block stores its dX, all others add theirs to it; so the first one stands before
the loop of the device. A program without room for that clears dX first, and has the loop alone (:mod:`.class_cover`).
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.checks import require
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan, BackwardSizes
from nkilib.experimental.loss.linear_cross_entropy.backward_streams import BackwardStreams
from nkilib.experimental.loss.linear_cross_entropy.bias_gradient import BiasGradient
from nkilib.experimental.loss.linear_cross_entropy.blocks import (
    Block,
    BlockPlan,
    Span,
    Step,
    balanced_spans,
    cut,
    plan_blocks,
    shares_of_cores,
)
from nkilib.experimental.loss.linear_cross_entropy.class_cover import ClassCover, OwnClasses, planned_cover
from nkilib.experimental.loss.linear_cross_entropy.gradient_block import GradientBlock
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import GradientColumns
from nkilib.experimental.loss.linear_cross_entropy.gradient_tile import TURNS, GradientTiles, LastProduct, TilePlace
from nkilib.experimental.loss.linear_cross_entropy.gradients import Gradients
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.kept_logits import KeptLogits
from nkilib.experimental.loss.linear_cross_entropy.logits import CLASSES_OF_TILE, LogitTiles
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.products import InputGradient, InputSum
from nkilib.experimental.loss.linear_cross_entropy.rings import Ring
from nkilib.experimental.loss.linear_cross_entropy.weight_gradient import WeightGradient, WeightGroup
from nkilib.nki import nisa, nl

# Banks of PSUM. The first logits of a block take those that dX leaves first.
_INPUT_BANKS = (6, 7)
_LOGIT_BANKS = (6, 7, 0, 1, 2)
_TRANSPOSE_BANKS = (3, 4, 5)
_WEIGHT_BANKS = (0, 1, 2, 3, 4, 5)
# A tile is transposed when so many more have been made: then it is there, whatever options it takes. Without a cap one
# is nearly enough, and for a block of few tiles better: the last ones are transposed while dX waits for them.
_TRANSPOSED_LATER, _FEW_TRANSPOSED_LATER, _FEW_TILES = 2, 1, 8
# Of kept logits, which leave Tensor idle, it is multiplied when so many more have been made.
_KEPT_MULTIPLIED_LATER = 3
# Tiles of dX of the first stripe before the last tiles are transposed.
_TILES_BEFORE_TRANSPOSE = 2
# Copies of a block in a program with a loop: of the loop, and behind it.
_FEWEST_BODIES = 2
# Units of a stripe after which the other core, too, has finished the stripe before.
_UNITS_UNTIL_SUMMED = 1


def backward_of_core(
    launch: LinearLaunch, options: Options, tiling: LinearTiling, upstream: PositionUpstream, gradients: Gradients
) -> None:
    """Write the gradients, of which this core has the classes that fall to it.

    Raises:
        AssertionError: before anything is written, if the blocks of the tiling do not fit SBUF.
    """
    sizes = BackwardSizes.of_launch(launch, options, upstream, gradients.adds_to_weight)
    plan = BackwardPlan.of(sizes, tiling.position_block, tiling.class_block)
    require_fitting_plan(launch.function, tiling, plan)
    write_gradients(launch, options, plan, upstream, gradients)


def require_fitting_plan(function: str, tiling: LinearTiling, plan: BackwardPlan) -> None:
    """Refuse blocks that do not fit SBUF.

    Raises:
        AssertionError: with function, requirement, value and remedy.
    """
    require(
        plan.fits,
        f"{function}: position_block {tiling.position_block} and class_block {tiling.class_block} must fit a "
        f"partition of SBUF, {nl.tile_size.sbuf_fmax_bytes} bytes, and take {plan.sbuf_bytes}; pass None for both, or "
        f"smaller ones",
    )


def write_gradients(
    launch: LinearLaunch,
    options: Options,
    plan: BackwardPlan,
    upstream: PositionUpstream,
    gradients: Gradients,
    kept: KeptLogits | None = None,
) -> None:
    """Write the gradients by a plan that fits.

    ``kept`` are the logits of the core's classes, where the launch has them; they are computed otherwise.
    """
    cores, core = nl.num_programs(), nl.program_id(0)
    shares = shares_of_cores(launch.vocab_size, cores)
    shares = [share for share in shares if share.size > 0]
    partials_hbm = _partials(launch, gradients, len(shares))
    if core >= len(shares):
        return
    cover = planned_cover(plan, shares, core, launch.num_positions)
    backward = _Backward.make(launch, options, upstream, plan, gradients, partials_hbm, core, kept, cover)
    if cover is None:
        backward.run(shares)
    else:
        backward.run_cover(cover)


def _partials(launch: LinearLaunch, gradients: Gradients, cores: int) -> list[nl.NkiTensor]:
    """Sums of dX, float32, of each core that has classes."""
    shape = tuple(launch.input_hbm.shape)
    count = 0 if gradients.input_hbm is None else cores
    return [
        nl.ndarray(shape, dtype=nl.float32, buffer=nl.shared_hbm, name=f"partial_grad_input_{core}_hbm")
        for core in range(count)
    ]


@dataclass(frozen=True)
class _Round:
    """A block of classes and one of positions, and what comes after.

    Attributes:
        classes, positions: the blocks.
        next_classes: whose W^T is to be loaded meanwhile; None if it is there, or nothing comes.
        next_positions: whose X^T is to be loaded; None if nothing comes.
        is_first_of_core, is_last_of_core: of the blocks of classes.
        is_first, is_last: of the blocks of positions.
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
        """Of positions."""
        return div_ceil(self.positions.size, PARTITIONS)

    def rows(self, tile: int) -> int:
        """Positions of a tile."""
        return min(PARTITIONS, self.positions.size - tile * PARTITIONS)


@dataclass(frozen=True)
class _Unit:
    """Some tiles of dX, and a piece of X for dW.

    Attributes:
        number: within its stripe.
        tiles: of positions, whose dX is computed.
        piece: the tiles of positions of its piece.
        group: of tiles of dW.
        loads: whether the piece has to be loaded.
    """

    number: int
    tiles: range
    piece: range
    group: int
    loads: bool


@dataclass(frozen=True)
class _Backward:
    """What all blocks have in common.

    Attributes:
        launch, plan: of the kernel.
        core: of this launch.
        positions: the blocks of positions.
        streams: buffers.
        logits: that computes them, where they are not kept.
        tiles: that make the gradient of the logits.
        block: where it stands.
        targets_sbuf: counted from the first class of the block, float32 [128, tiles].
        transpose_banks: of PSUM, for transposes beside the logits.
        input_banks: for dX, and for transposes beside dW.
        input_gradient, input_sum, weight_gradient, bias_gradient: None for those that are not wanted.
        own_classes: which of a block are the core's own, for dX; None for all.
    """

    launch: LinearLaunch
    plan: BackwardPlan
    core: int
    positions: list[Span]
    streams: BackwardStreams
    logits: LogitTiles
    tiles: GradientTiles
    block: GradientBlock
    targets_sbuf: nl.NkiTensor
    transpose_banks: Ring
    input_banks: Ring
    input_gradient: InputGradient | None
    input_sum: InputSum | None
    weight_gradient: WeightGradient | None
    bias_gradient: BiasGradient | None
    own_classes: OwnClasses | None

    @classmethod
    def make(
        cls,
        launch: LinearLaunch,
        options: Options,
        upstream: PositionUpstream,
        plan: BackwardPlan,
        gradients: Gradients,
        partials_hbm: list[nl.NkiTensor],
        core: int,
        kept: KeptLogits | None,
        cover: ClassCover | None,
    ) -> _Backward:
        columns = GradientColumns.make(launch, options, upstream)
        banks_psum = [
            nl.ndarray((PARTITIONS, CLASSES_OF_TILE), dtype=nl.float32, buffer=nl.psum)
            for _ in range(nl.tile_size.psum_num_banks)
        ]
        positions = balanced_spans(Span(0, launch.num_positions), plan.position_tiles * PARTITIONS)
        input_banks = Ring([banks_psum[bank] for bank in _INPUT_BANKS])
        input_gradient = input_sum = weight_gradient = bias_gradient = None
        if gradients.input_hbm is not None:
            results = Ring.of_sbuf(plan.buffers.input_results, (PARTITIONS, plan.stripe), nl.float32)
            input_gradient = InputGradient(partials_hbm[core], input_banks, results, columns.power)
            input_sum = InputSum(gradients.input_hbm, partials_hbm, core)
        if gradients.weight_hbm is not None:
            banks = [banks_psum[bank] for bank in _WEIGHT_BANKS]
            weight_gradient = WeightGradient.make(
                launch, plan, gradients.weight_hbm, gradients.weight_sum_hbm, banks, columns.power
            )
        if gradients.bias_hbm is not None:
            bias_gradient = BiasGradient.make(plan, gradients.bias_hbm, columns.power)
        return cls(
            launch,
            plan,
            core,
            positions,
            BackwardStreams.make(launch, options, plan, kept),
            _logit_tiles(launch, options, plan, [banks_psum[bank] for bank in _LOGIT_BANKS]),
            GradientTiles.make(
                columns,
                options.softcap,
                masks=plan.keeps_logits and launch.bias_hbm is not None,
                block=plan.class_tiles * PARTITIONS,
                classes=plan.classes_of_tile,
            ),
            GradientBlock.make(plan, launch.dtype, input_gradient is not None or bias_gradient is not None),
            nl.ndarray(columns.target_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf),
            Ring([banks_psum[bank] for bank in _TRANSPOSE_BANKS]),
            input_banks,
            input_gradient,
            input_sum,
            weight_gradient,
            bias_gradient,
            None if cover is None or cover.is_exact or input_gradient is None else OwnClasses.make(cover),
        )

    def run(self, shares: list[Span]) -> None:
        """Go through all blocks of the core; ``shares`` are the classes of each."""
        share = shares[self.core]
        lead, blocks = planned_blocks(self.plan, shares, self.core, self.launch.num_positions)
        self._count_targets_from(share.first)
        leading = Block(share.first, lead)
        first = leading if lead > 0 else blocks.opening
        if first is not None:
            self.streams.load_opening(first, self.positions[0])

        def body(step: Step) -> None:
            self._step(step, share)

        if lead > 0:
            body(Step(leading, 0, lead, blocks.opening))
        blocks.run(body)

    def run_cover(self, cover: ClassCover) -> None:
        """Go through all blocks of the core in a loop."""
        self._count_targets_from(cover.first)
        if self.input_gradient is not None:
            self.input_gradient.clear()
        self.streams.load_first_inputs(self.positions[0])

        def body(step: Step) -> None:
            if self.own_classes is not None:
                self.own_classes.find()
            self._step(step, cover.own)
            if self.own_classes is not None:
                self.own_classes.step(cover.size)

        cover.run(body)
        if self.input_sum is not None:
            for positions in self.positions:
                for stripe in self.streams.stripes_of_features:
                    self.input_sum.meet(positions, stripe)
                    self.input_sum.add(positions, stripe, 0, 1)

    def _count_targets_from(self, first: int) -> None:
        nisa.tensor_scalar(
            dst=self.targets_sbuf, data=self.tiles.columns.target_sbuf, op0=nl.subtract, operand0=float(first)
        )

    def _step(self, step: Step, share: Span) -> None:
        """A block of classes and all positions; ``share`` are all classes of the core."""
        classes = step.block
        is_known = isinstance(classes.first, int)
        is_first_of_core = is_known and classes.first == share.first
        is_last_of_core = is_known and classes.first + classes.size == share.end
        late = classes.part(step.loaded, classes.size - step.loaded)
        self.streams.load_late(late, step.loaded, self.positions[0])
        for number, positions in enumerate(self.positions):
            is_last = number + 1 == len(self.positions)
            next_positions = self.positions[0 if is_last else number + 1]
            self._round(
                _Round(
                    classes,
                    positions,
                    step.following if is_last else None,
                    None if is_last and is_last_of_core else next_positions,
                    is_first_of_core,
                    is_last_of_core,
                    number == 0,
                    is_last,
                )
            )
        nisa.tensor_scalar(dst=self.targets_sbuf, data=self.targets_sbuf, op0=nl.subtract, operand0=float(classes.size))

    def _round(self, round_: _Round) -> None:
        for ring in (self.transpose_banks, self.input_banks, self.streams.pieces, self.streams.stripes):
            ring.restart()
        for gradient in (self.input_gradient, self.weight_gradient, self.bias_gradient):
            if gradient is not None:
                gradient.restart()
        self._multiply(round_, self._make_gradient(round_))

    def _transposed_later(self, round_: _Round) -> int:
        has_few = round_.tiles <= _FEW_TILES and self.tiles.softcap is None and not self.plan.keeps_logits
        return _FEW_TRANSPOSED_LATER if has_few else _TRANSPOSED_LATER

    def _make_gradient(self, round_: _Round) -> nl.NkiTensor | None:
        """The block of the gradient; the first stripe of W where it is loaded already.

        Of computed scores the last tiles are not transposed yet. Kept ones leave Tensor idle: dX of the first stripe is
        computed meanwhile, some tiles later.
        """
        of_tiles = cut(round_.classes.size, self.plan.classes_of_tile)
        inputs = self.streams.inputs
        inputs.restart()
        loaded = [inputs.next_tile()]
        if self.plan.buffers.takes_turns:
            loaded += self.streams.load_second_inputs(round_.positions)
        else:
            loaded += [inputs.next_tile() for _ in range(1, self.streams.first_inputs(round_.positions))]
        first_column = round_.positions.first // PARTITIONS
        stripe = self.streams.stripes_of_features[0]
        weight_sbuf = self._load_stripe(round_, stripe) if self.plan.keeps_logits else None
        last: LastProduct | None = None
        for tile in range(round_.tiles):
            input_sbuf = loaded.pop(0)
            places = [TilePlace(first_column + tile, round_.rows(tile), span) for span in of_tiles]
            # Scalar loads a table for the tangents and one for the exponentials: once for all tiles that fit the rings.
            at_a_time = 1 if self.tiles.softcap is None else TURNS - 1
            for start in range(0, len(places), at_a_time):
                numbered = list(enumerate(places[start : start + at_a_time], tile * len(places) + start))
                scores = [self._scores(number, input_sbuf, place) for number, place in numbered]
                for (number, place), scores_of_tile in zip(numbered, scores, strict=True):
                    made = self._make_tile(tile, number, scores_of_tile, place)
                    if last is not None:
                        last.issue(self.plan.keeps_logits)
                    last = made
            ahead = tile + len(inputs.tiles)
            if ahead < round_.tiles:
                loaded.append(self.streams.load_input(round_.classes, 0, round_.positions, ahead))
            self._transpose_later(round_, tile - self._transposed_later(round_), stripe, weight_sbuf)
        if last is not None:
            last.issue(self.plan.keeps_logits)
        if self.plan.keeps_logits:
            for tile in range(round_.tiles, round_.tiles + _KEPT_MULTIPLIED_LATER):
                self._transpose_later(round_, tile - self._transposed_later(round_), stripe, weight_sbuf)
            self._add_bias(round_)
        return weight_sbuf

    def _transpose_later(self, round_: _Round, tile: int, stripe: Span, weight_sbuf: nl.NkiTensor | None) -> None:
        """Transpose a tile, if there is one of that number, and multiply an earlier one with a stripe of W."""
        if 0 <= tile < round_.tiles:
            self._transpose(round_, tile, self.transpose_banks)
        earlier = tile - (_KEPT_MULTIPLIED_LATER - _TRANSPOSED_LATER)
        if self.plan.keeps_logits and 0 <= earlier < round_.tiles:
            self._add_input(round_, stripe, earlier, weight_sbuf)

    def _add_bias(self, round_: _Round) -> None:
        """db of the block, all of which is transposed."""
        if self.bias_gradient is not None:
            positions = round_.positions.size
            self.bias_gradient.add(self.block, round_.classes, positions, round_.is_first, round_.is_last)

    def _make_tile(self, tile: int, number: int, scores: nl.NkiTensor, place: TilePlace) -> LastProduct | None:
        """A tile of the gradient from its scores."""
        columns, weights_sbuf = slice(place.classes.first, place.classes.end), self.streams.class_weight_sbuf
        return self.tiles.make_tile(
            number,
            self.block.plain_sbuf[0 : place.rows, tile, columns],
            scores,
            place,
            place.of(self.targets_sbuf),
            None if weights_sbuf is None else weights_sbuf[0 : place.rows, columns],
        )

    def _scores(self, number: int, input_sbuf: nl.NkiTensor, place: TilePlace) -> nl.NkiTensor:
        """A tile of scores: products of a tile of X^T, or what is kept."""
        columns = slice(place.classes.first, place.classes.end)
        streams = self.streams
        if streams.weight_sbuf is None:
            return input_sbuf[0 : place.rows, columns]
        bias_sbuf = None if streams.bias_sbuf is None else streams.bias_sbuf[:, columns]
        return self.logits.scores(
            number, input_sbuf[:, :, 0 : place.rows], streams.weight_sbuf[:, :, columns], bias_sbuf
        )

    def _transpose(self, round_: _Round, tile: int, banks: Ring) -> None:
        self.block.transpose(tile, round_.rows(tile), round_.classes.size, banks)

    def _multiply(self, round_: _Round, first_stripe_sbuf: nl.NkiTensor | None) -> None:
        """dX, dW and db of the block, but for what has been made beside its gradient."""
        stripes = self.streams.stripes_of_features
        units = self._units(round_)
        later = 0 if self.plan.keeps_logits else self._transposed_later(round_)
        pending = list(range(max(0, round_.tiles - later), round_.tiles))
        pieces = [(stripe, unit.piece) for stripe in stripes for unit in units if unit.loads]
        loaded: list[nl.NkiTensor] = []
        parts = self.streams.weight_parts(round_.next_classes, 0)
        # The last stripe loads none, so that all are there when it ends.
        steps = max(1, (len(stripes) - 1) * len(units))
        due = div_ceil(len(parts), steps)
        # In the memory of the last stripe of W only when that is done with.
        loads_next_at = len(units) - 1 if self.plan.buffers.takes_turns else 0
        weights = [first_stripe_sbuf if self.plan.keeps_logits else self._load_stripe(round_, stripes[0])]
        if round_.is_first_of_core and round_.is_first:
            self.streams.load_kept(round_.positions)
        while pieces and len(loaded) < self.plan.buffers.pieces - 1:
            stripe, piece = pieces.pop(0)
            loaded.append(self.streams.load_piece(round_.positions, piece, stripe))
        piece_sbuf: nl.NkiTensor | None = None
        earlier: list[nl.NkiTensor] = []
        for number, stripe in enumerate(stripes):
            groups = [] if self.weight_gradient is None else self.weight_gradient.groups(round_.classes, stripe)
            if number + 1 < len(stripes):
                weights.append(self._load_stripe(round_, stripes[number + 1]))
            for unit in units:
                if number > 0 or not self.plan.keeps_logits:
                    self._add_inputs(round_, stripe, unit, weights[number], pending)
                if number > 0:
                    self._sum_inputs(round_, stripes[number - 1], unit.number, len(units))
                if pieces and unit.loads:
                    of_stripe, piece = pieces.pop(0)
                    loaded.append(self.streams.load_piece(round_.positions, piece, of_stripe))
                for _ in range(min(due, len(parts))):
                    self.streams.load_weight(parts.pop(0))
                if number + 1 == len(stripes) and unit.number == loads_next_at:
                    self._load_next(round_)
                if unit.loads:
                    piece_sbuf = loaded.pop(0)
                if self.weight_gradient is not None and unit.group < len(groups) and piece_sbuf is not None:
                    group = groups[unit.group]
                    if unit.piece.start == 0:
                        earlier = self.weight_gradient.load_earlier(group, round_.is_first, round_.is_last)
                    self._add_weights(round_, group, unit, piece_sbuf)
                    if unit.piece.stop == round_.tiles:
                        self.weight_gradient.finish(group, earlier, round_.is_first, round_.is_last)
        if self.input_sum is not None and round_.is_last_of_core:
            self.input_sum.meet(round_.positions, stripes[-1])
            self.input_sum.add(round_.positions, stripes[-1], 0, 1)

    def _units(self, round_: _Round) -> list[_Unit]:
        """Of a stripe: as many as there are pieces of X and groups of tiles of dW."""
        groups = 1
        if self.weight_gradient is not None:
            groups = len(self.weight_gradient.groups(round_.classes, self.streams.stripes_of_features[0]))
        pieces = self.streams.pieces_of(round_.positions)
        count = groups * len(pieces)
        found = []
        for number in range(count):
            group, piece = divmod(number, len(pieces))
            tiles = range(number * round_.tiles // count, (number + 1) * round_.tiles // count)
            loads = self.weight_gradient is not None and (group == 0 or len(pieces) > 1)
            found.append(_Unit(number, tiles, pieces[piece], group, loads))
        return found

    def _add_inputs(
        self, round_: _Round, stripe: Span, unit: _Unit, weight_sbuf: nl.NkiTensor | None, pending: list[int]
    ) -> None:
        """dX of the tiles of a unit; the transposes that are pending are made when others have started."""
        for tile in unit.tiles:
            is_due = tile >= _TILES_BEFORE_TRANSPOSE or tile == round_.tiles - 1
            while pending and (is_due or tile >= pending[0]):
                self._transpose(round_, pending.pop(0), self.input_banks)
                if not pending:
                    self._add_bias(round_)
            self._add_input(round_, stripe, tile, weight_sbuf)

    def _add_input(self, round_: _Round, stripe: Span, tile: int, weight_sbuf: nl.NkiTensor | None) -> None:
        """dX of a tile."""
        if self.input_gradient is None or weight_sbuf is None:
            return
        first = round_.positions.first + tile * PARTITIONS
        place_hbm = self.input_gradient.partial_hbm[first : first + round_.rows(tile), stripe.first : stripe.end]
        classes, is_first = round_.classes.size, round_.is_first_of_core
        self.input_gradient.add_tile(self.block, weight_sbuf, place_hbm, tile, classes, is_first)

    def _add_weights(self, round_: _Round, group: WeightGroup, unit: _Unit, piece_sbuf: nl.NkiTensor) -> None:
        """A piece of X times the gradient, for a group of tiles of dW."""
        for product in group.products:
            for tile in unit.piece:
                rows = round_.rows(tile)
                gradient_sbuf = self.block.plain_sbuf[0:rows, tile, :]
                product.add(gradient_sbuf, piece_sbuf[0:rows, tile - unit.piece.start, :], is_first=tile == 0)

    def _sum_inputs(self, round_: _Round, stripe: Span, unit: int, units: int) -> None:
        """dX of a stripe and a block of positions, after the last block of classes, beside the next stripe."""
        if self.input_sum is None or not round_.is_last_of_core:
            return
        begins = min(_UNITS_UNTIL_SUMMED, units - 1)
        if unit == begins:
            self.input_sum.meet(round_.positions, stripe)
        if unit >= begins:
            self.input_sum.add(round_.positions, stripe, unit - begins, units - begins)

    def _load_stripe(self, round_: _Round, stripe: Span) -> nl.NkiTensor | None:
        """Of W, which dX alone needs."""
        if self.input_gradient is None:
            return None
        weight_sbuf = self.streams.load_stripe(round_.classes, stripe)
        if self.own_classes is not None:
            self.own_classes.keep(weight_sbuf[:, :, 0 : stripe.size])
        return weight_sbuf

    def _load_next(self, round_: _Round) -> None:
        """What the next round starts with, but for W^T, and what would take the memory of pieces of X."""
        self.streams.load_rows(round_.next_classes, 0)
        if round_.next_positions is not None:
            classes = round_.next_classes if round_.is_last else round_.classes
            self.streams.load_first_input(classes, round_.next_positions)
            if not self.plan.buffers.takes_turns:
                self.streams.load_second_inputs(round_.next_positions)


def planned_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> tuple[int, BlockPlan]:
    """How many classes stand before the loop of a core, and its blocks after them.

    The first block stores its dX, which takes less time than to add it, and so it is the one to be short: what the last
    block of the loop loads for the one behind it is then a whole block. Without a loop it is the first of all blocks.
    """
    most = plan.class_tiles * PARTITIONS
    allowed = plan.blocks_of_program(num_positions)
    unrolled = plan_blocks(shares, core, most, max(_FEWEST_BODIES, int(allowed)))
    if unrolled.trips == 0:
        return 0, unrolled
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    each = div_ceil(tiles, div_ceil(tiles, plan.class_tiles))
    lead = (tiles - 1) % each + 1
    if lead <= each // 2:
        # Too short for its transfers: the block behind the loop is shorter instead.
        lead = div_ceil(lead + each, 2)
    # A long program has room for the loop and a whole block behind it, and for what is left of a block before it.
    lead = min(lead, max(1, int((allowed - _FEWEST_BODIES) * each)))
    rests = [Span(share.first + lead * PARTITIONS, share.size - lead * PARTITIONS) for share in shares]
    bodies = max(_FEWEST_BODIES, int(allowed - lead / each))
    return lead * PARTITIONS, plan_blocks(rests, core, each * PARTITIONS, bodies)


def _logit_tiles(
    launch: LinearLaunch, options: Options, plan: BackwardPlan, banks_psum: list[nl.NkiTensor]
) -> LogitTiles:
    """The tiles of logits, in banks that others take at other times."""

    def tiles_sbuf(is_needed: bool) -> list[nl.NkiTensor]:
        turns = TURNS if is_needed and not plan.keeps_logits else 0
        return Ring.of_sbuf(turns, (PARTITIONS, plan.classes_of_tile), nl.float32).tiles

    return LogitTiles(
        launch.num_features,
        options.softcap,
        banks_psum,
        tiles_sbuf(launch.bias_hbm is not None),
        tiles_sbuf(options.softcap is not None),
    )
