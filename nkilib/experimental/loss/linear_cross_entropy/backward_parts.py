"""What all blocks of the backward have in common: buffers, banks, and what is made with them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.upstream import PositionUpstream
from nkilib.experimental.loss.linear.blocks import Span, balanced_spans
from nkilib.experimental.loss.linear.gradients import Gradients
from nkilib.experimental.loss.linear.kept_logits import KeptLogits
from nkilib.experimental.loss.linear.logits import CLASSES_OF_TILE, LogitTiles
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear.rings import Ring
from nkilib.experimental.loss.linear_cross_entropy.backward_plan import BackwardPlan, weight_tiles
from nkilib.experimental.loss.linear_cross_entropy.backward_round import Round
from nkilib.experimental.loss.linear_cross_entropy.backward_streams import BackwardStreams
from nkilib.experimental.loss.linear_cross_entropy.bias_gradient import BiasGradient
from nkilib.experimental.loss.linear_cross_entropy.class_cover import ClassCover, OwnClasses
from nkilib.experimental.loss.linear_cross_entropy.gradient_block import GradientBlock
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import GradientColumns
from nkilib.experimental.loss.linear_cross_entropy.gradient_tile import TURNS, GradientTiles
from nkilib.experimental.loss.linear_cross_entropy.id_gradient import IdGradient
from nkilib.experimental.loss.linear_cross_entropy.options import LinearLaunch
from nkilib.experimental.loss.linear_cross_entropy.products import InputGradient, InputSum
from nkilib.experimental.loss.linear_cross_entropy.weight_gradient import WeightGradient
from nkilib.nki import nl

# Banks of PSUM. The first logits of a block take those that dX leaves first.
_INPUT_BANKS = (6, 7)
_LOGIT_BANKS = (6, 7, 0, 1, 2)
_TRANSPOSE_BANKS = (3, 4, 5)
_WEIGHT_BANKS = (0, 1, 2, 3, 4, 5)
# A tile is transposed when so many more have been made: then it is there, whatever options it takes. Without a cap one
# is nearly enough, and for a block of few tiles better: the last ones are transposed while dX waits for them.
TRANSPOSED_LATER, _FEW_TRANSPOSED_LATER, _FEW_TILES = 2, 1, 8


# The share of a block whose places of several target ids are found while the block before is multiplied with W and X,
# which takes Tensor two thirds of its time. The rest is found while logits are.
_SEARCHED_AHEAD = 0.7


@dataclass(frozen=True)
class BackwardParts:
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
    ) -> BackwardParts:
        """Nothing is loaded yet."""
        ids = IdGradient.make(launch, options, upstream) if launch.ids > 1 else None
        columns = GradientColumns.make(launch, options, upstream) if ids is None else ids.columns
        banks_psum = _banks()
        positions = balanced_spans(Span(0, launch.num_positions), plan.position_tiles * PARTITIONS)
        input_banks = Ring([banks_psum[bank] for bank in _INPUT_BANKS])
        input_gradient = input_sum = weight_gradient = bias_gradient = None
        if gradients.input_hbm is not None:
            results = Ring.of_sbuf(plan.buffers.input_results, (PARTITIONS, plan.stripe), nl.float32)
            input_gradient = InputGradient(partials_hbm[core], input_banks, results, columns.power)
            input_sum = InputSum(gradients.input_hbm, partials_hbm, core)
        if gradients.weight_hbm is not None:
            banks = [banks_psum[bank] for bank in _WEIGHT_BANKS[: weight_tiles()]]
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
            BackwardStreams.make(launch, options, plan, kept, columns.slope_sbuf is not None),
            _logit_tiles(launch, options, plan, [banks_psum[bank] for bank in _LOGIT_BANKS]),
            GradientTiles.make(
                columns,
                options,
                is_kept=plan.keeps_logits,
                masks=plan.keeps_logits and launch.bias_hbm is not None,
                block=plan.class_tiles * PARTITIONS,
                classes=plan.classes_of_tile,
                ids=None if ids is None else ids.tiles(plan.position_tiles, plan.class_block, plan.classes_of_tile),
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

    def restart(self) -> None:
        """A round begins."""
        for ring in (self.transpose_banks, self.input_banks, self.streams.pieces, self.streams.stripes):
            ring.restart()
        for gradient in (self.input_gradient, self.weight_gradient):
            if gradient is not None:
                gradient.restart()

    def search_first(self) -> None:
        """Find places of several target ids in the first block: those that no round before it has found."""
        self._search(self.positions[0], 0, 0.0, _SEARCHED_AHEAD)

    def search_ahead(self, round_: Round, step: int, steps: int) -> None:
        """Find some of those in the block of the next round, in step ``step`` of ``steps``."""
        if round_.next_positions is not None:
            skipped = round_.classes.size if round_.is_last else 0
            done, found = step / steps, (step + 1) / steps
            self._search(round_.next_positions, skipped, _SEARCHED_AHEAD * done, _SEARCHED_AHEAD * found)

    def search_rest(self, round_: Round, start: int, end: int) -> None:
        """Find those of the round that are left, while tiles ``start`` to ``end`` of positions are made."""
        done, found = (_SEARCHED_AHEAD + (1.0 - _SEARCHED_AHEAD) * tile / round_.tiles for tile in (start, end))
        self._search(round_.positions, 0, done, found)

    def _search(self, positions: Span, skipped: int, done: float, found: float) -> None:
        """From one share of the tiles of a block to another one."""
        ids = self.tiles.ids
        if ids is None:
            return
        first, tiles = positions.first // PARTITIONS, div_ceil(positions.size, PARTITIONS)
        count = tiles * ids.tiles_of_classes
        for number in range(_whole(done * count), _whole(found * count)):
            column, tile = first + number // ids.tiles_of_classes, number % ids.tiles_of_classes
            ids.search(column, tile, self.targets_sbuf[:, column], skipped)

    def transposed_later(self, round_: Round) -> int:
        """How many tiles are made before one is transposed."""
        has_few = round_.tiles <= _FEW_TILES and self.tiles.softcap is None and not self.plan.keeps_logits
        return _FEW_TRANSPOSED_LATER if has_few else TRANSPOSED_LATER

    def transpose(self, round_: Round, tile: int, banks: Ring) -> None:
        """A tile of positions of the block."""
        self.block.transpose(tile, round_.rows(tile), round_.classes.size, banks)

    def add_bias(self, round_: Round) -> None:
        """db of the block, all of which is transposed."""
        if self.bias_gradient is not None:
            positions = round_.positions.size
            self.bias_gradient.add(self.block, round_.classes, positions, round_.is_first, round_.is_last)

    def add_input(self, round_: Round, stripe: Span, tile: int, weight_sbuf: nl.NkiTensor | None) -> None:
        """dX of a tile."""
        if self.input_gradient is None or weight_sbuf is None:
            return
        first = round_.positions.first + tile * PARTITIONS
        place_hbm = self.input_gradient.partial_hbm[first : first + round_.rows(tile), stripe.first : stripe.end]
        classes, is_first = round_.classes.size, round_.is_first_of_core
        self.input_gradient.add_tile(self.block, weight_sbuf, place_hbm, tile, classes, is_first)

    def load_stripe(self, round_: Round, stripe: Span) -> nl.NkiTensor | None:
        """Of W, which dX alone needs."""
        if self.input_gradient is None:
            return None
        weight_sbuf = self.streams.load_stripe(round_.classes, stripe)
        if self.own_classes is not None:
            self.own_classes.keep(weight_sbuf[:, :, 0 : stripe.size])
        return weight_sbuf


def _whole(count: float) -> int:
    """The nearest number above, but for the rounding of a share."""
    return ceil(count - 1e-6)


def _banks() -> list[nl.NkiTensor]:
    """All of PSUM."""
    shape = (PARTITIONS, CLASSES_OF_TILE)
    return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.psum) for _ in range(nl.tile_size.psum_num_banks)]


def _logit_tiles(
    launch: LinearLaunch, options: Options, plan: BackwardPlan, banks_psum: list[nl.NkiTensor]
) -> LogitTiles:
    """The tiles of logits, in banks that others take at other times."""

    def tiles_sbuf(is_needed: bool, turns: int) -> list[nl.NkiTensor]:
        turns = turns if is_needed and not plan.keeps_logits else 0
        return Ring.of_sbuf(turns, (PARTITIONS, plan.classes_of_tile), nl.float32).tiles

    return LogitTiles(
        launch.num_features,
        options.softcap,
        banks_psum,
        tiles_sbuf(launch.bias_hbm is not None, TURNS),
        tiles_sbuf(options.softcap is not None, plan.buffers.tangents),
    )
