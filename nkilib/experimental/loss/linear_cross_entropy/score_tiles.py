"""Tiles of logits of the forward: their maxima, their exponentials, and what is made of them for the options.

Vector reads a bank of PSUM once: it copies the product into SBUF, adds the bias and takes the maximum. Then the bank is
free for Tensor, and Scalar and GpSimd read SBUF. Tiles are taken in groups that stand side by side, so that the small
steps between them are those of a group, and so that Scalar loads the tables of a tangent and of an exponential once for
all tiles of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.rows.moments import raise_negligible
from nkilib.core.rows.statistics import Place
from nkilib.core.rows.tiles import FLOAT32_LOWEST, clamp
from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents, masked_tangents
from nkilib.experimental.loss.linear_cross_entropy.class_stream import ClassTiles
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import GROUPS, TILES_OF_GROUP
from nkilib.experimental.loss.linear_cross_entropy.logits import LogitTiles
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.position_statistics import PositionStatistics
from nkilib.experimental.loss.linear_cross_entropy.ranking import RankedTiles, Ranking
from nkilib.nki import nisa, nl

# Banks of PSUM that tiles take in turn; one is left to transposes of positions.
_BANKS = 7


def has_terms(options: Options) -> bool:
    """Something is summed over the classes beside the exponentials."""
    wanted = options.wanted
    return options.sums_classes or wanted.entropy or wanted.log_sum_squares or wanted.mean_logit


@dataclass(frozen=True)
class ScoreGroup:
    """Tiles of logits that stand side by side.

    Attributes:
        start: number of the first tile of positions.
        logits_sbuf: x, float32 [128, tiles, classes]; more classes may have room.
        scores_sbuf: times the scale they are z: x, or the tangents of a cap.
        neg_max_sbuf: minus the maxima of x, float32 [128, tiles].
        classes: how many.
    """

    start: int
    logits_sbuf: nl.NkiTensor
    scores_sbuf: nl.NkiTensor
    neg_max_sbuf: nl.NkiTensor
    classes: int

    def logits(self, number: int) -> nl.NkiTensor:
        """Those of one tile, [128, classes]."""
        return self.logits_sbuf[:, number, 0 : self.classes]

    def scores(self, number: int) -> nl.NkiTensor:
        """Likewise."""
        return self.scores_sbuf[:, number, 0 : self.classes]


@dataclass(frozen=True)
class ScoreTiles:
    """The tiles of all groups, and the steps that make them.

    Attributes:
        options: of the kernel.
        has_bias: of the launch.
        products: the banks.
        logits_sbuf, tangents_sbuf, maxima_sbuf: by turn, of a group.
        exponentials_sbuf: by turn, of a tile; float32 where more is made of them than their sum.
        terms_sbuf: by turn, of a tile: what nobody needs but the sums that are taken on the way.
        ranking: for the argmax; None without one.
        unmasked_sbuf: for the mean logit 1.0, and 0.0 for masked classes of a block; None where none may be masked.
    """

    options: Options
    has_bias: bool
    products: LogitTiles
    logits_sbuf: list[nl.NkiTensor]
    tangents_sbuf: list[nl.NkiTensor]
    maxima_sbuf: list[nl.NkiTensor]
    exponentials_sbuf: list[nl.NkiTensor]
    terms_sbuf: list[nl.NkiTensor]
    ranking: Ranking | None
    unmasked_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, options: Options, num_features: int, has_bias: bool, tiles: int, classes: int) -> ScoreTiles:
        """For groups of at most so many tiles of positions and blocks of at most so many classes."""

        def ring(shape: tuple[int, ...], is_needed: bool = True, dtype: nl.DType = nl.float32) -> list[nl.NkiTensor]:
            return [nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf) for _ in range(GROUPS if is_needed else 0)]

        group, tile = (PARTITIONS, tiles, classes), (PARTITIONS, classes)
        wanted = options.wanted
        exponentials = nl.float32 if wanted.entropy or wanted.log_sum_squares else nl.bfloat16
        masks = wanted.mean_logit and has_bias
        return cls(
            options,
            has_bias,
            LogitTiles.make(num_features, None, False, banks=_BANKS, turns=0, classes=classes),
            logits_sbuf=ring(group),
            tangents_sbuf=ring(group, options.softcap is not None),
            maxima_sbuf=ring((PARTITIONS, tiles)),
            exponentials_sbuf=ring(tile, dtype=exponentials),
            terms_sbuf=ring(tile, has_terms(options), nl.bfloat16),
            ranking=Ranking.make(options.scale, tiles, classes) if wanted.argmax else None,
            unmasked_sbuf=nl.ndarray(tile, dtype=nl.float32, buffer=nl.sbuf) if masks else None,
        )

    def open(
        self,
        start: int,
        positions_sbuf: Sequence[nl.NkiTensor],
        classes: ClassTiles,
        statistics: PositionStatistics,
        column: int,
        first_bank: int,
    ) -> ScoreGroup:
        """The logits of a group of tiles, and their maxima in the statistics.

        Args:
            start: number of the first tile of positions.
            positions_sbuf: X^T of the tiles, [128, ceil(D / 128), 128] each.
            classes: of the block.
            statistics: of the positions.
            column: of the statistics, which the block of classes takes.
            first_bank: of the banks of PSUM.
        """
        end, size = start + len(positions_sbuf), classes.weight_sbuf.shape[2]
        turn = first_bank // TILES_OF_GROUP % GROUPS
        logits_sbuf = self.logits_sbuf[turn][:, 0 : end - start]
        scores_sbuf = logits_sbuf if self.options.softcap is None else self.tangents_sbuf[turn][:, 0 : end - start]
        row = statistics.group.statistics
        column_sbuf = row.neg_max_sbuf[:, start:end, column]
        is_plain = not self.has_bias and self.options.softcap is None
        maxima_sbuf = column_sbuf if is_plain else self.maxima_sbuf[turn][:, 0 : end - start]
        group = ScoreGroup(start, logits_sbuf, scores_sbuf, maxima_sbuf, size)
        for place, tile_sbuf in enumerate(positions_sbuf):
            product_psum = self.products.product(first_bank + place, tile_sbuf, classes.weight_sbuf)
            _take_maximum(group.logits(place), product_psum, classes.bias_sbuf, maxima_sbuf[:, place : place + 1])
        if not is_plain:
            self._take_column(group, column_sbuf)
        if row.scale != 1.0:
            bias_sbuf = row.bias_sbuf[:, start:end, column]
            nisa.tensor_scalar(dst=bias_sbuf, data=column_sbuf, op0=nl.multiply, operand0=row.scale)
        if self.options.softcap is not None:
            self._take_tangents(group, self.options.softcap)
        return group

    def take_sums(
        self, group: ScoreGroup, classes: ClassTiles, statistics: PositionStatistics, column: int, first_bank: int
    ) -> None:
        """All sums over the classes of a group whose maxima are there. Arguments as in :meth:`open`."""
        moments, row = statistics.group.moments, statistics.group.statistics
        for tile in range(group.scores_sbuf.shape[1]):
            place, turn = Place(group.start + tile, column), (first_bank + tile) % GROUPS
            scores_sbuf, neg_max_sbuf = group.scores(tile), place.of(row.neg_max_sbuf)
            if moments is not None and moments.first is not None:
                terms_sbuf = self._terms(turn, group)
                moments.first.take_products(scores_sbuf, classes.factors_sbuf, terms_sbuf, neg_max_sbuf, place)
            exponentials_sbuf = self.exponentials_sbuf[turn][:, 0 : group.classes]
            row.take_sum(exponentials_sbuf, scores_sbuf, place)
            if moments is None:
                continue
            if moments.mean is not None:
                unmasked_sbuf = None if self.unmasked_sbuf is None else self.unmasked_sbuf[:, 0 : group.classes]
                moments.mean.take(scores_sbuf, unmasked_sbuf, self._terms(turn, group), place)
            if moments.squares is not None:
                moments.squares.take(exponentials_sbuf, self._terms(turn, group), place)
            if moments.entropy is not None:
                if self.has_bias:
                    raise_negligible(scores_sbuf, neg_max_sbuf, row.scale)
                moments.entropy.take_terms(row, scores_sbuf, exponentials_sbuf, self._terms(turn, group), place)

    def take_counts(self, classes: ClassTiles, statistics: PositionStatistics, column: int) -> None:
        """Which classes of a block are masked, and how many are not, the same for all positions."""
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

    def ranked(self, group: ScoreGroup, first_bank: int) -> RankedTiles:
        """z of a group as the argmax compares it.

        Raises:
            ValueError: no argmax is asked for.
        """
        if self.ranking is None:
            raise ValueError("linear_cross_entropy_forward: no argmax is asked for")
        turn = first_bank // TILES_OF_GROUP % GROUPS
        tiles = [group.scores(tile) for tile in range(group.scores_sbuf.shape[1])]
        return self.ranking.ranked(tiles, None if self.options.softcap is not None else group.neg_max_sbuf, turn)

    def _terms(self, turn: int, group: ScoreGroup) -> nl.NkiTensor:
        return self.terms_sbuf[turn][:, 0 : group.classes]

    def _take_column(self, group: ScoreGroup, column_sbuf: nl.NkiTensor) -> None:
        """Minus the maxima of the scores; with a bias the group has the maxima of x, and gets minus them."""
        if self.has_bias:
            nisa.tensor_scalar(dst=group.neg_max_sbuf, data=group.neg_max_sbuf, op0=nl.multiply, operand0=-1.0)
        if self.options.softcap is not None:
            hyperbolic_tangents(column_sbuf, group.neg_max_sbuf, self.options.softcap)
            return
        clamp(column_sbuf, group.neg_max_sbuf, self.options.scale)

    def _take_tangents(self, group: ScoreGroup, softcap: float) -> None:
        for tile in range(group.scores_sbuf.shape[1]):
            hyperbolic_tangents(group.scores(tile), group.logits(tile), softcap)
            if self.has_bias:
                masked_tangents(group.scores(tile), group.scores(tile), group.logits(tile))


def _take_maximum(
    dst_sbuf: nl.NkiTensor, product_psum: nl.NkiTensor, bias_sbuf: nl.NkiTensor | None, maximum_sbuf: nl.NkiTensor
) -> None:
    """The logits of a tile and, in the same pass, minus their maximum; with a bias the maximum."""
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
