# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The classes of a core in a forward: their blocks in the order of the work, and the loads of their operands.

D features; X and W are the operands, X^T and W^T have features on partitions. :func:`divide_classes` divides the
vocabulary among the cores (:class:`ClassDivision`), and :class:`ClassSchedule` has the blocks of a core. X^T of a block
of positions stays on chip. W^T streams, one block of classes after another, with the bias and the class weights
(:class:`ClassStream`, which loads :class:`ClassTiles`). The last classes may be *shared*: both cores process them, each
core for its own tiles of positions (:func:`tiles_of_core`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.experimental.loss.linear.block_schedule import (
    WINDOW,
    Block,
    BlockSchedule,
    Span,
    Step,
    balanced_spans,
    plan_blocks,
)
from nkilib.experimental.loss.linear.launch import LinearOperands
from nkilib.experimental.loss.linear.operands import Matrix, Staging, load_broadcast
from nkilib.nki import nl

# The unit of classes in which a vocabulary is divided: a multiple of the 16 rows that DMA transposes at a time.
_GRAIN = 32

# Buffer slots of the blocks: one block is multiplied while the next one is loaded.
BUFFERS = 2
# The first load of a launch is split along the features, so that the first product starts before all of it is there.
_PIECES_OF_OPENING = 4


class ClassDivision(NamedTuple):
    """The division of the classes among the cores.

    Attributes:
        shares: the classes of each core, possibly none.
        shared: the blocks of classes that all cores work on at the end.
    """

    shares: list[Span]
    shared: tuple[Span, ...]


def divide_classes(vocab_size: int, shared: int, cores: int, class_block: int) -> ClassDivision:
    """Divide the classes into one range per core, as equal as units of 32 classes allow, and the shared classes.

    Args:
        vocab_size: the number of classes.
        shared: the least number of shared classes, of which there may be up to 127 more; 0 for none.
        cores: the number of cores.
        class_block: the largest number of classes of a shared block.
    """
    own = vocab_size if shared == 0 else (vocab_size - shared) // PARTITIONS * PARTITIONS
    last = Span(own, vocab_size - own)
    grains = div_ceil(own, _GRAIN)
    edges = [min(own, div_ceil(grains * core, cores) * _GRAIN) for core in range(cores + 1)]
    shares = [Span(first, end - first) for first, end in pairwise(edges)]
    return ClassDivision(shares, tuple(balanced_spans(last, class_block)) if last.size > 0 else ())


def _most_of_longest_iterations(shares: list[Span], class_block: int, bodies: int) -> int:
    """Return the ``most_bodies`` of :func:`plan_blocks` that gives the fewest iterations with at most ``bodies`` copies
    of the body.

    :func:`plan_blocks` reserves copies for blocks after the loop. If there are fewer such blocks than it reserves for,
    a ``most_bodies`` above ``bodies`` still gives at most ``bodies`` copies, and fewer, longer iterations.
    """
    best, fewest = bodies, None
    for most in range(bodies, 2 * bodies + 2):
        plans = [plan_blocks(shares, core, class_block, most, WINDOW) for core in range(len(shares))]
        iterations = plans[0].iterations
        fits = iterations > 0 and max(plan.bodies for plan in plans) <= bodies
        if fits and (fewest is None or iterations < fewest):
            best, fewest = most, iterations
    return best


@dataclass(frozen=True)
class ClassSchedule:
    """The blocks of classes that a core works on, in their order.

    - A device loop does not start before all issued loads have ended, including X of all positions. So one block comes
      before the loop; its products take as long as these loads.
    - At the end the cores need each other's statistics, and a swap takes some microseconds. Meanwhile both cores work
      on the shared last classes: each core computes all of them for its tiles of positions.

    Attributes:
        head: the block before the loop; None without a loop.
        plan: all other blocks of the core's own classes.
        shared: the blocks that all cores work on at the end.
    """

    head: Span | None
    plan: BlockSchedule
    shared: tuple[Span, ...]

    @classmethod
    def make(cls, division: ClassDivision, core: int, class_block: int, bodies: int) -> ClassSchedule:
        """Return the schedule of a core.

        Args:
            division: the classes of each core.
            core: the number of the core.
            class_block: the largest number of classes of a block.
            bodies: the largest number of copies of the body in the program.
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
        """The number of classes of the largest block; 0 if there are no blocks."""
        return max((self.plan.largest, *(span.size for span in self._single)), default=0)

    @property
    def sizes(self) -> set[int]:
        """The different numbers of classes of the blocks."""
        return self.plan.sizes | {span.size for span in self._single}

    @property
    def opening(self) -> Step | None:
        """The first step, whose loads are issued before the schedule runs; None without classes.

        Its block is the block before the loop, or without a loop the first block of the plan.
        """
        if self.head is not None:
            # The last number of a window, so that the loop begins with a window of its own.
            return Step(Block(*self.head), WINDOW - 1, self.head.size, self.plan.opening)
        opening = self.plan.opening
        return None if opening is None else Step(opening, 0, opening.size, None)

    @property
    def count(self) -> int:
        """The number of blocks of :attr:`plan`; the shared blocks are numbered from here on."""
        return self.plan.count

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block of the core's own classes; the last step also loads the first shared block."""

        def with_following(step: Step) -> None:
            is_last = step.number == self.count - 1 and self.shared
            body(replace(step, following=Block(*self.shared[0])) if is_last else step)

        if self.head is not None and self.opening is not None:
            body(self.opening)
        self.plan.run(with_following)

    def run_shared(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each shared block; the numbers of the steps continue those of the plan."""
        for number, span in enumerate(self.shared):
            following = Block(*self.shared[number + 1]) if number + 1 < len(self.shared) else None
            body(Step(Block(*span), self.count + number, span.size, following))

    @property
    def _single(self) -> tuple[Span, ...]:
        """The block before the loop, if any, and the shared blocks."""
        return self.shared if self.head is None else (self.head, *self.shared)


def tiles_of_core(tiles: int) -> range:
    """Return the numbers of the tiles of positions, out of ``tiles``, that this core processes in the shared
    classes.
    """
    core, cores = nl.program_id(), nl.num_programs()
    return range(div_ceil(tiles * core, cores), div_ceil(tiles * (core + 1), cores))


@dataclass(frozen=True)
class ClassTiles:
    """The operands of a block of classes.

    Attributes:
        weight_sbuf: W^T, [128, ceil(D / 128), classes].
        bias_sbuf, factors_sbuf: bias and class weights, float32 [128, classes], the same on all partitions; None if the
            launch does not need them.
    """

    weight_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor | None
    factors_sbuf: nl.NkiTensor | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool) -> ClassTiles:
        """Allocate the tiles for a block of ``classes`` classes, uninitialized.

        Args:
            launch: the operands of the kernel.
            classes: the number of classes.
            has_factors: whether the launch needs class weights.
        """
        shape = (PARTITIONS, div_ceil(launch.num_features, PARTITIONS), classes)

        def vector(is_needed: bool) -> nl.NkiTensor | None:
            return nl.ndarray((PARTITIONS, classes), dtype=nl.float32, buffer=nl.sbuf) if is_needed else None

        weight_sbuf = nl.ndarray(shape, dtype=launch.dtype, buffer=nl.sbuf)
        return cls(weight_sbuf, vector(launch.bias_hbm is not None), vector(has_factors))

    def part(self, start: int, count: int) -> ClassTiles:
        """Return views of classes ``start`` to ``start + count``."""

        def of(tile_sbuf: nl.NkiTensor | None) -> nl.NkiTensor | None:
            return None if tile_sbuf is None else tile_sbuf[:, start : start + count]

        return ClassTiles(self.weight_sbuf[:, :, start : start + count], of(self.bias_sbuf), of(self.factors_sbuf))


@dataclass(frozen=True)
class ClassStream:
    """The buffers into which W^T, biases and class weights of one block of classes after another are loaded.

    Attributes:
        launch: the operands of the kernel.
        buffers: the buffer slots, which the blocks use round-robin.
        staging: the memory in which W is cast if its dtype is not the dtype of the products.
    """

    launch: LinearOperands
    buffers: list[ClassTiles]
    staging: Staging | None

    @classmethod
    def make(cls, launch: LinearOperands, classes: int, has_factors: bool, staging: Staging | None) -> ClassStream:
        """Allocate buffers for blocks of at most ``classes`` classes; with ``has_factors`` also for class weights."""
        return cls(launch, [ClassTiles.make(launch, classes, has_factors) for _ in range(BUFFERS)], staging)

    def open(self, first: Step | None) -> None:
        """Load W^T, bias and class weights of the classes that the first step expects to find loaded."""
        if first is not None:
            loaded = first.block.part(0, first.loaded)
            self._load(loaded, self.buffers[first.number % BUFFERS], _PIECES_OF_OPENING)

    @staticmethod
    def share_a_buffer(step: Step, other: Step | None) -> bool:
        """Return whether the blocks of two steps use the same buffer; False if ``other`` is None."""
        return other is not None and (step.number - other.number) % BUFFERS == 0

    def advance(self, step: Step) -> ClassTiles:
        """Load what is missing of a step's block, and ``step.following``; return the operands of the step's block."""
        block, tiles = step.block, self.buffers[step.number % BUFFERS]
        missing = block.size - step.loaded
        if missing > 0:
            self._load(block.part(step.loaded, missing), tiles.part(step.loaded, missing), 1)
        if step.following is not None:
            self._load(step.following, self.buffers[(step.number + 1) % BUFFERS], 1)
        return tiles.part(0, block.size)

    def _load(self, block: Block, tiles: ClassTiles, pieces: int) -> None:
        launch = self.launch
        weight_hbm = block.of(launch.weight_hbm, 0 if launch.has_classes_first else 1)
        weight = Matrix(weight_hbm, not launch.has_classes_first, self.staging)
        depth = div_ceil(launch.num_features, PARTITIONS)
        tiles_per_piece = div_ceil(depth, pieces)
        for first in range(0, depth, tiles_per_piece):
            start, end = first * PARTITIONS, min((first + tiles_per_piece) * PARTITIONS, launch.num_features)
            part = weight.columns_of(start, end - start) if pieces > 1 else weight
            part.load_transposed(tiles.weight_sbuf[:, first : min(first + tiles_per_piece, depth), 0 : block.size])
        for vector_hbm, tile_sbuf in (
            (launch.bias_hbm, tiles.bias_sbuf),
            (launch.class_weight_hbm, tiles.factors_sbuf),
        ):
            if vector_hbm is not None and tile_sbuf is not None:
                load_broadcast(tile_sbuf[:, 0 : block.size], block.of(vector_hbm))
