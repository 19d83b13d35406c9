# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The product of any elementwise loss and a weight for each element."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import product
from nkilib.experimental.loss.skeletons.elementwise.definition import (
    WEIGHT,
    Derivative,
    LossDefinition,
    Losses,
    Piece,
    Prepared,
)
from nkilib.experimental.loss.skeletons.elementwise.results import TileOfLosses
from nkilib.nki import nl


@dataclass(frozen=True)
class Weighted:
    """The definition of a loss times the tensor ``"weight"``.

    Attributes:
        definition: the loss definition without a weight.
        has_gradient: whether the gradient of the weight is requested; a piece of the backward then computes losses and
            derivatives.
    """

    definition: LossDefinition
    has_gradient: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors of the loss, and ``"weight"``."""
        return (*self.definition.tensors, WEIGHT)

    @property
    def scratch_tiles(self) -> int:
        """The number of float32 tiles: those of derivatives and losses, and in the backward one per product and one
        for losses.
        """
        return 2 * self.definition.scratch_tiles + 3 if self.has_gradient else self.definition.scratch_tiles + 2

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Return the tensors needed for the derivatives; the gradient of a weight is the loss of its element."""
        others = tuple(name for name in wanted if name != WEIGHT)
        names = self.definition.needed(others) if others else ()
        if WEIGHT in wanted:
            names += tuple(name for name in self.definition.tensors if name not in names)
        return (*names, WEIGHT) if others else names

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of the loss without a weight."""
        return self.definition.prepare(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """Compute loss * weight."""
        unweighted_sbuf = piece.float32()
        self.definition.value(piece, prepared, TileOfLosses(unweighted_sbuf))
        losses.product(unweighted_sbuf, piece[WEIGHT])

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """Return each derivative times the weight; the derivative with respect to the weight is the loss."""
        others = tuple(name for name in wanted if name != WEIGHT)
        derivatives = {}
        if others:
            for name, derivative in self.definition.derivative(piece, others).items():
                weighted_sbuf = piece.float32()
                product(weighted_sbuf, derivative.product_sbuf(), piece[WEIGHT])
                derivatives[name] = Derivative(weighted_sbuf, derivative.factor, on_scalar=True)
        if WEIGHT in wanted:
            loss_sbuf = piece.float32()
            self.definition.value(piece, self.definition.prepare(piece), TileOfLosses(loss_sbuf))
            derivatives[WEIGHT] = Derivative(loss_sbuf)
        return derivatives


def weighted(definition: LossDefinition, weight_hbm: nl.NkiTensor | None, has_gradient: bool = False) -> LossDefinition:
    """Return the loss definition, multiplied by its weight if there is one.

    ``has_gradient`` tells whether the gradient of the weight is requested.
    """
    return definition if weight_hbm is None else Weighted(definition, has_gradient)
