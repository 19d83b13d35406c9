# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The plan of a backward: its buffers in SBUF, and the blocks of classes that a core works on.

N positions, D features, V classes; G is the gradient of the logits; dX, dW and db are the gradients of X, W and the
bias. A *round* is the work on one block of classes with one block of positions, a *stripe* is a range of features, and
a *copy* is one occurrence of the instructions of a block in the program.

The backward holds one block of G in SBUF, of some positions and some classes. The buffers (:class:`BackwardPlan`) take
the memory that the block leaves; :func:`require_fitting_plan` checks that it suffices. The blocks of classes
(:class:`ClassBlocks`) are so short that the program keeps its limit of instructions (:func:`plan_of_program`,
:func:`planned_blocks`). Plans are computed before anything is traced, from the memory and instructions of
:mod:`.geometry`.

Some programs have no room for a second copy of their body. They have a single loop over all classes of a core
(:class:`ClassCover`, :func:`planned_cover`), with blocks of one size. If these blocks do not fill a core's classes
exactly, they reach into the classes of the other core. Both cores then write the same dW and db of the classes that
they share, and each core adds only its own classes to dX. So V need not be a multiple of a block or of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_piece_tiles, limited_resident_features, usable_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.experimental.loss.linear.backward.geometry import (
    COPIES_OF_PROGRAM,
    FEWEST_RESULTS,
    GRADIENT_SLOTS,
    LEAST_ROOM,
    LOGIT_BANKS,
    POSITIONS_OF_PROGRAM,
    SLOTS_OF_MEMORY,
    BackwardBuffers,
    BackwardGeometry,
    BackwardSizes,
)
from nkilib.experimental.loss.linear.block_schedule import (
    FEWEST_ITERATIONS,
    Block,
    BlockSchedule,
    PositionParts,
    Span,
    Step,
    plan_blocks,
)
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear.logits import CLASSES_OF_TILE
from nkilib.nki import nisa, nl

# Tiles of positions that are loaded at a time.
_TILES_OF_PIECE = 4
# Tiles of X^T that are loaded ahead where there is room: tiles of few features are used up before the next one arrives.
_INPUT_TILES_MOST = 4
# Where W^T streams: the number of slices in memory.
_FEWEST_SLICES, _SLICES_MOST = 4, 8
# Where X^T streams too. Slices of both move 1 / classes of a tile + 1 / positions of a batch bytes for a column of
# Tensor, in units in which at 1 / 240 the DMA engines take as long as Tensor.
_SLICES_OF_BOTH_MOST, _STREAMED_SIZE = 6, 240.0
# With more features a program has no room for blocks of classes that are long enough.
_FEATURES_OF_BOTH_MOST = 8192
# Widths of a tile of logits to try where W^T streams, the widest first. [D, V] takes the widest alone: there tiles of
# dW are as wide as those of logits.
_STREAMED_CLASSES = (CLASSES_OF_TILE, 384, 256)
# Where W^T streams, every batch of tiles of positions reads it again. Two batches are modelled to take 0.79 to 1.03 of
# the time of a W^T that stays; more were not modelled.
_BATCHES_MOST = 2
# W^T streams if there are more features than that, in 16 bits: W^T of a block of classes leaves room for little else.
# Tensor takes four times as long for float32, where transfers do not matter.
_FEATURES_OF_RESIDENT_WEIGHT = 6144
# The largest number of opened tiles, where there is room: Scalar loads a table of functions to open tiles, and one to
# compute all but one of them. With more tiles than banks it would wait for the products: two operand pairs have the
# fewest.
_OPENED_MOST = LOGIT_BANKS + 1
# Steps of :meth:`BackwardPlan._grown` that give buffers to operands that are not kept.
_STEPS_OF_STREAMS = 9
# Classes of a tile of kept logits, for which no product has to fit a bank of PSUM.
_CLASSES_OF_KEPT_TILE = 1024
# Features of a stripe for [D, V], so many that sums of dW for 768 classes fit the banks of PSUM.
_STRIPE_OF_FEATURES = 384


