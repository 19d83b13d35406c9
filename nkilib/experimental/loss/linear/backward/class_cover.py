# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loop over all classes of a core, for programs that have no room for another copy of its body.

All blocks are of one size, and where they do not fill the share of a core, they reach into that of the other one: both
write the same dW and db of classes that they share, and each adds only its own classes to dX. So a vocabulary needs
neither whole blocks nor whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import LEAST_ROOM
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import Block, Span, Step
from nkilib.nki import nisa, nl

_FEWEST_TRIPS = 2


@dataclass(frozen=True)
class ClassCover:
    """What the loop of a core covers.

    Attributes:
        first: its first class.
        size: of a block, a multiple of 128.
        trips: the same for all cores.
        own: the classes of the core.
        shared: how many classes the covers of both cores have.
    """

    first: int
    size: int
    trips: int
    own: Span
    shared: int

    @property
    def is_exact(self) -> bool:
        """There are no classes but the core's own."""
        return self.first == self.own.first and self.trips * self.size == self.own.size

    def meet(self, gradients_hbm: list[nl.NkiTensor]) -> None:
        """At the end of a trip: what both cores write, one writes in its first trips and the other in its last ones."""
        if self.shared > 0:
            for gradient_hbm in gradients_hbm:
                nisa.core_barrier(gradient_hbm, tuple(range(nl.num_programs())))

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block, of which nothing is loaded before."""

        def trip(first: nisa.NkiScalar) -> None:
            body(Step(Block(first, self.size), 0, 0, None))

        nl.fori_loop(self.first, self.first + self.trips * self.size, trip, self.size)


def planned_cover(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassCover | None:
    """The loop of a core; None where the program has room for more, and where such a loop cannot be.

    It takes more than one block of positions, a vocabulary of so many classes, and where the cores share some, a dW
    that is not added to, which would be added twice, and trips enough for the cores to write them one after the other.
    """
    has_room = plan.blocks_of_program(num_positions) >= LEAST_ROOM
    if has_room or plan.keeps_logits or plan.position_blocks == 1:
        return None
    while plan.blocks_of_program(num_positions) < 1.0 and plan.class_tiles > 1:
        plan = plan.shorter()
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    trips = div_ceil(tiles, plan.class_tiles)
    size = div_ceil(tiles, trips) * PARTITIONS
    vocab_size, covered = shares[-1].end, trips * size
    if trips < _FEWEST_TRIPS or covered > vocab_size:
        return None
    shared = len(shares) * covered - vocab_size
    if shared > 0 and (plan.adds_to_weight or trips < 2 * div_ceil(shared, size)):
        return None
    share = shares[core]
    return ClassCover(min(share.first, vocab_size - covered), size, trips, share, shared)


@dataclass(frozen=True)
class OwnClasses:
    """Which classes of a block are the core's own: 1 for those, and 0 for others.

    Attributes:
        count: of the core's own classes.
        places_sbuf: of the classes of the block, counted from the core's first one, float32 [128, tiles of classes].
        mask_sbuf: float32 [128, tiles of classes].
    """

    count: int
    places_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, cover: ClassCover) -> OwnClasses:
        """For the first block, whose mask is still to be made."""
        shape = (PARTITIONS, cover.size // PARTITIONS)
        places_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=places_sbuf, pattern=[[PARTITIONS, shape[1]]], offset=0, channel_multiplier=1)
        own = cls(cover.own.size, places_sbuf, nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
        own.step(cover.first - cover.own.first)
        return own

    def find(self) -> None:
        """Make the mask of the block."""
        nisa.tensor_scalar(dst=self.mask_sbuf, data=self.places_sbuf, op0=nl.greater_equal, operand0=0.0)
        nisa.scalar_tensor_tensor(
            dst=self.mask_sbuf,
            data=self.places_sbuf,
            op0=nl.less,
            operand0=float(self.count),
            op1=nl.multiply,
            operand1=self.mask_sbuf,
        )

    def step(self, classes: int) -> None:
        """Go on by so many classes."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.add, operand0=float(classes))

    def keep(self, weight_sbuf: nl.NkiTensor) -> None:
        """Clear the others of a stripe of W, [128, tiles of classes, features]: beside Vector, which has more to do."""
        for tile in range(self.mask_sbuf.shape[1]):
            tile_sbuf = weight_sbuf[:, tile, :]
            nisa.tensor_tensor(
                dst=tile_sbuf,
                data1=tile_sbuf,
                data2=self.mask_sbuf[:, tile : tile + 1].broadcast(1, tile_sbuf.shape[1]),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )
