# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loop over all classes of a core, for programs that have no room for another copy of its body.

All blocks have one size. Where they do not fill the share of a core, they reach into the share of the other one: both
cores write the same dW and db of the classes that they share, and each adds only its own classes to dX. So a vocabulary
needs neither whole blocks nor whole tiles.
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

_FEWEST_ITERATIONS = 2


@dataclass(frozen=True)
class ClassCover:
    """The classes that the loop of a core covers.

    Attributes:
        first: the first class.
        size: the number of classes of a block, a multiple of 128.
        iterations: the number of iterations, the same for all cores.
        own: the core's own share of the classes.
        shared: the number of classes that the loops of both cores cover.
    """

    first: int
    size: int
    iterations: int
    own: Span
    shared: int

    @property
    def is_exact(self) -> bool:
        """Whether the loop covers no classes but the core's own."""
        return self.first == self.own.first and self.iterations * self.size == self.own.size

    def synchronise(self, gradients_hbm: list[nl.NkiTensor]) -> None:
        """Synchronise the cores at a barrier at the end of an iteration.

        Classes that both cores write are written by one core in its first iterations, and by the other one in its last.
        """
        if self.shared > 0:
            for gradient_hbm in gradients_hbm:
                nisa.core_barrier(gradient_hbm, tuple(range(nl.num_programs())))

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block; nothing of a block is loaded before."""

        def iteration(first: nisa.NkiScalar) -> None:
            body(Step(Block(first, self.size), 0, 0, None))

        nl.fori_loop(self.first, self.first + self.iterations * self.size, iteration, self.size)


def planned_cover(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassCover | None:
    """Return the loop of a core; None if the program has room for more copies of its body, or if there is no such loop.

    The loop needs more than one block of positions and a vocabulary of at least the covered classes. If the cores share
    classes, it also needs a dW that is not added to, because it would be added twice, and enough iterations for the
    cores to write the shared classes one after the other.
    """
    has_room = plan.blocks_of_program(num_positions) >= LEAST_ROOM
    if has_room or plan.keeps_logits or plan.position_blocks == 1:
        return None
    while plan.blocks_of_program(num_positions) < 1.0 and plan.class_tiles > 1:
        plan = plan.shorter()
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    iterations = div_ceil(tiles, plan.class_tiles)
    size = div_ceil(tiles, iterations) * PARTITIONS
    vocab_size, covered = shares[-1].end, iterations * size
    if iterations < _FEWEST_ITERATIONS or covered > vocab_size:
        return None
    shared = len(shares) * covered - vocab_size
    if shared > 0 and (plan.adds_to_weight or iterations < 2 * div_ceil(shared, size)):
        return None
    share = shares[core]
    return ClassCover(min(share.first, vocab_size - covered), size, iterations, share, shared)


@dataclass(frozen=True)
class OwnClasses:
    """A mask of the core's own classes of a block: 1 for own classes, and 0 for others.

    Attributes:
        count: the number of the core's own classes.
        places_sbuf: the classes of the block, counted from the core's first one, float32 [128, tiles of classes].
        mask_sbuf: the mask, float32 [128, tiles of classes].
    """

    count: int
    places_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, cover: ClassCover) -> OwnClasses:
        """Allocate the tiles, with ``places_sbuf`` for the first block; the mask is still to be computed."""
        shape = (PARTITIONS, cover.size // PARTITIONS)
        places_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.iota(dst=places_sbuf, pattern=[[PARTITIONS, shape[1]]], offset=0, channel_multiplier=1)
        own = cls(cover.own.size, places_sbuf, nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf))
        own.step(cover.first - cover.own.first)
        return own

    def find(self) -> None:
        """Compute the mask of the block."""
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
        """Make ``places_sbuf`` the class numbers of the block that begins ``classes`` classes later."""
        nisa.tensor_scalar(dst=self.places_sbuf, data=self.places_sbuf, op0=nl.add, operand0=float(classes))

    def keep(self, weight_sbuf: nl.NkiTensor) -> None:
        """Set the rows of W of classes that are not the core's own to 0, in a stripe [128, tiles of classes, features].

        GpSimd does so, because Vector has more to do.
        """
        for tile in range(self.mask_sbuf.shape[1]):
            tile_sbuf = weight_sbuf[:, tile, :]
            nisa.tensor_tensor(
                dst=tile_sbuf,
                data1=tile_sbuf,
                data2=self.mask_sbuf[:, tile : tile + 1].broadcast(1, tile_sbuf.shape[1]),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )
