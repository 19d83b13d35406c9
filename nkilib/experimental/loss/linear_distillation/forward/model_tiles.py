# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of scores of one model: a product, its bias and its softcap, with the maxima of the positions.

Vector copies a product from its bank of PSUM, adds the bias and computes the maximum in the same pass. Under a softcap
the maximum of the tangents is the tangent of the maximum. If a bias may mask classes, their tangents are replaced;
then the pass that replaces them computes the maximum of the tangents.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import Ring
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.rows.statistics import Statistics
from nkilib.experimental.loss.cross_entropy.softcap import hyperbolic_tangents
from nkilib.experimental.loss.linear.forward.streams import ClassTiles
from nkilib.experimental.loss.linear.shared.logits import LogitTiles
from nkilib.experimental.loss.linear_distillation.host.needs import ModelNeeds
from nkilib.experimental.loss.linear_distillation.shared.options import ModelOperands
from nkilib.nki import nisa, nl

_GPSIMD = nisa.engine.gpsimd


def multiply_by(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
    """Compute data * factor on GpSimd, which takes no scalar operands but tiles.

    Args:
        dst_sbuf, data_sbuf: float32 [128, columns]; they may be the same tile.
        factor_sbuf: float32 [128, 1].
    """
    factors_sbuf = factor_sbuf.broadcast(1, data_sbuf.shape[1])
    nisa.tensor_tensor(dst=dst_sbuf, data1=data_sbuf, data2=factors_sbuf, op=nl.multiply, engine=_GPSIMD)


@dataclass(frozen=True)
class ModelGroup:
    """Tiles of one model that stand side by side, float32.

    Attributes:
        scores_sbuf: [128, tiles, classes].
        wide_sbuf: the same tiles with all classes that they have room for.
        exponentials_sbuf: the place of the exponentials, [128, tiles, classes]; scratch before they are computed.
        maxima_sbuf: [128, tiles]: without a bias minus the maxima of the products, with a bias the maxima of the
            scores. If the statistics use these maxima unchanged, it is their column.
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
        products: the banks of PSUM, which both models share.
        scores, exponentials: ring buffers of the tiles of groups, float32 [128, tiles, classes].
        maxima: a ring buffer of the maxima of groups, float32 [128, tiles].
        negative_sbuf: -1, float32 [128, 1]; None without a bias.
        scale_sbuf: the factor that turns the model's scores into z, float32 [128, 1]; None for 1.
        lowest_sbuf: the lower limit of a bias, float32 [128, 1]; None without a bias.
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
    ) -> ModelTiles:
        """Allocate the buffers for groups whose scores are in the ring buffer ``scores``, [128, tiles, classes]."""
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
            number(model.scale, needs.scale),
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
        """Raise -inf in the bias of a block of classes to a finite number, so that differences of scores are no NaN."""
        bias_sbuf = classes.bias_sbuf
        if bias_sbuf is None or self.lowest_sbuf is None:
            return
        lowest_sbuf = self.lowest_sbuf.broadcast(1, bias_sbuf.shape[1])
        nisa.tensor_tensor(dst=bias_sbuf, data1=bias_sbuf, data2=lowest_sbuf, op=nl.maximum, engine=_GPSIMD)

    def begin(self, tiles: int, classes: int, column_sbuf: nl.NkiTensor) -> ModelGroup:
        """Return the buffers of a group of tiles, whose maxima go into a column of the statistics, [128, tiles]."""
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
        """Copy the product of one tile with its bias, and compute its maximum unless a softcap masks classes later."""
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
        """Compute the tangents of a softcap, and the maxima of a group as the statistics store them."""
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
            multiply_by(column_sbuf, group.maxima_sbuf, self.negative_sbuf)

    def take_bias(self, row: Statistics, tiles: slice, column: int) -> None:
        """Compute the addend of the exponentials, minus the maximum times the scale, from the maxima of a group."""
        if self.scale_sbuf is not None:
            multiply_by(row.bias_sbuf[:, tiles, column], row.neg_max_sbuf[:, tiles, column], self.scale_sbuf)

    def _mask(self, group: ModelGroup, place: int) -> None:
        """Write min(x - lowest, tanh), where x is the biased product, and compute the maximum of the results.

        That is the tangent, or ``lowest`` for a masked class, whose x is twice ``lowest``.
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
