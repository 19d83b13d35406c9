"""How the forward goes through the classes of a core: perhaps a block by itself, and then those of a plan.

Where there is a loop of the device, all loads that were issued are waited for before it starts, X of all positions
among them. So a block stands before it, whose products take as long as these loads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.blocks import Block, BlockPlan, Span, Step, plan_blocks
from nkilib.experimental.loss.linear_cross_entropy.host.forward_tiling import WINDOW

# Classes in which the cores share a vocabulary: a multiple of the 16 rows that DMA transposes at a time.
_GRAIN = 32


def even_shares(vocab_size: int, cores: int) -> list[Span]:
    """The classes of each core, as even as whole grains are; a core may have none."""
    grains = div_ceil(vocab_size, _GRAIN)
    edges = [min(vocab_size, div_ceil(grains * core, cores) * _GRAIN) for core in range(cores + 1)]
    return [Span(first, last - first) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class ClassSchedule:
    """The steps of a core.

    Attributes:
        head: the block before the loop; None without a loop.
        plan: all others.
    """

    head: Span | None
    plan: BlockPlan

    @classmethod
    def make(cls, shares: list[Span], core: int, class_block: int, bodies: int) -> ClassSchedule:
        """For the classes of each core, in blocks of at most ``class_block`` and a program of at most so many."""
        plan = plan_blocks(shares, core, class_block, bodies, WINDOW)
        if plan.trips == 0:
            return cls(None, plan)
        left = [Span(share.first + class_block, share.size - class_block) for share in shares]
        most = _most_of_longest_trips(left, class_block, bodies - 1)
        return cls(Span(shares[core].first, class_block), plan_blocks(left, core, class_block, most, WINDOW))

    @property
    def first(self) -> int:
        """The first class."""
        return self.plan.first if self.head is None else self.head.first

    @property
    def largest(self) -> int:
        """Classes of the largest block; 0 without any."""
        return max(self.plan.largest, 0 if self.head is None else self.head.size)

    @property
    def sizes(self) -> set[int]:
        """Of the blocks."""
        return self.plan.sizes | (set() if self.head is None else {self.head.size})

    @property
    def opening(self) -> Step | None:
        """The first step, whose loads come before it; None without classes."""
        if self.head is not None:
            # The last number of a window, so that the loop begins with a window of its own.
            return Step(Block(*self.head), WINDOW - 1, self.head.size, self.plan.opening)
        opening = self.plan.opening
        return None if opening is None else Step(opening, 0, opening.size, None)

    @property
    def count(self) -> int:
        """Blocks of the plan, which are numbered on from 0."""
        return self.plan.count

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block."""
        if self.head is not None and self.opening is not None:
            body(self.opening)
        self.plan.run(body)


def _most_of_longest_trips(shares: list[Span], class_block: int, bodies: int) -> int:
    """The ``most_bodies`` of the plan that meets the edges of trips least often and has at most ``bodies``.

    A plan keeps room for what is left over behind the loop, which may be less: then its trips can be longer.
    """
    found, fewest = bodies, None
    for most in range(bodies, 2 * bodies + 2):
        plans = [plan_blocks(shares, core, class_block, most, WINDOW) for core in range(len(shares))]
        trips = plans[0].trips
        fits = trips > 0 and max(plan.bodies for plan in plans) <= bodies
        if fits and (fewest is None or trips < fewest):
            found, fewest = most, trips
    return found
