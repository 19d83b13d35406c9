# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pairs of tiles of scores: products of both models, their maxima, exponentials, and the sums of a divergence.

D features. *Scores* are the logits before scaling, or tanh(logit / cap) under a softcap; z is the logit after cap and
temperature, a multiple of the score. A *pair* is one tile of the student and one of the teacher, for the same positions
and classes; a *group* is the pairs that are processed together; a *pass* is one instruction of an engine over a tile. A
mixture is the distribution that a Jensen-Shannon divergence compares both models with.

Vector reads a bank of PSUM once: it copies the product into SBUF, adds the bias and computes the maximum
(:class:`ModelTiles`). Then the bank is free for Tensor. Under a softcap the maximum of the scores is tanh of the
maximum of the logits. If a bias may mask classes, another pass replaces the scores of these classes, and computes the
maximum too.

Vector has the most work, four passes over a pair of tiles for a Kullback-Leibler divergence; so Scalar computes
exponentials and tangents, and GpSimd the differences of scores (:class:`PairTiles`). Vector's sums over a pair need
the results of both engines, so they are issued only after the maxima of the next pair: :class:`WaitingPasses`.

A group has one pair without a softcap, and several pairs with one, because Scalar loads a table whenever it changes
from tanh to exp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.arithmetic import multiply_on_gpsimd
from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.sbuf import Ring
from nkilib.core.rows.scale import RowScale
from nkilib.core.rows.statistics import Place, Statistics
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents
from nkilib.experimental.loss.linear.class_schedule import ClassTiles
from nkilib.experimental.loss.linear.logit_passes import EntropyPass, WaitingPasses, multiply_by_column
from nkilib.experimental.loss.linear.logits import LogitTiles
from nkilib.experimental.loss.linear_distillation.forward.pair_statistics import GapPass, PairStatistics
from nkilib.experimental.loss.linear_distillation.forward.visits import PairScoreGroup
from nkilib.experimental.loss.linear_distillation.host.pair_sizes import ModelNeeds, PairNeeds
from nkilib.experimental.loss.linear_distillation.launch import ModelOperands, PairLaunch
from nkilib.nki import nisa, nl

_GPSIMD = nisa.engine.gpsimd

# Banks of PSUM that tiles use round-robin; one is left to transposes of positions.
_BANKS = 7
# X^T of some tiles of positions, [128, ceil(D / 128), 128] each, of student and teacher.
PairInputs = tuple[Sequence[nl.NkiTensor], Sequence[nl.NkiTensor]]
# A block of classes of student and teacher.
PairClasses = tuple[ClassTiles, ClassTiles]


@dataclass(frozen=True)
class ModelGroup:
    """A group of tiles of one model, float32.

    Attributes:
        scores_sbuf: the scores, [128, tiles, classes].
        wide_sbuf: the same tiles with all classes that they have room for.
        exponentials_sbuf: the memory for the exponentials, [128, tiles, classes]; scratch before they are computed.
        maxima_sbuf: [128, tiles]: without a bias minus the maxima of the products, with a bias the maxima of the
            scores. Without bias and softcap it is a column of the statistics.
    """

    scores_sbuf: nl.NkiTensor
    wide_sbuf: nl.NkiTensor
    exponentials_sbuf: nl.NkiTensor
    maxima_sbuf: nl.NkiTensor

    @property
    def tiles(self) -> int:
        """The number of tiles of positions."""
        return int(self.scores_sbuf.shape[1])


