# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The units of work of the backward: a :class:`Round`, and the units that a stripe of features in it consists of."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import Block, Span


@dataclass(frozen=True)
class Round:
    """The work on a block of classes and a block of positions, with the blocks that follow.

    Attributes:
        classes, positions: the blocks.
        next_classes: the classes whose W^T is to be loaded meanwhile; None if it is loaded, or nothing follows.
        next_positions: the positions whose X^T is to be loaded; None if nothing follows.
        is_first_of_core, is_last_of_core: whether the block of classes is the core's first, or last.
        is_first, is_last: whether the block of positions is the first, or last.
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
        """The number of tiles of positions."""
        return div_ceil(self.positions.size, PARTITIONS)

    def rows(self, tile: int) -> int:
        """Return the number of positions of a tile."""
        return min(PARTITIONS, self.positions.size - tile * PARTITIONS)


@dataclass(frozen=True)
class Unit:
    """A unit of work of a stripe: some tiles of dX, and a piece of X for dW.

    Attributes:
        number: the number of the unit within its stripe.
        tiles: the tiles of positions whose dX is computed.
        piece: the tiles of positions of the piece of X.
        group: the number of the group of tiles of dW.
        loads: whether the piece has to be loaded.
    """

    number: int
    tiles: range
    piece: range
    group: int
    loads: bool