def _tiles_of_piece() -> int:
    return limited_piece_tiles(_TILES_OF_PIECE)


def _more_slices() -> list[dict[str, int]]:
    return [{"weight_slices": slices} for slices in range(_FEWEST_SLICES + 1, _SLICES_OF_BOTH_MOST + 1)]


@dataclass(frozen=True)
class BackwardPlan(BackwardGeometry):
    """The plan of a backward launch, with as many buffers as fit and are of use."""

    @classmethod
    def of(
        cls, sizes: BackwardSizes, position_block: int, class_block: int, available_bytes: int | None = None
    ) -> BackwardPlan:
        """Return the plan for blocks of at most ``position_block`` positions and ``class_block`` classes.

        :attr:`fits` of the result is False if not even the fewest buffers fit.

        Args:
            sizes: the sizes and options of the launch.
            position_block, class_block: the largest sizes of a block.
            available_bytes: the usable bytes of a partition; None for those of the target.
        """
        position_block = min(position_block, div_ceil(sizes.num_positions, PARTITIONS) * PARTITIONS)
        class_block = min(class_block, div_ceil(sizes.vocab_size, PARTITIONS) * PARTITIONS)
        position_blocks = div_ceil(sizes.num_positions, position_block)
        most = _CLASSES_OF_KEPT_TILE if sizes.keeps_logits and sizes.has_classes_first else CLASSES_OF_TILE
        classes_of_tile = div_ceil(class_block, div_ceil(class_block, most))
        least = cls(
            sizes.num_features,
            sizes.itemsize,
            position_block,
            class_block,
            classes_of_tile,
            stripe=min(sizes.num_features, CLASSES_OF_TILE if sizes.has_classes_first else _STRIPE_OF_FEATURES),
            buffers=BackwardBuffers(),
            adds_to_weight=sizes.adds_to_weight,
            weight_sums=sizes.adds_to_weight + (position_blocks > 1),
            result_itemsize=FLOAT32_BYTES if sizes.adds_to_weight else sizes.loaded_itemsize,
            has_classes_first=sizes.has_classes_first,
            position_blocks=position_blocks,
            option_bytes=sizes.option_bytes(class_block, classes_of_tile),
            needs=sizes.needs,
            keeps_logits=sizes.keeps_logits,
            program_share=sizes.program_share,
            staging_bytes=sizes.staging_bytes,
            available_bytes=usable_sbuf_bytes() if available_bytes is None else available_bytes,
            further=sizes.further,
        )
        return least._grown()

    def _grown(self) -> BackwardPlan:
        """Return the plan with more buffers; the buffers that matter most are added first."""
        tiles = self.position_tiles
        stripes = div_ceil(self.features, self.stripe)
        steps: list[dict[str, int]] = [
            {"input_tiles": min(SLOTS_OF_MEMORY, tiles)},
            {"weight_stripes": 2},
            {"pieces": 3},
            {"tiles_of_piece": min(2, tiles)},
            {"input_results": 4},
            {"tiles_of_piece": min(_tiles_of_piece(), tiles)},
            {"input_results": 6},
            {"weight_results": 2},
            {"input_results": 8},
            {"input_tiles": min(_INPUT_TILES_MOST, tiles)},
        ]
        if self.position_blocks == 1:
            pieces = div_ceil(tiles, _tiles_of_piece())
            steps.append({"pieces": pieces * stripes, "tiles_of_piece": min(tiles, _tiles_of_piece())})
            if not self.keeps_logits:
                steps.append({"input_tiles": tiles})
        streaming = self._streaming(steps) or self._streaming_both(steps)
        if streaming is not None:
            return streaming
        if self.needs.opened > 0 and not self.further:
            steps += [{"opened": opened} for opened in range(GRADIENT_SLOTS + 1, _OPENED_MOST + 1)]
        plan = self._with(steps)
        if plan.is_ample or self.keeps_logits:
            return plan
        sharing = {"shares_memory": 1, "input_tiles": min(SLOTS_OF_MEMORY, tiles)}
        alternative = replace(self, buffers=replace(self.buffers, **sharing))._with(steps[1:_STEPS_OF_STREAMS])
        return alternative if alternative.is_ample or not plan.fits else plan

    def _streaming(self, steps: list[dict[str, int]]) -> BackwardPlan | None:
        """Return the plan whose W^T streams for the logits (:class:`.streams.WeightSlices`); None if it does not fit or
        is of no use.

        Tiles of logits have the most classes with which the plan fits and the other streams have enough buffers.
        """
        is_of_use = (
            self.features > limited_resident_features(_FEATURES_OF_RESIDENT_WEIGHT)
            and self.itemsize < FLOAT32_BYTES
            and self.batches_of_tiles <= _BATCHES_MOST
        )
        if self.keeps_logits or not is_of_use or self.position_blocks > 1 or self.further:
            return None
        for most in _STREAMED_CLASSES if self.has_classes_first else _STREAMED_CLASSES[:1]:
            plan = self._streaming_tiles([step for step in steps if "input_tiles" not in step], most)
            buffers = plan.buffers
            is_enough = buffers.weight_stripes > 1 and buffers.input_results > FEWEST_RESULTS
            if plan.fits and is_enough and buffers.tiles_of_piece >= min(2, self.position_tiles):
                return plan
        return None

    def _streaming_tiles(self, steps: list[dict[str, int]], most: int) -> BackwardPlan:
        """Return the plan whose W^T streams for tiles of at most ``most`` classes, even if it does not fit.

        ``steps`` are the numbers of buffers that :meth:`_with` tries to add.
        """
        least = replace(
            self,
            classes_of_tile=div_ceil(self.class_block, div_ceil(self.class_block, most)),
            buffers=replace(self.buffers, weight_slices=_FEWEST_SLICES, input_tiles=self.position_tiles),
        )
        return least._with([*steps, {"weight_slices": _SLICES_MOST}])

    def _streaming_both(self, steps: list[dict[str, int]]) -> BackwardPlan | None:
        """Return the plan whose X^T and W^T both stream in the first half of a round; None if it does not fit or is of
        no use.

        The alternative, a W^T that stays, is loaded in the second half, when dX, dW, X and W already keep the DMA
        engines busy, and it leaves room only for shorter blocks. Streaming is of no use for a W of [D, V], whose slices
        would be short rows; for a W of another dtype, whose slices take twice the bytes; and under a cap, where tiles
        of logits are opened in groups before they leave their banks.
        """
        is_plain = self.has_classes_first and self.staging_bytes == 0 and not self.further
        is_plain = is_plain and self.needs.opened == 0 and self.needs.place_bytes == 0
        resident = limited_resident_features(_FEATURES_OF_RESIDENT_WEIGHT)
        is_deep = resident < self.features <= _FEATURES_OF_BOTH_MOST and self.itemsize < FLOAT32_BYTES
        is_long = self.position_blocks > 1 or self.batches_of_tiles > _BATCHES_MOST
        if self.keeps_logits or not is_plain or not is_deep or not is_long:
            return None
        streams = {"weight_slices": _FEWEST_SLICES, "streams_inputs": 1, "input_tiles": 0}
        least = replace(self, buffers=replace(self.buffers, **streams))
        plan = least._with([step for step in steps if "input_tiles" not in step] + _more_slices())
        is_quick = 1.0 / plan.classes_of_tile + 1.0 / (plan.tiles_of_batch * PARTITIONS) <= 1.0 / _STREAMED_SIZE
        return plan if is_quick and plan.has_room and plan._has_ample_streams else None

    @property
    def is_ample(self) -> bool:
        """Whether the plan fits, and has enough buffers to load all streams ahead."""
        return self._has_ample_streams and self.buffers.input_tiles >= min(SLOTS_OF_MEMORY, self.position_tiles)

    @property
    def _has_ample_streams(self) -> bool:
        """Whether the plan fits, and has enough buffers to load all streams except X^T ahead."""
        buffers, tiles = self.buffers, self.position_tiles
        return (
            self.fits
            and buffers.weight_stripes > 1
            and buffers.input_results > FEWEST_RESULTS
            and buffers.tiles_of_piece >= min(_tiles_of_piece(), tiles)
        )

    def _with(self, steps: list[dict[str, int]]) -> BackwardPlan:
        """Return the plan with the numbers of buffers of ``steps``, tried in this order; steps that do not fit are left
        out.
        """
        plan = self
        for step in steps:
            larger = replace(plan, buffers=replace(plan.buffers, **step))
            if larger.fits:
                plan = larger
        return plan


