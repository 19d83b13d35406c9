# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The schedule of a core's classes in the forward: possibly a separate block, the blocks of a plan, and shared blocks.

A device loop does not start before all issued loads have ended, including X of all positions. So a block is before the
loop, whose products take as long as these loads.

At the end the cores need each other's statistics, and a swap takes some microseconds. Meanwhile both work on the last
classes, each for its part of the positions, of which it then knows everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.blocks import (
    Block,
    BlockPlan,
    Span,
    Step,
    balanced_spans,
    plan_blocks,
)
from nkilib.experimental.loss.linear.shared.sizes import WINDOW

# The unit of classes in which a vocabulary is divided: a multiple of the 16 rows that DMA transposes at a time.
_GRAIN = 32


class ClassDivision(NamedTuple):
    """The division of the classes among the cores.

    Attributes:
        shares: the classes of each core, possibly none.
        shared: the blocks of classes that all cores work on at the end.
    """

    shares: list[Span]
    shared: tuple[Span, ...]


def divide_classes(vocab_size: int, shared: int, cores: int, class_block: int) -> ClassDivision:
    """Divide the classes into one share per core, as even as units of 32 classes allow, and the classes shared by all.

    If ``shared`` is 0, no classes are shared. Otherwise at least ``shared`` are, and up to 127 more.
    """
    own = vocab_size if shared == 0 else (vocab_size - shared) // PARTITIONS * PARTITIONS
    last = Span(own, vocab_size - own)
    grains = div_ceil(own, _GRAIN)
    edges = [min(own, div_ceil(grains * core, cores) * _GRAIN) for core in range(cores + 1)]
    shares = [Span(first, end - first) for first, end in pairwise(edges)]
    return ClassDivision(shares, tuple(balanced_spans(last, class_block)) if last.size > 0 else ())


@dataclass(frozen=True)
class ClassSchedule:
    """The blocks of classes that a core works on, in their order.

    Attributes:
        head: the block before the loop; None without a loop.
        plan: all other blocks of the core's own classes.
        shared: the blocks that all cores work on at the end, each for its part of the positions.
    """

    head: Span | None
    plan: BlockPlan
    shared: tuple[Span, ...]

    @classmethod
    def make(cls, division: ClassDivision, core: int, class_block: int, bodies: int) -> ClassSchedule:
        """Return the schedule of a core.

        It has blocks of at most ``class_block`` classes, and at most ``bodies`` blocks in the program.
        """
        shares, shared = division
        bodies -= len(shared)
        plan = plan_blocks(shares, core, class_block, bodies, WINDOW)
        if plan.iterations == 0:
            return cls(None, plan, shared)
        left = [Span(share.first + class_block, share.size - class_block) for share in shares]
        most = _most_of_longest_iterations(left, class_block, bodies - 1)
        head = Span(shares[core].first, class_block)
        return cls(head, plan_blocks(left, core, class_block, most, WINDOW), shared)

    @property
    def first(self) -> int:
        """The first class of the core."""
        return self.plan.first if self.head is None else self.head.first

    @property
    def largest(self) -> int:
        """The number of classes of the largest block; 0 without any."""
        return max((self.plan.largest, *(span.size for span in self._single)), default=0)

    @property
    def sizes(self) -> set[int]:
        """The sizes of the blocks."""
        return self.plan.sizes | {span.size for span in self._single}

    @property
    def opening(self) -> Step | None:
        """The step before all others. Its loads are issued before the schedule runs; None without classes."""
        if self.head is not None:
            # The last number of a window, so that the loop begins with a window of its own.
            return Step(Block(*self.head), WINDOW - 1, self.head.size, self.plan.opening)
        opening = self.plan.opening
        return None if opening is None else Step(opening, 0, opening.size, None)

    @property
    def count(self) -> int:
        """The number of blocks of the plan, which are numbered from 0."""
        return self.plan.count

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block of the core's own classes; the last step loads the first shared block ahead."""

        def with_following(step: Step) -> None:
            is_last = step.number == self.count - 1 and self.shared
            body(replace(step, following=Block(*self.shared[0])) if is_last else step)

        if self.head is not None and self.opening is not None:
            body(self.opening)
        self.plan.run(with_following)

    def run_shared(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block that the cores share; the numbers continue those of the plan."""
        for number, span in enumerate(self.shared):
            following = Block(*self.shared[number + 1]) if number + 1 < len(self.shared) else None
            body(Step(Block(*span), self.count + number, span.size, following))

    @property
    def _single(self) -> tuple[Span, ...]:
        """The blocks that are not part of the plan."""
        return self.shared if self.head is None else (self.head, *self.shared)


def _most_of_longest_iterations(shares: list[Span], class_block: int, bodies: int) -> int:
    """Return the ``most_bodies`` of :func:`plan_blocks` with the fewest iterations and at most ``bodies`` copies.

    A plan reserves room for blocks behind the loop; where these are fewer, its iterations can be longer.
    """
    best, fewest = bodies, None
    for most in range(bodies, 2 * bodies + 2):
        plans = [plan_blocks(shares, core, class_block, most, WINDOW) for core in range(len(shares))]
        iterations = plans[0].iterations
        fits = iterations > 0 and max(plan.bodies for plan in plans) <= bodies
        if fits and (fewest is None or iterations < fewest):
            best, fewest = most, iterations
    return best
