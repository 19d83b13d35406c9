# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The tiles of logits in the forward of linear cross-entropy: maxima, exponentials, and the sums that the options need.

A *group* is some tiles of positions with one block of classes; its tiles are processed together. A *pass* is one
instruction of an engine over a tile. *Scores* are the logits x, or under a cap c the *tangents* tanh(x / c). z, the
logit after cap and temperature, is the *scale* times the score.

:class:`ScoreTiles` computes tiles in groups (:class:`ScoreGroup`), :class:`Ranking` prepares the search for the argmax.

Vector reads a bank of PSUM once: it copies the product into SBUF, adds the bias and takes the maximum. Then the bank is
free for Tensor, and Scalar and GpSimd read SBUF. Tiles are processed in groups: small steps between tiles are done once
for a group, and Scalar loads its tables for tanh and for exp once for all tiles of a group.

Scalar computes all exponentials of a group before it squares or sums any tile of it. Vector's passes for entropy and
argmax wait, and are issued between the maxima of the next group: :class:`WaitingPasses`. So no engine waits for another
one as long as each has less to do than Tensor.

The argmax compares z (:class:`Ranking`). A cap or a temperature may make different logits equal: in float32 the tangent
of everything above nine times the cap is 1, and multiplying by 1 / T may round two neighbours to one number. So z
itself is compared, unless the scale is a power of two, whose products are exact. A product with a positive number never
reverses an order, so the maximum of z is the scale times the maximum of the scores. Tangents give no such guarantee:
under a cap the maximum of z is searched for too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.arithmetic import multiply_on_gpsimd
from nkilib.core.hardware import PARTITIONS
from nkilib.core.rows.argmax import Argmax, Search
from nkilib.core.rows.moments import MeanMoment
from nkilib.core.rows.scale import RowScale
from nkilib.core.rows.statistics import Place, Statistics
from nkilib.core.rows.tiles import FLOAT32_LOWEST, clamp
from nkilib.experimental.loss.cross_entropy.launch import Options
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.linear.class_schedule import ClassTiles
from nkilib.experimental.loss.linear.logit_passes import EntropyPass, SearchPass, WaitingPasses, multiply_by_column
from nkilib.experimental.loss.linear.logits import LogitTiles
from nkilib.experimental.loss.linear_cross_entropy.launch import GROUPS, ForwardNeeds
from nkilib.experimental.loss.linear_cross_entropy.position_statistics import PositionStatistics
from nkilib.nki import nisa, nl

# Banks of PSUM that tiles use round-robin; one is left for transposes of positions.
_BANKS = 7


@dataclass(frozen=True)
class Ranking:
    """The search for the argmax of positions, group of tiles by group.

    It compares z = scale * score. If the scores have the same order as z, it compares the scores.

    Attributes:
        needs: the options of the forward.
        scale: the factor that turns scores into z.
        scale_sbuf: the same factor, float32 [128, 1]; None if the scores are compared as they are.
        products_sbuf: buffer slots for z of a group, float32 [128, tiles, classes]; empty if the scores are compared as
            they are.
    """

    needs: ForwardNeeds
    scale: float
    scale_sbuf: nl.NkiTensor | None
    products_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, needs: ForwardNeeds, scale: float, tiles: int, classes: int) -> Ranking:
        """Allocate memory for groups of at most ``tiles`` tiles of positions and ``classes`` classes."""
        scale_sbuf, products = None, []
        if needs.products:
            scale_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=scale_sbuf, value=scale)
            shape = (PARTITIONS, tiles, classes)
            products = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(GROUPS)]
        return cls(needs, scale, scale_sbuf, products)

    def search(
        self,
        argmax: Argmax,
        scores: list[nl.NkiTensor],
        neg_max_sbuf: nl.NkiTensor,
        place: Place,
        first_class_sbuf: nl.NkiTensor,
        slot: int,
    ) -> Search:
        """Return the search for the argmax in a group of tiles; its passes are not issued yet.

        Args:
            argmax: the argmax statistics of the positions.
            scores: the scores of each tile, float32 [128, classes].
            neg_max_sbuf: minus the maxima of the logits, [128, tiles].
            place: the column of the first tile in the statistics.
            first_class_sbuf: the class of the first column, float32 [128, 1].
            slot: the buffer slot of the group.
        """
        tiles = scores
        if self.scale_sbuf is not None:
            tiles = [
                self.products_sbuf[slot][:, number, 0 : tile_scores_sbuf.shape[1]]
                for number, tile_scores_sbuf in enumerate(scores)
            ]
            for score_sbuf, tile_sbuf in zip(scores, tiles, strict=True):
                multiply_by_column(tile_sbuf, score_sbuf, self.scale_sbuf)
        known_sbuf = None if self.needs.softcap else neg_max_sbuf
        factor = self.scale if self.needs.products else 1.0
        return argmax.search(tiles, place, first_class_sbuf, known_sbuf, factor, not self.needs.has_exact_maxima)