def require_fitting_plan(function: str, tiling: LinearTiling, plan: BackwardPlan) -> None:
    """Check that the blocks of a plan fit in SBUF and PSUM.

    Raises:
        AssertionError: if they do not; the message names function, requirement, value and remedy.
    """
    require(
        plan.weight_group[0] > 0,
        f"{function}: class_block must be at most {plan.most_classes} with weight_layout='dv', whose tiles of dW have "
        f"all classes of a block in banks of PSUM, got {tiling.class_block}; pass None, or less",
    )
    require(
        plan.fits,
        f"{function}: position_block {tiling.position_block} and class_block {tiling.class_block} must fit a "
        f"partition of SBUF, {usable_sbuf_bytes()} bytes, and take {plan.sbuf_bytes}; pass None for both, or "
        f"smaller ones",
    )


def program_share(parts: PositionParts) -> float:
    """Return the fraction of a program's allowed instructions that the backward of one part of the positions may use.

    All copies of the backward in the program share the allowed instructions. A launch that is split is allowed as many
    as a launch of more than :data:`.geometry.POSITIONS_OF_PROGRAM` positions, even if its parts have fewer positions.
    """
    has_few = parts.size <= POSITIONS_OF_PROGRAM
    return (2.0 if parts.is_split and has_few else 1.0) / parts.copies


