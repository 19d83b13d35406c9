# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Any loss of elements times a weight for each element."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import product
from nkilib.experimental.loss.skeletons.elementwise.kind import WEIGHT, Derivative, Kind, Losses, Piece, Prepared
from nkilib.experimental.loss.skeletons.elementwise.results import TileOfLosses
from nkilib.nki import nl


@dataclass(frozen=True)
class Weighted:
    """A loss times the tensor ``"weight"``.

    Attributes:
        kind: the loss without a weight.
        has_gradient: the gradient of the weight is wanted, for which a piece of the backward has both.
    """

    kind: Kind
    has_gradient: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Those of the loss, and the weight."""
        return (*self.kind.tensors, WEIGHT)

    @property
    def scratch_tiles(self) -> int:
        """Those of derivatives and of losses, and in the backward one for each product and one for the losses."""
        return 2 * self.kind.scratch_tiles + 3 if self.has_gradient else self.kind.scratch_tiles + 2

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The gradient of a weight is the loss of its element."""
        others = tuple(name for name in wanted if name != WEIGHT)
        names = self.kind.needed(others) if others else ()
        if WEIGHT in wanted:
            names += tuple(name for name in self.kind.tensors if name not in names)
        return (*names, WEIGHT) if others else names

    def prepare(self, piece: Piece) -> Prepared:
        """As without a weight."""
        return self.kind.prepare(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """loss * weight."""
        unweighted_sbuf = piece.float32()
        self.kind.value(piece, prepared, TileOfLosses(unweighted_sbuf))
        losses.product(unweighted_sbuf, piece[WEIGHT])

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Derivative * weight; by the weight, the loss."""
        others = tuple(name for name in wanted if name != WEIGHT)
        found = {}
        if others:
            for name, each in self.kind.derivative(piece, others).items():
                weighted_sbuf = piece.float32()
                product(weighted_sbuf, each.product_sbuf(), piece[WEIGHT])
                found[name] = Derivative(weighted_sbuf, each.factor, on_scalar=True)
        if WEIGHT in wanted:
            loss_sbuf = piece.float32()
            self.kind.value(piece, self.kind.prepare(piece), TileOfLosses(loss_sbuf))
            found[WEIGHT] = Derivative(loss_sbuf)
        return found


def weighted(kind: Kind, weight_hbm: nl.NkiTensor | None, has_gradient: bool = False) -> Kind:
    """The loss, times its weight where there is one; with the gradient of the weight where that is wanted."""
    return kind if weight_hbm is None else Weighted(kind, has_gradient)
