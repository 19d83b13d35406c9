# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the backward works on at a time: a round, and the units of it."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import Block, Span


@dataclass(frozen=True)
class Round:
    """A block of classes and one of positions, and what comes after.

    Attributes:
        classes, positions: the blocks.
        next_classes: whose W^T is to be loaded meanwhile; None if it is there, or nothing comes.
        next_positions: whose X^T is to be loaded; None if nothing comes.
        is_first_of_core, is_last_of_core: of the blocks of classes.
        is_first, is_last: of the blocks of positions.
    """

    classes: Block
    positions: Span
    next_classes: Block | None
    next_positions: Span | None
    is_first_of_core: bool
    is_last_of_core: bool
    is_first: bool
    is_last: bool

    @property
    def tiles(self) -> int:
        """Of positions."""
        return div_ceil(self.positions.size, PARTITIONS)

    def rows(self, tile: int) -> int:
        """Positions of a tile."""
        return min(PARTITIONS, self.positions.size - tile * PARTITIONS)


@dataclass(frozen=True)
class Unit:
    """Some tiles of dX, and a piece of X for dW.

    Attributes:
        number: within its stripe.
        tiles: of positions, whose dX is computed.
        piece: the tiles of positions of its piece.
        group: of tiles of dW.
        loads: whether the piece has to be loaded.
    """

    number: int
    tiles: range
    piece: range
    group: int
    loads: bool