@dataclass(frozen=True)
class ClassBlocks:
    """The blocks of classes of a core.

    Attributes:
        lead: the number of classes of the block before the device loop; 0 if there is no such block.
        blocks: the blocks in the loop and after it.
    """

    lead: int
    blocks: BlockSchedule

    @property
    def has_first(self) -> bool:
        """Whether the core's first block is known when the kernel is built: there is a block before the loop, or no
        loop.
        """
        return self.lead > 0 or self.blocks.iterations == 0

    def instructions(self, plan: BackwardPlan, num_positions: int) -> int:
        """Return the approximate number of instructions of the program that has these blocks.

        Args:
            plan: the plan of the backward.
            num_positions: N.
        """
        blocks = self.blocks
        sizes = [span.size for span in blocks.rest]
        if self.lead > 0:
            sizes.append(self.lead)
        if blocks.iterations > 0:
            sizes += [blocks.size] * blocks.blocks_per_iteration
        return sum(plan.instructions(num_positions, size) for size in sizes)


def _blocks_of_two_copies(plan: BackwardPlan, shares: list[Span], core: int) -> ClassBlocks | None:
    """Return a loop over blocks that are one tile shorter than the largest, and one block after it; None if impossible.

    The cores' numbers of classes differ by up to a tile. With blocks of one size, the core with more classes would need
    a third copy of the instructions.
    """
    tiles_per_block = plan.class_tiles - 1
    tiles = [div_ceil(share.size, PARTITIONS) for share in shares]
    iterations = (min(tiles) - 1) // tiles_per_block if tiles_per_block > 0 else 0
    if iterations < FEWEST_ITERATIONS or max(tiles) - iterations * tiles_per_block > plan.class_tiles:
        return None
    share, done = shares[core], iterations * tiles_per_block * PARTITIONS
    rest = Span(share.first + done, share.size - done)
    return ClassBlocks(0, BlockSchedule(share.first, tiles_per_block * PARTITIONS, 1, iterations, (rest,)))