class _TilePlace(NamedTuple):
    """The number of a tile in its group, and the column of the tile in the statistics."""

    number: int
    place: Place


@dataclass(frozen=True)
class ScoreGroup:
    """Tiles of logits of several tiles of positions and one block of classes, side by side.

    Attributes:
        start: the number of the first tile of positions.
        logits_sbuf: the logits, float32 [128, tiles, classes]; it may have room for more classes.
        scores_sbuf: the scores, of the same shape.
        neg_max_sbuf: minus the maxima of the logits, float32 [128, tiles].
        classes: the number of classes.
    """

    start: int
    logits_sbuf: nl.NkiTensor
    scores_sbuf: nl.NkiTensor
    neg_max_sbuf: nl.NkiTensor
    classes: int

    @property
    def tiles(self) -> int:
        """The number of tiles."""
        return int(self.logits_sbuf.shape[1])

    def part(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of the group's classes in a tensor that has room for more classes."""
        return tile_sbuf[:, 0 : self.classes]

    def logits(self, number: int) -> nl.NkiTensor:
        """Return the logits of one tile, [128, classes]."""
        return self.logits_sbuf[:, number, 0 : self.classes]

    def scores(self, number: int) -> nl.NkiTensor:
        """Return the scores of one tile, [128, classes]."""
        return self.scores_sbuf[:, number, 0 : self.classes]


def _take_maximum(
    dst_sbuf: nl.NkiTensor, product_psum: nl.NkiTensor, bias_sbuf: nl.NkiTensor | None, maximum_sbuf: nl.NkiTensor
) -> None:
    """Write the logits of a tile, its product plus the bias, to ``dst_sbuf``.

    The same pass writes minus the maximum of the logits to ``maximum_sbuf``; with a bias, the maximum itself.
    """
    if bias_sbuf is None:
        nisa.tensor_scalar_reduce(
            dst=dst_sbuf,
            data=product_psum,
            op0=nl.multiply,
            operand0=1.0,
            reduce_op=nl.maximum,
            reduce_res=maximum_sbuf,
            reduce_res_negate=True,
        )
        return
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf,
        data=product_psum,
        op0=nl.multiply,
        operand0=1.0,
        op1=nl.add,
        operand1=bias_sbuf,
        reduce_op=nl.maximum,
        reduce_res=maximum_sbuf,
    )


