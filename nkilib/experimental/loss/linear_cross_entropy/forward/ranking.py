# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values that the argmax compares: z, where two values are equal if they are the same float32 number.

The tiles hold scores: logits, or their tangents under a cap. z, the logit after cap and temperature, is a multiple of
them. A cap or a temperature makes different logits equal: in float32 the tangent of everything above nine times the cap
is 1, and a product with 1 / T may round two neighbours to one number. So z itself is compared, unless the scale is a
power of two, whose products are exact. GpSimd multiplies, because it has nothing else to do.

A product with a positive number never reverses an order, so the maximum of z is the multiple of the maximum of the
scores. Tangents give no such guarantee: under a cap the maximum of z is searched for too.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.argmax import Argmax, Search
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.rows.statistics import Place
from nkilib.experimental.loss.linear_cross_entropy.shared.forward_needs import GROUPS, ForwardNeeds
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Ranking:
    """Computes z of groups of tiles, and prepares the search for the argmax in it.

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
        """Return the search in a group; its passes are not issued yet.

        Args:
            argmax: the argmax of the positions.
            scores: the scores of each tile, float32 [128, classes].
            neg_max_sbuf: minus the maxima of the logits, [128, tiles].
            place: the place of the first tile in the statistics.
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
                multiply(tile_sbuf, score_sbuf, self.scale_sbuf)
        known_sbuf = None if self.needs.softcap else neg_max_sbuf
        factor = self.scale if self.needs.products else 1.0
        return argmax.search(tiles, place, first_class_sbuf, known_sbuf, factor, not self.needs.has_exact_maxima)


def multiply(dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
    """Write values times a factor [rows, 1], on GpSimd, whose operands are tiles, not numbers."""
    nisa.tensor_tensor(
        dst=dst_sbuf,
        data1=values_sbuf,
        data2=factor_sbuf.broadcast(1, values_sbuf.shape[1]),
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )
