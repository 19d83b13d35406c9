"""A tile of the gradient of the logits: computed in float32, and rounded once to the type of the products.

With p the softmax and h = p - onehot, the error, whose large terms cancel where a target is confident, the gradient of
z is (A - D) * h + D * p - spread * w (:mod:`nkilib.experimental.loss.cross_entropy.coefficients`), and of the logits
under a cap that times 1 - tanh^2. With a gradient g of the entropy H, D is larger by -g * (log p + H), which is a slope
times the logit, and an offset. The instructions whose term is 0 are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.experimental.loss.cross_entropy.options import Options
from nkilib.experimental.loss.cross_entropy.softcap import squared, through_cap
from nkilib.experimental.loss.linear.blocks import Span
from nkilib.experimental.loss.linear.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.gradient_columns import GradientColumns
from nkilib.experimental.loss.linear_cross_entropy.id_tiles import IdTiles
from nkilib.nki import nisa, nl

# Tiles that are made at a time: one is Scalar's, one Vector's, one is rounded.
TURNS = 3


@dataclass(frozen=True)
class TilePlace:
    """Which positions and classes a tile of logits is of.

    Attributes:
        column: of the positions in :class:`GradientColumns`.
        rows: positions, at most 128.
        classes: its classes, counted in the block of classes.
    """

    column: int
    rows: int
    classes: Span

    def of(self, column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """The numbers of its positions, [rows, 1]."""
        return column_sbuf[0 : self.rows, self.column : self.column + 1]


@dataclass(frozen=True)
class LastProduct:
    """The last step of a tile, to be issued after the next tile's exponentials: then Scalar waits for none.

    Attributes:
        dst_sbuf: the tile, rounded.
        values_sbuf: float32.
        factor_sbuf: what they are multiplied with, float32 [rows, 1].
    """

    dst_sbuf: nl.NkiTensor
    values_sbuf: nl.NkiTensor
    factor_sbuf: nl.NkiTensor

    def issue(self, on_gpsimd: bool) -> None:
        """Multiply and round, on Scalar, or on GpSimd, which is free and half as fast."""
        if not on_gpsimd:
            nisa.activation(dst=self.dst_sbuf, op=nl.copy, data=self.values_sbuf, scale=self.factor_sbuf)
            return
        factors_sbuf = self.factor_sbuf.broadcast(1, self.dst_sbuf.shape[1])
        nisa.tensor_tensor(
            dst=self.dst_sbuf,
            data1=self.values_sbuf,
            data2=factors_sbuf,
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )


@dataclass(frozen=True)
class GradientTiles:
    """Makes one tile of the gradient after another.

    Attributes:
        columns: of the positions.
        softcap: of the logits; None for none.
        is_kept: the scores come from HBM: GpSimd takes last products then, and under a cap squares otherwise.
        masks: whether scores may be -inf under a cap, where the tangent is -1.
        scale: z is this times the scores.
        count_sbuf: 0, 1, 2, ... in each partition, float32 [128, classes of a block].
        ids: of several target ids of each position; None for one.
        errors_sbuf, others_sbuf: float32 [128, classes of a tile], which tiles take in turn: for the error, and for
            what is added to it.
    """

    columns: GradientColumns
    softcap: float | None
    is_kept: bool
    masks: bool
    scale: float
    count_sbuf: nl.NkiTensor
    errors_sbuf: list[nl.NkiTensor]
    others_sbuf: list[nl.NkiTensor]
    ids: IdTiles | None = None

    @classmethod
    def make(
        cls,
        columns: GradientColumns,
        options: Options,
        is_kept: bool,
        masks: bool,
        block: int,
        classes: int,
        ids: IdTiles | None = None,
    ) -> GradientTiles:
        """For blocks of so many classes, and tiles of so many of them."""

        def ring(is_needed: bool) -> list[nl.NkiTensor]:
            turns = TURNS if is_needed else 0
            return [nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) for _ in range(turns)]

        count_sbuf = nl.ndarray((PARTITIONS, block), dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=count_sbuf, pattern=[[1, block]], offset=0, channel_multiplier=0)
        return cls(
            columns,
            options.softcap,
            is_kept,
            masks,
            options.scale,
            count_sbuf,
            errors_sbuf=ring(True),
            others_sbuf=ring(columns.rest_sbuf is not None),
            ids=ids,
        )

    def make_tile(
        self,
        number: int,
        dst_sbuf: nl.NkiTensor,
        scores: nl.NkiTensor,
        place: TilePlace,
        target_sbuf: nl.NkiTensor,
        weights_sbuf: nl.NkiTensor | None,
    ) -> LastProduct | None:
        """Write tile ``number``, but for what is returned.

        Args:
            dst_sbuf: [rows, classes], of the type of the products.
            scores: float32 [rows, classes], the logits, or the tangents of a cap; overwritten.
            place: of the tile.
            target_sbuf: the targets of its positions, float32 [rows, 1], counted from the block's first class; not
                looked at where there are several.
            weights_sbuf: class weights, float32 [rows, classes]; None for 1.
        """
        error_sbuf, own_sbuf = _turn(self.errors_sbuf, number, place), place.of(self.columns.own_sbuf)
        slopes_sbuf = self._slopes(number, error_sbuf, scores, place)
        self._softmax(error_sbuf, scores, place)
        ids_sbuf = None
        if self.ids is not None:
            ids_sbuf = self.ids.gradients(number, place.rows, place.column, *place.classes)
        if slopes_sbuf is not None and not self.columns.has_target:
            self._multiply_slopes(dst_sbuf, slopes_sbuf, error_sbuf, scores, ids_sbuf)
            return None
        other_sbuf = ids_sbuf
        if other_sbuf is None:
            other_sbuf = self._others(number, error_sbuf, slopes_sbuf, place, weights_sbuf)
        if self.columns.has_target:
            nisa.scalar_tensor_tensor(
                dst=error_sbuf,
                data=self.count_sbuf[0 : place.rows, place.classes.first : place.classes.end],
                op0=nl.equal,
                operand0=target_sbuf,
                op1=nl.subtract,
                operand1=error_sbuf,
                reverse1=True,
            )
        if other_sbuf is not None:
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf if self.softcap is None else error_sbuf,
                data=error_sbuf,
                op0=nl.multiply,
                operand0=own_sbuf,
                op1=nl.add,
                operand1=other_sbuf,
            )
            if self.softcap is not None:
                self._square(scores)
                through_cap(dst_sbuf, error_sbuf, scores)
            return None
        if self.softcap is None:
            return LastProduct(dst_sbuf, error_sbuf, own_sbuf)
        self._square(scores)
        if self.is_kept:
            through_cap(error_sbuf, error_sbuf, scores)
            return LastProduct(dst_sbuf, error_sbuf, own_sbuf)
        # Vector has time for it; a last product on Scalar would wait for Vector.
        nisa.tensor_scalar(
            dst=scores, data=scores, op0=nl.subtract, operand0=1.0, reverse0=True, op1=nl.multiply, operand1=own_sbuf
        )
        _multiply(dst_sbuf, error_sbuf, scores)
        return None

    def _slopes(
        self, number: int, error_sbuf: nl.NkiTensor, scores: nl.NkiTensor, place: TilePlace
    ) -> nl.NkiTensor | None:
        """D where it grows with the logits, in a tile of its own; None where it is the same for all classes.

        With a maximum the exponents, without their bias, are in ``error_sbuf`` too.
        """
        if self.columns.neg_maximum_sbuf is not None:
            nisa.tensor_scalar(
                dst=error_sbuf,
                data=scores,
                op0=nl.multiply,
                operand0=self.scale,
                op1=nl.add,
                operand1=place.of(self.columns.neg_maximum_sbuf),
            )
            scores = error_sbuf
        slope_sbuf, rest_sbuf = self.columns.slope_sbuf, self.columns.rest_sbuf
        if slope_sbuf is None or rest_sbuf is None:
            return None
        slopes_sbuf = _turn(self.others_sbuf, number, place)
        nisa.activation(dst=slopes_sbuf, op=nl.copy, data=scores, scale=place.of(slope_sbuf), bias=place.of(rest_sbuf))
        return slopes_sbuf

    def _multiply_slopes(
        self,
        dst_sbuf: nl.NkiTensor,
        slopes_sbuf: nl.NkiTensor,
        softmax_sbuf: nl.NkiTensor,
        scores: nl.NkiTensor,
        ids_sbuf: nl.NkiTensor | None,
    ) -> None:
        """D * p, and what several target ids take."""
        gradient_sbuf = dst_sbuf if self.softcap is None else softmax_sbuf
        if ids_sbuf is None:
            _multiply(gradient_sbuf, slopes_sbuf, softmax_sbuf)
        else:
            _multiply(slopes_sbuf, slopes_sbuf, softmax_sbuf)
            nisa.scalar_tensor_tensor(
                dst=gradient_sbuf, data=slopes_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.add, operand1=ids_sbuf
            )
        if self.softcap is not None:
            self._square(scores)
            through_cap(dst_sbuf, softmax_sbuf, scores)

    def _square(self, tangents: nl.NkiTensor) -> None:
        """The squares of tangents in their place. A square of -inf would make NaN of the gradient, which is 0 there."""
        if self.masks:
            nisa.tensor_scalar(dst=tangents, data=tangents, op0=nl.maximum, operand0=-1.0)
        if self.is_kept:
            squared(tangents)
        else:
            _multiply_on_gpsimd(tangents, tangents, tangents)

    def _softmax(self, dst_sbuf: nl.NkiTensor, scores: nl.NkiTensor, place: TilePlace) -> None:
        """p; the scores stay as they are. With a maximum the exponents are in ``dst_sbuf``, but for their bias."""
        bias_sbuf = place.of(self.columns.bias_sbuf)
        if self.columns.neg_maximum_sbuf is None:
            nisa.activation(dst=dst_sbuf, op=nl.exp, data=scores, bias=bias_sbuf, scale=self.scale)
        else:
            nisa.activation(dst=dst_sbuf, op=nl.exp, data=dst_sbuf, bias=bias_sbuf)

    def _others(
        self,
        number: int,
        softmax_sbuf: nl.NkiTensor,
        slopes_sbuf: nl.NkiTensor | None,
        place: TilePlace,
        weights_sbuf: nl.NkiTensor | None,
    ) -> nl.NkiTensor | None:
        """D * p - spread * w, in a tile of its own; None for 0."""
        rest_sbuf, spread_sbuf = self.columns.rest_sbuf, self.columns.spread_sbuf
        if rest_sbuf is None:
            return None
        if slopes_sbuf is not None:
            # Under a cap Vector has the least time of all, and GpSimd nothing to do.
            multiplied = _multiply if self.softcap is None else _multiply_on_gpsimd
            multiplied(slopes_sbuf, slopes_sbuf, softmax_sbuf)
            self._subtract_spread(slopes_sbuf, place, weights_sbuf)
            return slopes_sbuf
        other_sbuf = _turn(self.others_sbuf, number, place)
        if spread_sbuf is not None and weights_sbuf is None:
            nisa.tensor_scalar(
                dst=other_sbuf,
                data=softmax_sbuf,
                op0=nl.multiply,
                operand0=place.of(rest_sbuf),
                op1=nl.subtract,
                operand1=place.of(spread_sbuf),
            )
            return other_sbuf
        nisa.activation(dst=other_sbuf, op=nl.copy, data=softmax_sbuf, scale=place.of(rest_sbuf))
        self._subtract_spread(other_sbuf, place, weights_sbuf)
        return other_sbuf

    def _subtract_spread(self, other_sbuf: nl.NkiTensor, place: TilePlace, weights_sbuf: nl.NkiTensor | None) -> None:
        """Subtract spread * w in place."""
        if self.columns.spread_sbuf is None:
            return
        spread_sbuf = place.of(self.columns.spread_sbuf)
        if weights_sbuf is None:
            nisa.tensor_scalar(dst=other_sbuf, data=other_sbuf, op0=nl.subtract, operand0=spread_sbuf)
            return
        nisa.scalar_tensor_tensor(
            dst=other_sbuf,
            data=weights_sbuf,
            op0=nl.multiply,
            operand0=spread_sbuf,
            op1=nl.subtract,
            operand1=other_sbuf,
            reverse1=True,
        )


def _multiply(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, others_sbuf: nl.NkiTensor) -> None:
    """The product of two tiles of float32 in SBUF: Vector is modelled to take twice as long for ``tensor_tensor``."""
    nisa.scalar_tensor_tensor(
        dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=1.0, op1=nl.multiply, operand1=others_sbuf
    )


def _multiply_on_gpsimd(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, others_sbuf: nl.NkiTensor) -> None:
    """Likewise on GpSimd, which is half as fast."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=others_sbuf, op=nl.multiply, engine=nisa.engine.gpsimd)


def _turn(tiles_sbuf: list[nl.NkiTensor], number: int, place: TilePlace) -> nl.NkiTensor:
    return tiles_sbuf[number % len(tiles_sbuf)][0 : place.rows, 0 : place.classes.size]
