# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The blocks of classes of a core: a short one, a loop of the device, and what is left behind it."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import COPIES_OF_PROGRAM
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import FEWEST_TRIPS, BlockPlan, Span, plan_blocks


@dataclass(frozen=True)
class ClassBlocks:
    """The blocks of a core.

    Attributes:
        lead: classes of a block that stands before the loop; 0 for none.
        blocks: those after it.
    """

    lead: int
    blocks: BlockPlan

    @property
    def has_first(self) -> bool:
        """A block stands before the loop, or there is none: the first block is known when the kernel is built."""
        return self.lead > 0 or self.blocks.trips == 0

    def instructions(self, plan: BackwardPlan, num_positions: int) -> int:
        """About how many the program has."""
        blocks = self.blocks
        sizes = [span.size for span in blocks.rest]
        if self.lead > 0:
            sizes.append(self.lead)
        if blocks.trips > 0:
            sizes += [blocks.size] * blocks.blocks_per_trip
        return sum(plan.instructions(num_positions, size) for size in sizes)


def planned_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """The blocks of a core by a plan: the usual ones, or those of the shortest program where the usual one is too long.

    Cores choose alike: the device requires the same loop of all.
    """
    cores = range(len(shares))
    usual = [_usual_blocks(plan, shares, each, num_positions) for each in cores]
    if all(blocks.instructions(plan, num_positions) <= plan.program_limit(num_positions) for blocks in usual):
        return usual[core]
    shortest = [_blocks_of_two_copies(plan, shares, each) for each in cores]
    return shortest[core] or usual[core]


def _blocks_of_two_copies(plan: BackwardPlan, shares: list[Span], core: int) -> ClassBlocks | None:
    """A loop of blocks that are one tile short of the largest, and one block behind it; None where that is no plan.

    Shares of cores differ by up to a tile. In blocks of one size the core with more would need a third copy for it.
    """
    each = plan.class_tiles - 1
    tiles = [div_ceil(share.size, PARTITIONS) for share in shares]
    trips = (min(tiles) - 1) // each if each > 0 else 0
    if trips < FEWEST_TRIPS or max(tiles) - trips * each > plan.class_tiles:
        return None
    share, done = shares[core], trips * each * PARTITIONS
    rest = Span(share.first + done, share.size - done)
    return ClassBlocks(0, BlockPlan(share.first, each * PARTITIONS, 1, trips, (rest,)))


def _usual_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """The blocks of a core that take the least time.

    The first block stores its dX, which takes less time than to add it, and so it is the one to be short: what the last
    block of the loop loads for the one behind it is then a whole block. Without a loop it is the first of all blocks;
    a program that has no room for it has none.
    """
    most = plan.class_tiles * PARTITIONS
    allowed = plan.blocks_of_program(num_positions)
    unrolled = plan_blocks(shares, core, most, max(COPIES_OF_PROGRAM, int(allowed)))
    shortest = plan.instructions(num_positions, PARTITIONS) / plan.instructions(num_positions, most)
    if unrolled.trips == 0 or allowed < COPIES_OF_PROGRAM + shortest:
        return ClassBlocks(0, unrolled)
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    each = div_ceil(tiles, div_ceil(tiles, plan.class_tiles))
    lead = (tiles - 1) % each + 1
    if lead <= each // 2:
        # Too short for its transfers: the block behind the loop is shorter instead.
        lead = div_ceil(lead + each, 2)
    # A long program has room for the loop and a whole block behind it, and for what is left of a block before it.
    lead = min(lead, max(1, int((allowed - COPIES_OF_PROGRAM) * each)))
    rests = [Span(share.first + lead * PARTITIONS, share.size - lead * PARTITIONS) for share in shares]
    bodies = max(COPIES_OF_PROGRAM, int(allowed - lead / each))
    return ClassBlocks(lead * PARTITIONS, plan_blocks(rests, core, each * PARTITIONS, bodies))


def plan_of_program(plan: BackwardPlan, shares: list[Span], num_positions: int) -> BackwardPlan:
    """The plan of blocks so short that the programs of all cores are within their limit; else the shortest one."""

    def instructions(plan: BackwardPlan) -> int:
        return max(
            planned_blocks(plan, shares, core, num_positions).instructions(plan, num_positions)
            for core in range(len(shares))
        )

    found = plan
    while instructions(plan) > plan.program_limit(num_positions):
        if plan.class_tiles == 1:
            return found
        plan = plan.shorter()
        if instructions(plan) < instructions(found):
            found = plan
    return plan