def _usual_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """Return the blocks of a core that take the least time.

    If the program has no room for the instructions of all blocks, there is a device loop with blocks after it. If there
    is room for a further copy, a short block comes before the loop: this block stores its dX, which takes less time
    than adding dX to the sum.
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


def planned_blocks(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassBlocks:
    """Return the fastest blocks of a core whose program is within its limit of instructions, else the blocks of the
    shortest program.

    All cores make the same choice, because the device requires the same loop on all of them.

    Args:
        plan: the plan of the backward.
        shares: the classes of each core.
        core: the number of the core.
        num_positions: N.
    """
    cores = range(len(shares))
    usual = [_usual_blocks(plan, shares, number, num_positions) for number in cores]
    if all(blocks.instructions(plan, num_positions) <= plan.program_limit(num_positions) for blocks in usual):
        return usual[core]
    shortest = [_blocks_of_two_copies(plan, shares, number) for number in cores]
    return shortest[core] or usual[core]


def plan_of_program(plan: BackwardPlan, shares: list[Span], num_positions: int) -> BackwardPlan:
    """Return the plan with blocks so short that the programs of all cores are within their limit of instructions.

    If no blocks are short enough, it is the plan of the shortest program.

    Args:
        plan: the plan with the longest blocks.
        shares: the classes of each core.
        num_positions: N.
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


@dataclass(frozen=True)
class ClassCover:
    """The classes that the single loop of a core covers.

    Attributes:
        first: the first class.
        size: the number of classes of a block, a multiple of 128.
        iterations: the number of iterations, the same for all cores.
        own: the classes that belong to this core.
        shared: the number of classes that the loops of both cores cover.
    """

    first: int
    size: int
    iterations: int
    own: Span
    shared: int

    @property
    def is_exact(self) -> bool:
        """Whether the loop covers exactly the classes that belong to this core."""
        return self.first == self.own.first and self.iterations * self.size == self.own.size

    def synchronise(self, gradients_hbm: list[nl.NkiTensor]) -> None:
        """Wait for the other core at a barrier, at the end of an iteration, if there are shared classes.

        One core writes the shared classes in its first iterations, the other core in its last.

        Args:
            gradients_hbm: the gradients that both cores write, dW and db.
        """
        if self.shared > 0:
            for gradient_hbm in gradients_hbm:
                nisa.core_barrier(gradient_hbm, tuple(range(nl.num_programs())))

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block of the loop; nothing of a block is loaded ahead."""

        def iteration(first: nisa.NkiScalar) -> None:
            body(Step(Block(first, self.size), 0, 0, None))

        nl.fori_loop(self.first, self.first + self.iterations * self.size, iteration, self.size)


def planned_cover(plan: BackwardPlan, shares: list[Span], core: int, num_positions: int) -> ClassCover | None:
    """Return the single loop of a core; None if the program has room for several copies of the body, or no loop fits.

    The loop needs more than one block of positions, and at least as many classes in the vocabulary as one loop covers.
    If the cores share classes, dW must not be added to an earlier sum, because both cores would add it. There must also
    be enough iterations for the cores to write the shared classes one after the other.

    Args:
        plan: the plan of the backward.
        shares: the classes of each core.
        core: the number of the core.
        num_positions: N.
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
    if iterations < FEWEST_ITERATIONS or covered > vocab_size:
        return None
    shared = len(shares) * covered - vocab_size
    if shared > 0 and (plan.adds_to_weight or iterations < 2 * div_ceil(shared, size)):
        return None
    share = shares[core]
    return ClassCover(min(share.first, vocab_size - covered), size, iterations, share, shared)