@dataclass(frozen=True)
class ScoreTiles:
    """The buffers of all groups of tiles, and the steps that compute them.

    Attributes:
        options: the options of the kernel.
        has_bias: whether the launch has a bias.
        products: the products X W^T, in banks of PSUM.
        group_tiles: the largest number of tiles of a group.
        logits_sbuf, tangents_sbuf: buffer slots of a group each, float32 [128, tiles, classes].
        maxima_sbuf: buffer slots of a group each, float32 [128, tiles].
        exponentials_sbuf: buffer slots of a tile each, float32 [128, classes]; empty if only sums of exponentials are
            needed.
        scalar_terms_sbuf, vector_terms_sbuf: scratch tiles, bfloat16 [128, classes], for terms of which only the sums
            are used.
        waiting: the passes of Vector that are still to be issued.
        ranking: the search for the argmax; None without an argmax.
        unmasked_sbuf: 0.0 for each masked class of a block and 1.0 for the others, [128, classes]; None if no mean
            logit is requested or no class may be masked.
    """

    options: Options
    has_bias: bool
    products: LogitTiles
    group_tiles: int
    logits_sbuf: list[nl.NkiTensor]
    tangents_sbuf: list[nl.NkiTensor]
    maxima_sbuf: list[nl.NkiTensor]
    exponentials_sbuf: list[nl.NkiTensor]
    scalar_terms_sbuf: list[nl.NkiTensor]
    vector_terms_sbuf: list[nl.NkiTensor]
    waiting: WaitingPasses
    ranking: Ranking | None
    unmasked_sbuf: nl.NkiTensor | None

    @classmethod
    def make(
        cls, options: Options, needs: ForwardNeeds, num_features: int, group_tiles: int, classes: int
    ) -> ScoreTiles:
        """Allocate memory for groups of at most ``group_tiles`` tiles, and blocks of at most ``classes`` classes."""

        def ring(shape: tuple[int, ...], count: int = GROUPS, dtype: nl.DType = nl.float32) -> list[nl.NkiTensor]:
            return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(count)]

        group, tile = (PARTITIONS, group_tiles, classes), (PARTITIONS, classes)
        return cls(
            options,
            needs.bias,
            LogitTiles.make(num_features, None, False, banks=_BANKS, slots=0, classes=classes),
            group_tiles,
            logits_sbuf=ring(group),
            tangents_sbuf=ring(group, GROUPS * needs.softcap),
            maxima_sbuf=ring((PARTITIONS, group_tiles)),
            exponentials_sbuf=ring(tile, GROUPS * group_tiles * needs.keeps_exponentials),
            scalar_terms_sbuf=ring(tile, dtype=nl.bfloat16),
            vector_terms_sbuf=ring(tile, GROUPS * needs.has_vector_terms, nl.bfloat16),
            waiting=WaitingPasses(),
            ranking=Ranking.make(needs, options.scale, group_tiles, classes) if options.wanted.argmax else None,
            unmasked_sbuf=ring(tile, 1)[0] if needs.counts_classes else None,
        )

    def take_counts(self, classes: ClassTiles, statistics: PositionStatistics, column: int) -> None:
        """Compute ``unmasked_sbuf`` for a block of classes, and store the number of its unmasked classes.

        Do nothing if ``unmasked_sbuf`` is None.

        Args:
            classes: the operands of the block of classes.
            statistics: the statistics of the positions.
            column: the column of the statistics for the block of classes.
        """
        moments = statistics.group.moments
        if self.unmasked_sbuf is None or moments is None or moments.mean is None or moments.mean.counts_sbuf is None:
            return
        column_sbuf = moments.mean.counts_sbuf[:, :, column]
        count_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=self.unmasked_sbuf[:, 0 : classes.weight_sbuf.shape[2]],
            data=classes.bias_sbuf,
            op0=nl.greater_equal,
            operand0=FLOAT32_LOWEST,
            reduce_op=nl.add,
            reduce_res=count_sbuf,
        )
        nisa.tensor_copy(dst=column_sbuf, src=count_sbuf.broadcast(1, column_sbuf.shape[1]))

    def open(
        self,
        start: int,
        positions_sbuf: Sequence[nl.NkiTensor],
        classes: ClassTiles,
        statistics: PositionStatistics,
        column: int,
        first_bank: int,
    ) -> ScoreGroup:
        """Compute the logits of a group of tiles, and store their maxima in the statistics.

        Args:
            start: the number of the first tile of positions.
            positions_sbuf: X^T of each tile, [128, ceil(D / 128), 128] for D features.
            classes: the operands of the block of classes.
            statistics: the statistics of the positions.
            column: the column of the statistics for the block of classes.
            first_bank: a running number of the group's first tile, which selects banks and buffer slots round-robin.
        """
        end, size = start + len(positions_sbuf), classes.weight_sbuf.shape[2]
        slot = self._slot(first_bank)
        logits_sbuf = self.logits_sbuf[slot][:, 0 : end - start]
        scores_sbuf = logits_sbuf if self.options.softcap is None else self.tangents_sbuf[slot][:, 0 : end - start]
        row = statistics.group.statistics
        column_sbuf = row.neg_max_sbuf[:, start:end, column]
        is_plain = not self.has_bias and self.options.softcap is None
        maxima_sbuf = column_sbuf if is_plain else self.maxima_sbuf[slot][:, 0 : end - start]
        group = ScoreGroup(start, logits_sbuf, scores_sbuf, maxima_sbuf, size)
        share = self.waiting.share_of(len(positions_sbuf))
        for place, tile_sbuf in enumerate(positions_sbuf):
            if place > 0:
                self.waiting.take(share)
            product_psum = self.products.product(first_bank + place, tile_sbuf, classes.weight_sbuf)
            _take_maximum(group.logits(place), product_psum, classes.bias_sbuf, maxima_sbuf[:, place : place + 1])
        self._take_columns(group, row, column)
        self.waiting.take_all()
        return group

    def _slot(self, first_bank: int) -> int:
        return first_bank // self.group_tiles % GROUPS

    def _take_columns(self, group: ScoreGroup, row: Statistics, column: int) -> None:
        """Store in column ``column`` of ``row`` minus the maxima of a group's scores, and the same times the scale.

        Under a cap, also compute the tangents of the group.
        """
        tiles = slice(group.start, group.start + group.tiles)
        column_sbuf, maxima_sbuf = row.neg_max_sbuf[:, tiles, column], group.neg_max_sbuf
        if self.has_bias:
            nisa.tensor_scalar(dst=maxima_sbuf, data=maxima_sbuf, op0=nl.multiply, operand0=-1.0)
        if self.options.softcap is not None:
            self._take_tangents(group, column_sbuf, self.options.softcap)
        elif self.has_bias:
            clamp(column_sbuf, maxima_sbuf, row.scale.most)
        if row.scale.is_one:
            return
        bias_sbuf = row.bias_sbuf[:, tiles, column]
        if self.ranking is not None and self.ranking.scale_sbuf is not None:
            multiply_by_column(bias_sbuf, column_sbuf, self.ranking.scale_sbuf)  # Vector has most to do
        elif self.ranking is not None and isinstance(row.scale, RowScale):
            multiply_on_gpsimd(bias_sbuf, column_sbuf, row.scale.rows_sbuf[:, tiles])
        else:
            row.scale.part(group.start, group.start + group.tiles).multiply(bias_sbuf, column_sbuf)

    def _take_tangents(self, group: ScoreGroup, column_sbuf: nl.NkiTensor, softcap: float) -> None:
        """Compute tanh(x / cap) of the logits of a group, and of minus their maxima into ``column_sbuf``.

        The maxima are complete when the last tile's logits are, so their tanh comes just before that tile's.
        """
        for number in range(group.tiles):
            if number == group.tiles - 1:
                hyperbolic_tangents(column_sbuf, group.neg_max_sbuf, softcap)
            hyperbolic_tangents(group.scores(number), group.logits(number), softcap)
            if self.has_bias:
                masked_tangents(group.scores(number), group.scores(number), group.logits(number))

    def search(
        self, group: ScoreGroup, argmax: Argmax, first_class_sbuf: nl.NkiTensor, column: int, first_bank: int
    ) -> None:
        """Add the passes of a group for the argmax to the waiting passes.

        Args:
            group: the group, whose maxima are known.
            argmax: the argmax statistics of the positions.
            first_class_sbuf: the class of the first column of the group, float32 [128, 1].
            column, first_bank: see :meth:`open`.

        Raises:
            ValueError: if no argmax is requested.
        """
        if self.ranking is None:
            raise ValueError("linear_cross_entropy_forward: no argmax is asked for")
        scores, place = [group.scores(number) for number in range(group.tiles)], Place(group.start, column)
        slot = self._slot(first_bank)
        search = self.ranking.search(argmax, scores, group.neg_max_sbuf, place, first_class_sbuf, slot)
        for number in range(group.tiles):
            self.waiting.add(SearchPass(search, number))

    def take_sums(
        self, group: ScoreGroup, classes: ClassTiles, statistics: PositionStatistics, column: int, first_bank: int
    ) -> None:
        """Compute all sums over the classes of a group whose maxima are known.

        Vector's passes for the entropy are added to the waiting passes. See :meth:`open` for the arguments.
        """
        row, moments = statistics.group.statistics, statistics.group.moments
        tiles = [_TilePlace(number, Place(group.start + number, column)) for number in range(group.tiles)]
        exponentials = [self._exponentials(first_bank + number, group) for number, _ in tiles]
        for number, place in tiles:
            row.take_sum(exponentials[number], group.scores(number), place)
        if moments is None:
            return
        for number, place in tiles:
            scores_sbuf, slot = group.scores(number), (first_bank + number) % GROUPS
            if moments.first is not None:
                terms_sbuf, neg_max_sbuf = group.part(self.vector_terms_sbuf[slot]), place.of(row.neg_max_sbuf)
                moments.first.take_products(scores_sbuf, classes.factors_sbuf, terms_sbuf, neg_max_sbuf, place)
            if moments.squares is not None:
                moments.squares.take(exponentials[number], group.part(self.scalar_terms_sbuf[slot]), place)
            if moments.mean is not None:
                self._take_mean(moments.mean, group, scores_sbuf, slot, place)
            if moments.entropy is not None:
                terms_sbuf = group.part(self.vector_terms_sbuf[slot])
                self.waiting.add(
                    EntropyPass(
                        moments.entropy, row, scores_sbuf, exponentials[number], terms_sbuf, place, self.has_bias
                    )
                )

    def _exponentials(self, number: int, group: ScoreGroup) -> nl.NkiTensor:
        # Scratch memory, unless the exponentials are read again.
        ring = self.exponentials_sbuf or self.scalar_terms_sbuf
        return group.part(ring[number % len(ring)])

    def _take_mean(
        self, mean: MeanMoment, group: ScoreGroup, scores_sbuf: nl.NkiTensor, slot: int, place: Place
    ) -> None:
        # On Scalar; on Vector if classes may be masked.
        if self.unmasked_sbuf is None:
            mean.take(scores_sbuf, None, group.part(self.scalar_terms_sbuf[slot]), place)
            return
        mean.take(scores_sbuf, group.part(self.unmasked_sbuf), group.part(self.vector_terms_sbuf[slot]), place)
