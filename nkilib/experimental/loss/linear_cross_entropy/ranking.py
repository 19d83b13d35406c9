"""z of tiles of logits as the argmax compares it: two z are equal where they are the same float32 number.

The tiles hold scores, of which z is a multiple. A cap or a temperature makes unlike logits equal: a tangent is 1 in
float32 of all that lies above nine times the cap, and a product with 1 / T may round two neighbours to one number. So
z itself is compared, unless the scale is a power of two, whose products are exact. GpSimd multiplies, which has nothing
else to do.

A product with a positive number never turns an order, so that the maximum of z is the multiple of that of the scores.
No such thing is promised of a tangent: under a cap the maximum is taken of z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import GROUPS
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS
from nkilib.nki import nisa, nl


class RankedTiles(NamedTuple):
    """A group of tiles.

    Attributes:
        tiles: z, or what is ordered alike, float32 [128, classes] each.
        neg_max_sbuf: minus the maxima, float32 [128, tiles].
    """

    tiles: list[nl.NkiTensor]
    neg_max_sbuf: nl.NkiTensor


def multiplies(scale: float) -> bool:
    """Whether scores that differ may have the same z."""
    return math.frexp(scale)[0] != 0.5


@dataclass(frozen=True)
class Ranking:
    """Makes z of groups of tiles.

    Attributes:
        scale: z is this times the scores.
        scale_sbuf: the same, float32 [128, 1]; None where the scores are compared as they are.
        products_sbuf: by turn, z of a group, float32 [128, tiles, classes]; empty likewise.
        maxima_sbuf: by turn, minus the maxima of z, float32 [128, tiles].
    """

    scale: float
    scale_sbuf: nl.NkiTensor | None
    products_sbuf: list[nl.NkiTensor]
    maxima_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, scale: float, tiles: int, classes: int) -> Ranking:
        """For groups of at most so many tiles of positions, and of so many classes."""

        def ring(shape: tuple[int, ...], count: int) -> list[nl.NkiTensor]:
            return [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]

        scale_sbuf = None
        if multiplies(scale):
            scale_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
            nisa.memset(dst=scale_sbuf, value=scale)
        products = ring((PARTITIONS, tiles, classes), 0 if scale_sbuf is None else GROUPS)
        return cls(scale, scale_sbuf, products, ring((PARTITIONS, tiles), GROUPS))

    def ranked(self, scores: Sequence[nl.NkiTensor], neg_max_sbuf: nl.NkiTensor | None, turn: int) -> RankedTiles:
        """What is compared of a group.

        Args:
            scores: of each tile, float32 [128, classes].
            neg_max_sbuf: minus the maxima of the scores, [128, tiles]; None where they are not known exactly.
            turn: of the group in the rings.
        """
        maxima_sbuf, scale_sbuf = self.maxima_sbuf[turn][:, 0 : len(scores)], self.scale_sbuf
        tiles = list(scores)
        if scale_sbuf is not None:
            tiles = [self.products_sbuf[turn][:, number, 0 : each.shape[1]] for number, each in enumerate(scores)]
            for score_sbuf, tile_sbuf in zip(scores, tiles, strict=True):
                _multiply(tile_sbuf, score_sbuf, scale_sbuf)
        if neg_max_sbuf is None:
            for number, tile_sbuf in enumerate(tiles):
                of_tile_sbuf = maxima_sbuf[:, number : number + 1]
                nisa.tensor_reduce(dst=of_tile_sbuf, op=nl.maximum, data=tile_sbuf, axis=1, negate=True)
            return RankedTiles(tiles, maxima_sbuf)
        if scale_sbuf is None:
            return RankedTiles(tiles, neg_max_sbuf)
        nisa.tensor_scalar(dst=maxima_sbuf, data=neg_max_sbuf, op0=nl.multiply, operand0=scale_sbuf)
        return RankedTiles(tiles, maxima_sbuf)


def _multiply(dst_sbuf: nl.NkiTensor, scores_sbuf: nl.NkiTensor, scale_sbuf: nl.NkiTensor) -> None:
    """scale * scores, on GpSimd, which takes no numbers but tiles."""
    nisa.tensor_tensor(
        dst=dst_sbuf,
        data1=scores_sbuf,
        data2=scale_sbuf.broadcast(1, scores_sbuf.shape[1]),
        op=nl.multiply,
        engine=nisa.engine.gpsimd,
    )