@dataclass(frozen=True)
class ModelTiles:
    """The buffers in which the scores of one model are computed, one group of tiles after another.

    Attributes:
        model: the operands.
        lowest: the score of a masked class.
        products: the products X W^T, in banks of PSUM that both models share.
        scores, exponentials: ring buffers of the tiles of groups, float32 [128, tiles, classes].
        maxima: a ring buffer of the maxima of groups, float32 [128, tiles].
        negative_sbuf: the constant -1, which negates maxima, float32 [128, 1]; None without a bias.
        scale_sbuf: the factor that turns the model's scores into z, float32 [128, 1]; None if the factor is 1, or if
            each position has its own factor.
        lowest_sbuf: the number to which a bias of -inf is raised, float32 [128, 1]: ``lowest``, or twice that under a
            softcap (see :meth:`_mask`); None without a bias.
    """

    model: ModelOperands
    lowest: float
    products: LogitTiles
    scores: Ring
    exponentials: Ring
    maxima: Ring
    negative_sbuf: nl.NkiTensor | None
    scale_sbuf: nl.NkiTensor | None
    lowest_sbuf: nl.NkiTensor | None

    @classmethod
    def make(
        cls,
        model: ModelOperands,
        needs: ModelNeeds,
        lowest: float,
        banks: list[nl.NkiTensor],
        scores: Ring,
        *,
        has_constant: bool,
    ) -> ModelTiles:
        """Allocate the buffers.

        Args:
            model, needs: the operands, and the options that need memory.
            lowest: the score of a masked class.
            banks: the banks of PSUM.
            scores: the ring buffer of the scores of groups, [128, tiles, classes].
            has_constant: whether the scale is the same for all positions.
        """
        slots, group = len(scores.tiles), tuple(scores.tiles[0].shape)

        def number(value: float, is_needed: bool) -> nl.NkiTensor | None:
            if not is_needed:
                return None
            number_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=number_sbuf, value=value)
            return number_sbuf

        return cls(
            model,
            lowest,
            LogitTiles(model.num_features, None, banks, [], []),
            scores,
            Ring.of_sbuf(slots, group, nl.float32),
            Ring.of_sbuf(slots, group[:2], nl.float32),
            number(-1.0, needs.bias),
            number(model.scale, needs.scale and has_constant),
            # A pass adds ``lowest`` once more to a masked score under a softcap.
            number(2.0 * lowest if needs.softcap else lowest, needs.bias),
        )

    @property
    def has_bias(self) -> bool:
        """Whether a bias is added to the products."""
        return self.model.bias_hbm is not None

    def restart(self) -> None:
        """Begin a block of positions with the first slots of the ring buffers."""
        for ring in (self.scores, self.exponentials, self.maxima):
            ring.restart()

    def raise_bias(self, classes: ClassTiles) -> None:
        """Raise a bias of -inf of a block of classes to a finite number, so that differences of scores are not NaN."""
        bias_sbuf = classes.bias_sbuf
        if bias_sbuf is None or self.lowest_sbuf is None:
            return
        lowest_sbuf = self.lowest_sbuf.broadcast(1, bias_sbuf.shape[1])
        nisa.tensor_tensor(dst=bias_sbuf, data1=bias_sbuf, data2=lowest_sbuf, op=nl.maximum, engine=_GPSIMD)

    def begin(self, tiles: int, classes: int, column_sbuf: nl.NkiTensor) -> ModelGroup:
        """Return the buffers of the next group.

        Args:
            tiles, classes: the number of tiles of positions, and of classes.
            column_sbuf: the column of the statistics for the maxima of the group, [128, tiles].
        """
        wide_sbuf = self.scores.next_tile()[:, 0:tiles]
        is_plain = not self.has_bias and self.model.softcap is None
        return ModelGroup(
            wide_sbuf[:, :, 0:classes],
            wide_sbuf,
            self.exponentials.next_tile()[:, 0:tiles, 0:classes],
            column_sbuf if is_plain else self.maxima.next_tile()[:, 0:tiles],
        )

    def take_product(
        self, group: ModelGroup, place: int, product_psum: nl.NkiTensor, bias_sbuf: nl.NkiTensor | None
    ) -> None:
        """Compute the scores of tile ``place`` of a group from its product and bias, and their maximum.

        Under a softcap with a bias the maximum is computed later, because masked scores are replaced first
        (:meth:`_mask`).
        """
        scores_sbuf, maximum_sbuf = group.scores_sbuf[:, place], group.maxima_sbuf[:, place : place + 1]
        if bias_sbuf is None:
            nisa.tensor_scalar_reduce(
                dst=scores_sbuf,
                data=product_psum,
                op0=nl.multiply,
                operand0=1.0,
                reduce_op=nl.maximum,
                reduce_res=maximum_sbuf,
                reduce_res_negate=True,
            )
        elif self.model.softcap is None:
            nisa.scalar_tensor_tensor(
                dst=scores_sbuf,
                data=product_psum,
                op0=nl.multiply,
                operand0=1.0,
                op1=nl.add,
                operand1=bias_sbuf,
                reduce_op=nl.maximum,
                reduce_res=maximum_sbuf,
            )
        else:
            nisa.tensor_tensor(dst=scores_sbuf, data1=product_psum, data2=bias_sbuf, op=nl.add)

    def close(self, group: ModelGroup, column_sbuf: nl.NkiTensor) -> None:
        """Compute the tanh of a softcap, and store minus the maxima of the scores of a group in ``column_sbuf``."""
        cap = self.model.score_cap
        if cap is not None and not self.has_bias:
            for place in range(group.tiles):
                if place == group.tiles - 1:
                    # The maximum of the last tile is computed with its products.
                    hyperbolic_tangents(column_sbuf, group.maxima_sbuf, cap)
                hyperbolic_tangents(group.scores_sbuf[:, place], group.scores_sbuf[:, place], cap)
        elif cap is not None:
            for place in range(group.tiles):
                hyperbolic_tangents(group.exponentials_sbuf[:, place], group.scores_sbuf[:, place], cap)
            for place in range(group.tiles):
                self._mask(group, place)
        if self.negative_sbuf is not None:
            multiply_by_column(column_sbuf, group.maxima_sbuf, self.negative_sbuf)

    def take_bias(self, row: Statistics, tiles: slice, column: int) -> None:
        """Compute the addends of the exponents of a group: minus the maximum times the scale.

        Args:
            row: the statistics of the model.
            tiles: the tiles of positions of the group.
            column: the column of the statistics.
        """
        bias_sbuf, neg_max_sbuf = row.bias_sbuf[:, tiles, column], row.neg_max_sbuf[:, tiles, column]
        if isinstance(row.scale, RowScale):
            multiply_on_gpsimd(bias_sbuf, neg_max_sbuf, row.scale.rows_sbuf[:, tiles])
        elif self.scale_sbuf is not None:
            multiply_by_column(bias_sbuf, neg_max_sbuf, self.scale_sbuf)

    def _mask(self, group: ModelGroup, place: int) -> None:
        """Compute the scores min(x - lowest, tanh) under a softcap, where x is the product with bias, and their
        maximum.

        The score is the tanh, or ``lowest`` for a masked class, whose x is twice ``lowest``.
        """
        nisa.scalar_tensor_tensor(
            dst=group.scores_sbuf[:, place],
            data=group.scores_sbuf[:, place],
            op0=nl.subtract,
            operand0=self.lowest,
            op1=nl.minimum,
            operand1=group.exponentials_sbuf[:, place],
            reduce_op=nl.maximum,
            reduce_res=group.maxima_sbuf[:, place : place + 1],
        )


@dataclass(frozen=True)
class PairGroup:
    """A group of pairs whose maxima are computed.

    Attributes:
        start: the number of the first tile of positions.
        column: the column of the statistics.
        student, teacher: the tiles of each model.
        scores: the scores of both models if they are in one tensor; else None.
    """

    start: int
    column: int
    student: ModelGroup
    teacher: ModelGroup
    scores: PairScoreGroup | None

    @property
    def models(self) -> tuple[ModelGroup, ModelGroup]:
        """The tiles of student and teacher."""
        return self.student, self.teacher

    @property
    def tiles(self) -> slice:
        """The range of tiles of positions of the group."""
        return slice(self.start, self.start + self.student.tiles)

    @property
    def places(self) -> list[Place]:
        """One :class:`Place` in the statistics for each tile of positions of the group."""
        return [Place(tile, self.column) for tile in range(self.tiles.start, self.tiles.stop)]


def _pair_scores(needs: PairNeeds, tiles: int, classes: int) -> Ring:
    # In one tensor, so that kept scores of a position are contiguous.
    return Ring.of_sbuf(needs.slots, (PARTITIONS, 2, tiles, classes), nl.float32)


@dataclass(frozen=True)
class PairTiles:
    """The buffers in which groups of pairs are computed one after another.

    Attributes:
        launch: the launch of the kernel.
        group_tiles: the largest number of tiles of positions of a group.
        student, teacher: the tiles of each model.
        pair_scores: for a mixture, a ring buffer of the scores of both models, float32 [128, models, tiles, classes];
            else None.
        gaps: a ring buffer of the differences of scores of a group, float32 [128, tiles, classes]; None for a mixture.
        ratio_sbuf: the factor that converts the teacher's scores to the student's unit, float32 [128, 1]; None for 1.
        waiting: the passes of Vector to issue next.
        fresh: the passes of the last group, if they are held back for one more group because products take little
            time; else None.
    """

    launch: PairLaunch
    group_tiles: int
    student: ModelTiles
    teacher: ModelTiles
    pair_scores: Ring | None
    gaps: Ring | None
    ratio_sbuf: nl.NkiTensor | None
    waiting: WaitingPasses
    fresh: WaitingPasses | None

    @classmethod
    def make(cls, launch: PairLaunch, needs: PairNeeds, tiles: int, classes: int) -> PairTiles:
        """Allocate the buffers for blocks of at most ``tiles`` tiles of positions and ``classes`` classes."""
        group = (PARTITIONS, min(tiles, needs.group_tiles), classes)
        banks = [nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.psum) for _ in range(_BANKS)]
        pair_scores = _pair_scores(needs, *group[1:]) if needs.mixed else None
        student, teacher = (
            ModelTiles.make(
                model,
                of_model,
                launch.lowest(model),
                banks,
                Ring.of_sbuf(needs.slots, group, nl.float32)
                if pair_scores is None
                else Ring([tile_sbuf[:, which] for tile_sbuf in pair_scores.tiles]),
                has_constant=not needs.temperatures,
            )
            for which, (model, of_model) in enumerate(zip(launch.models, needs.models, strict=True))
        )
        ratio_sbuf = None
        if needs.ratio and not needs.mixed:
            ratio_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=ratio_sbuf, value=launch.ratio)
        gaps = None if needs.mixed else Ring.of_sbuf(needs.slots, group, nl.float32)
        fresh = WaitingPasses() if needs.short else None
        return cls(launch, group[1], student, teacher, pair_scores, gaps, ratio_sbuf, WaitingPasses(), fresh)

    @property
    def models(self) -> tuple[ModelTiles, ModelTiles]:
        """The tiles of student and teacher."""
        return self.student, self.teacher

    def restart(self) -> None:
        """Begin a block of positions with the first slots of the ring buffers."""
        for model in self.models:
            model.restart()
        if self.pair_scores is not None:
            self.pair_scores.restart()
        if self.gaps is not None:
            self.gaps.restart()

    def raise_biases(self, classes: PairClasses) -> None:
        """Raise biases of -inf of a block of classes to finite values; call this once after the biases are loaded."""
        for model, of_model in zip(self.models, classes, strict=True):
            model.raise_bias(of_model)

    def open(
        self,
        start: int,
        inputs: PairInputs,
        classes: PairClasses,
        statistics: PairStatistics,
        column: int,
        first: int,
    ) -> PairGroup:
        """Compute the scores of a group, and store their maxima in the statistics.

        Args:
            start: the number of the first tile of positions.
            inputs: X^T of each tile, [128, ceil(D / 128), 128], for each model.
            classes: the block of classes, for each model.
            statistics: the statistics of the positions.
            column: the column of the statistics that the block of classes uses.
            first: the number of the first pair, which selects the banks of PSUM round-robin.
        """
        tiles, size = len(inputs[0]), int(classes[0].weight_sbuf.shape[2])
        span = slice(start, start + tiles)
        columns = [row.neg_max_sbuf[:, span, column] for row in statistics.models]
        groups = [model.begin(tiles, size, of_model) for model, of_model in zip(self.models, columns, strict=True)]
        share = self.waiting.share_of(tiles)
        for place in range(tiles):
            if place > 0:
                self.waiting.take(share)
            for which, (model, group) in enumerate(zip(self.models, groups, strict=True)):
                tile_sbuf, of_model = inputs[which][place], classes[which]
                product_psum = model.products.product(2 * (first + place) + which, tile_sbuf, of_model.weight_sbuf)
                model.take_product(group, place, product_psum, of_model.bias_sbuf)
        for which, model in enumerate(self.models):
            model.close(groups[which], columns[which])
        for which, model in enumerate(self.models):
            model.take_bias(statistics.models[which], span, column)
        self.waiting.take_all()
        scores = None
        if self.pair_scores is not None:
            scores = PairScoreGroup(start, self.pair_scores.next_tile()[:, :, 0:tiles, 0:size])
        return PairGroup(start, column, groups[0], groups[1], scores)

    def take_sums(self, group: PairGroup, statistics: PairStatistics) -> None:
        """Compute all sums over the classes of a group; Vector's passes are added to the waiting ones."""
        gap_passes = self._gap_passes(group, statistics)
        places, (student, teacher) = group.places, group.models
        for number, place in enumerate(places):
            for model, row in zip((student, teacher), statistics.models, strict=True):
                row.take_sum(model.exponentials_sbuf[:, number], model.scores_sbuf[:, number], place)
        passes = self.waiting
        if self.fresh is not None:
            self.waiting.waiting.extend(self.fresh.waiting)
            self.fresh.waiting.clear()
            passes = self.fresh
        for number, place in enumerate(places):
            if gap_passes:
                passes.add(gap_passes[number])
            # The terms overwrite the exponentials, which nothing reads afterwards.
            exponentials_sbuf, scores_sbuf = student.exponentials_sbuf[:, number], student.scores_sbuf[:, number]
            row = statistics.student
            passes.add(
                EntropyPass(statistics.entropy, row, scores_sbuf, exponentials_sbuf, exponentials_sbuf, place, False)
            )

    def take_waiting(self) -> None:
        """Issue all waiting passes."""
        self.waiting.take_all()
        if self.fresh is not None:
            self.fresh.take_all()

    def _gap_passes(self, group: PairGroup, statistics: PairStatistics) -> list[GapPass]:
        """Compute the differences of the scores of a group, and return the passes that sum them; none for a mixture."""
        if self.gaps is None or statistics.gap is None:
            return []
        student, teacher = group.models
        neg_maxima = [row.neg_max_sbuf[:, group.tiles, group.column] for row in statistics.models]
        center_sbuf = nl.ndarray((PARTITIONS, student.tiles), dtype=nl.float32, buffer=nl.sbuf)
        self._subtract(center_sbuf, neg_maxima[0], neg_maxima[1], scales_first=False)
        gaps_sbuf = self.gaps.next_tile()[:, 0 : student.tiles, 0 : student.scores_sbuf.shape[2]]
        weights_sbuf = (student if self.launch.is_reverse else teacher).exponentials_sbuf
        passes: list[GapPass] = []
        for number, place in enumerate(group.places):
            tile_sbuf = gaps_sbuf[:, number]
            self._subtract(tile_sbuf, teacher.scores_sbuf[:, number], student.scores_sbuf[:, number], scales_first=True)
            of_tile_sbuf = center_sbuf[:, number : number + 1]
            passes.append(GapPass(statistics.gap, tile_sbuf, of_tile_sbuf, weights_sbuf[:, number], place))
        return passes

    def _subtract(
        self, dst_sbuf: nl.NkiTensor, first_sbuf: nl.NkiTensor, second_sbuf: nl.NkiTensor, *, scales_first: bool
    ) -> None:
        """Compute first - second in the student's unit.

        The teacher's tensor is the first if ``scales_first``, else the second; it is multiplied by the ratio.
        """
        if self.ratio_sbuf is not None:
            multiply_by_column(dst_sbuf, first_sbuf if scales_first else second_sbuf, self.ratio_sbuf)
            first_sbuf, second_sbuf = (dst_sbuf, second_sbuf) if scales_first else (first_sbuf, dst_sbuf)
        nisa.tensor_tensor(dst=dst_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.subtract, engine=_GPSIMD)
