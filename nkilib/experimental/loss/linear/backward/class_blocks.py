# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The blocks of classes of a core: a short block, a device loop, and the blocks that remain behind the loop."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.backward.geometry import COPIES_OF_PROGRAM
from nkilib.experimental.loss.linear.backward.plan import BackwardPlan
from nkilib.experimental.loss.linear.shared.blocks import FEWEST_ITERATIONS, BlockPlan, Span, plan_blocks


@dataclass(frozen=True)
class ClassBlocks:
    """The blocks of classes of a core.

    Attributes:
        lead: the number of classes of the block before the loop; 0 if there is no such block.
        blocks: the blocks after it.
    """

    lead: int
    blocks: BlockPlan

    @property
    def has_first(self) -> bool:
        """Whether the first block is known when the kernel is built: it is before the loop, or there is no loop."""
        return self.lead > 0 or self.blocks.iterations == 0

    def instructions(self, plan: BackwardPlan, num_positions: int) -> int:
        """Return the approximate number of instructions of the program."""
        blocks = self.blocks
        sizes = [span.size for span in blocks.rest]
        if self.lead > 0:
            sizes.append(self.lead)
        if blocks.iterations > 0:
            sizes += [blocks.size] * blocks.blocks_per_iteration
        return sum(plan.instructions(num_positions, size) for size in sizes)


def planned_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """Return the usual blocks of a core, or those of the shortest program if the program of the usual ones is too long.

    All cores make the same choice, because the device requires the same loop on all of them.
    """
    cores = range(len(shares))
    usual = [_usual_blocks(plan, shares, number, num_positions) for number in cores]
    if all(blocks.instructions(plan, num_positions) <= plan.program_limit(num_positions) for blocks in usual):
        return usual[core]
    shortest = [_blocks_of_two_copies(plan, shares, number) for number in cores]
    return shortest[core] or usual[core]


def _blocks_of_two_copies(plan: BackwardPlan, shares: list[Span], core: int) -> ClassBlocks | None:
    """Return a loop of blocks that are one tile shorter than the largest, and one block behind it; None if impossible.

    Shares of cores differ by up to a tile. With blocks of one size the core with more classes would need a third copy.
    """
    tiles_per_block = plan.class_tiles - 1
    tiles = [div_ceil(share.size, PARTITIONS) for share in shares]
    iterations = (min(tiles) - 1) // tiles_per_block if tiles_per_block > 0 else 0
    if iterations < FEWEST_ITERATIONS or max(tiles) - iterations * tiles_per_block > plan.class_tiles:
        return None
    share, done = shares[core], iterations * tiles_per_block * PARTITIONS
    rest = Span(share.first + done, share.size - done)
    return ClassBlocks(0, BlockPlan(share.first, tiles_per_block * PARTITIONS, 1, iterations, (rest,)))


def _usual_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """Return the blocks of a core that take the least time.

    If the program has no room for all blocks, they are a loop and the blocks behind it. A short block is then before
    the loop, where there is room for it too: the first block stores its dX, which takes less time than adding it to
    the sum, and the last block of the loop can load a whole block for the one behind it.
    """
    most = plan.class_tiles * PARTITIONS
    allowed = plan.blocks_of_program(num_positions)
    unrolled = plan_blocks(shares, core, most, max(COPIES_OF_PROGRAM, int(allowed)))
    shortest = plan.instructions(num_positions, PARTITIONS) / plan.instructions(num_positions, most)
    if unrolled.iterations == 0 or allowed < COPIES_OF_PROGRAM + shortest:
        return ClassBlocks(0, unrolled)
    tiles = max(div_ceil(share.size, PARTITIONS) for share in shares)
    tiles_per_block = div_ceil(tiles, div_ceil(tiles, plan.class_tiles))
    lead = (tiles - 1) % tiles_per_block + 1
    if lead <= tiles_per_block // 2:
        # Too short for its transfers: the block behind the loop is shorter instead.
        lead = div_ceil(lead + tiles_per_block, 2)
    # A long program has room for the loop and a whole block behind it, and for a part of a block before it.
    lead = min(lead, max(1, int((allowed - COPIES_OF_PROGRAM) * tiles_per_block)))
    rests = [Span(share.first + lead * PARTITIONS, share.size - lead * PARTITIONS) for share in shares]
    bodies = max(COPIES_OF_PROGRAM, int(allowed - lead / tiles_per_block))
    return ClassBlocks(lead * PARTITIONS, plan_blocks(rests, core, tiles_per_block * PARTITIONS, bodies))


def plan_of_program(plan: BackwardPlan, shares: list[Span], num_positions: int) -> BackwardPlan:
    """Return the plan with blocks so short that the programs of all cores are within their limit.

    If no blocks are short enough, it is the plan of the shortest program.
    """

    def instructions(plan: BackwardPlan) -> int:
        return max(
            planned_blocks(plan, shares, core, num_positions).instructions(plan, num_positions)
            for core in range(len(shares))
        )

    shortest = plan
    while instructions(plan) > plan.program_limit(num_positions):
        if plan.class_tiles == 1:
            return shortest
        plan = plan.shorter()
        if instructions(plan) < instructions(shortest):
            shortest = plan
    return plan
