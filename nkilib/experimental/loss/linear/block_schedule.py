# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of positions and classes into blocks and parts, which the body of a loop processes one after another.

*Rows* are the classes or positions that a core works on. A range of rows that is known when the kernel is built is a
:class:`Span`; a :class:`Block` may start at a loop variable. N is the number of positions, and D of features.

:func:`plan_blocks` divides the rows of a core into the blocks of a device loop and the blocks after it
(:class:`BlockSchedule`). The body of the loop is called with a :class:`Step`. The positions of a forward are split into
blocks (:class:`PositionSplit`, :func:`unrolled_positions`, :func:`looped_positions`); very many positions of a backward
are split into parts (:class:`PositionParts`, :func:`position_parts`). :func:`cut`, :func:`balanced_spans` and
:func:`shares_of_cores` divide rows into spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_positions
from nkilib.nki import nisa, nl

# Blocks of classes whose statistics are combined at once; an iteration of a loop has whole windows.
WINDOW = 4
# Gradients of more positions are computed in parts, because per-position values take SBUF. A part has at most so many
# positions, and so many elements of X: its program stays short enough for two copies.
POSITIONS_UNSPLIT = 65536
_POSITIONS_OF_PART, _ELEMENTS_OF_PART = 16384, 4096 * 8192
# Target ids that Vector looks for at a time, and how many of them there may be in each partition for all positions of a
# part: they stay, three numbers each.
IDS_OF_SEARCH, _IDS_OF_PART = 8, 2048
# A loop of fewer iterations costs more than it saves.
FEWEST_ITERATIONS = 2


class Span(NamedTuple):
    """A range of ``size`` rows that starts at row ``first``, both known when the kernel is built."""

    first: int
    size: int

    @property
    def end(self) -> int:
        """The row after the last one."""
        return self.first + self.size


def cut(size: int, most: int) -> list[Span]:
    """Return spans of ``most`` rows that cover ``size`` rows; the last span may be smaller."""
    return [Span(first, min(most, size - first)) for first in range(0, size, most)]


def shares_of_cores(size: int, cores: int) -> list[Span]:
    """Return the rows of each core: ``size`` rows in tiles of 128, divided evenly; the last cores may have none."""
    tiles = div_ceil(size, PARTITIONS)
    edges = [min(size, div_ceil(tiles * core, cores) * PARTITIONS) for core in range(cores + 1)]
    return [Span(first, last - first) for first, last in pairwise(edges)]


def balanced_spans(whole: Span, most: int) -> list[Span]:
    """Split ``whole`` into the fewest spans of at most ``most`` rows, as equal as whole tiles of 128 allow.

    Equal spans are best, because a short last span would cost as much traffic as a long one.

    Args:
        whole: the rows to split.
        most: the largest number of rows of a span, a multiple of 128.
    """
    tiles = div_ceil(whole.size, PARTITIONS)
    count = div_ceil(tiles, most // PARTITIONS)
    end = whole.first + whole.size
    edges = [min(end, whole.first + div_ceil(tiles * piece, count) * PARTITIONS) for piece in range(count + 1)]
    return [Span(first, last - first) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Block:
    """Some consecutive rows, classes or positions, that the body of a loop works on at a time.

    Attributes:
        first: the first row, a number or a variable of a device loop.
        size: the number of rows.
    """

    first: int | nisa.NkiScalar
    size: int

    def part(self, start: int, count: int) -> Block:
        """Return rows ``start`` to ``start + count`` of the block."""
        return Block(self.first + start, count)

    def of(self, tensor_hbm: nl.NkiTensor, dimension: int = 0) -> nl.NkiTensor:
        """Return the view of the block's rows, along dimension ``dimension`` of a tensor in HBM."""
        if isinstance(self.first, int):
            return tensor_hbm.slice(dimension, self.first, self.first + self.size)
        index = (*([slice(None)] * dimension), nl.ds(self.first, self.size))
        return tensor_hbm[index]


@dataclass(frozen=True)
class Step:
    """One call of the body of a loop: a block, and the state of the loads.

    Attributes:
        block: the block to work on.
        number: in the loop the number of the step within its iteration; after the loop the number of the block in the
            schedule. It selects the buffer slot.
        loaded: how many of the block's first rows are loaded already, by the previous step (:attr:`following`) or
            before the first step (:attr:`BlockSchedule.opening`).
        following: the first rows of the next block, whose loads this step issues; None if there are none. They are the
            whole next block, except at the end of an iteration: the next block may be the shorter one after the loop,
            so only as many tiles of 128 rows are loaded as both blocks have.
    """

    block: Block
    number: int
    loaded: int
    following: Block | None


def _block_or_none(first: int | nisa.NkiScalar, size: int) -> Block | None:
    return Block(first, size) if size > 0 else None


@dataclass(frozen=True)
class BlockSchedule:
    """The blocks of a core: a device loop of ``iterations`` iterations, and then the blocks ``rest``.

    An iteration has ``blocks_per_iteration`` blocks of ``size`` rows. A loop over equal blocks keeps a program small.
    NKI unrolls Python loops: a gradient of 128,256 classes would be half a million instructions. So equal blocks are
    iterations of ``nl.fori_loop``, of which the device has one copy, and only the blocks that remain at the end are
    unrolled. A body is written once, for a :class:`Step`; it does not matter to the body whether its block starts at a
    number or at a loop variable.

    The cost of a loop, modelled, not measured (docs/explanation/performance_model.md):

    - A loop takes 25 us to start and to end (``ModelParameters.loop_entry_us``).
    - All engines and queues synchronise between two iterations: nothing of the next iteration overlaps with the last
      results of this one, which costs 3 to 5 us. Iterations are therefore long; they have several blocks if a block is
      short. The first loads of the next block are issued before the synchronisation, see :attr:`Step.following`.
    - A store to an address that is a loop variable waits for the earlier stores to the same tensor, 2 us each, because
      in the model it may touch the whole tensor. One wide store for all classes of a block waits only once. Loads do
      not wait, and the model computes addresses for free (``register_us``).
    - ``dma_compute`` does not accept an address that is a loop variable.

    Attributes:
        first: the first row.
        size: the number of rows of a block in the loop.
        blocks_per_iteration: the number of blocks of an iteration.
        iterations: the number of iterations, the same for all cores; 0 without a loop.
        rest: the blocks after the loop; at least one if there is a loop.
    """

    first: int
    size: int
    blocks_per_iteration: int
    iterations: int
    rest: tuple[Span, ...]

    @property
    def count(self) -> int:
        """The number of blocks, in all iterations of the loop and after it."""
        return self.iterations * self.blocks_per_iteration + len(self.rest)

    @property
    def bodies(self) -> int:
        """The number of copies of the loop's body in the program."""
        return (self.blocks_per_iteration if self.iterations else 0) + len(self.rest)

    @property
    def largest(self) -> int:
        """The number of rows of the largest block; 0 if there are no blocks."""
        return max(self.size if self.iterations else 0, *(span.size for span in self.rest), 0)

    @property
    def sizes(self) -> set[int]:
        """The different sizes of the blocks, in rows."""
        return {span.size for span in self.rest} | ({self.size} if self.iterations else set())

    @property
    def opening(self) -> Block | None:
        """The rows that must be loaded before the first step; None if the core has no rows."""
        return _block_or_none(self.first, self._loaded_of_rest(0)) if self.rest else None

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` with the step of each block, in the device loop and after it."""
        if self.iterations > 0:
            nl.fori_loop(self.first, self.rest[0].first, self._iteration(body), self.blocks_per_iteration * self.size)
        done = self.iterations * self.blocks_per_iteration
        for number, span in enumerate(self.rest):
            following = Block(*self.rest[number + 1]) if number + 1 < len(self.rest) else None
            body(Step(Block(*span), done + number, self._loaded_of_rest(number), following))

    def _iteration(self, body: Callable[[Step], None]) -> Callable[[nisa.NkiScalar], None]:
        over_an_edge = self._loaded_of_rest(0)

        def iteration(first: nisa.NkiScalar) -> None:
            block, loaded = Block(first, self.size), over_an_edge
            for number in range(self.blocks_per_iteration):
                is_last = number + 1 == self.blocks_per_iteration
                next_first = block.first + self.size
                following = _block_or_none(next_first, over_an_edge if is_last else self.size)
                body(Step(block, number, loaded, following))
                block, loaded = Block(next_first, self.size), self.size

        return iteration

    def _loaded_of_rest(self, number: int) -> int:
        """Return how many rows of block ``number`` of ``rest`` are loaded before the step of this block.

        The last step of an iteration loads whole tiles, at most one block of the loop.
        """
        size = self.rest[number].size
        if self.iterations == 0 or number > 0:
            return size
        return min(self.size, size // PARTITIONS * PARTITIONS)


def _spans_behind_loop(span: Span, tiles_per_block: int) -> list[Span]:
    return balanced_spans(span, tiles_per_block * PARTITIONS) if span.size else []


def plan_blocks(shares: Sequence[Span], core: int, most: int, most_bodies: int, slots: int = 1) -> BlockSchedule:
    """Return the blocks of a core. All cores have the same loop, as the device requires.

    Args:
        shares: the rows of each core; every first row except that of the first core is a multiple of 128.
        core: the number of the core.
        most: the largest number of rows of a block, a multiple of 128.
        most_bodies: the largest number of copies of the body in the program, at least ``2 * slots``. If it is exactly
            ``2 * slots``, unequal shares may add one more copy. If it is more, at least half a block remains after the
            loop, so that half a block is loaded ahead at the end of each iteration. Up to ``most_bodies`` blocks are
            unrolled, without a loop.
        slots: the number of buffer slots that the body uses round-robin, by :attr:`Step.number`; the number of blocks
            of an iteration is a multiple of it.
    """
    tiles = [div_ceil(share.size, PARTITIONS) for share in shares]
    count = div_ceil(max(tiles), most // PARTITIONS)
    tiles_per_block = div_ceil(max(tiles), max(1, count))
    blocks_per_iteration = max(slots, (most_bodies - 1) // 2 // slots * slots)
    least_rest = div_ceil(tiles_per_block, 2) if most_bodies > 2 * blocks_per_iteration else 1
    iterations = (min(tiles) - least_rest) // (blocks_per_iteration * tiles_per_block) if count > most_bodies else 0
    share = shares[core]
    if iterations < FEWEST_ITERATIONS:
        return BlockSchedule(
            share.first,
            tiles_per_block * PARTITIONS,
            blocks_per_iteration,
            0,
            tuple(_spans_behind_loop(share, tiles_per_block)),
        )
    done = iterations * blocks_per_iteration * tiles_per_block * PARTITIONS
    rest = Span(share.first + done, share.size - done)
    return BlockSchedule(
        share.first,
        tiles_per_block * PARTITIONS,
        blocks_per_iteration,
        iterations,
        tuple(_spans_behind_loop(rest, tiles_per_block)),
    )


class PositionSplit(NamedTuple):
    """The split of the positions of a forward into ``whole`` blocks of ``size`` positions, and a rest.

    Attributes:
        size: the number of positions of a block, whole tiles of 128.
        whole: the number of blocks of that size.
        rest: the number of positions of a further block; may be 0.
        is_loop: whether the whole blocks are iterations of a device loop.
    """

    size: int
    whole: int
    rest: int
    is_loop: bool

    @property
    def tiles(self) -> int:
        """The number of tiles of 128 positions in a block."""
        return self.size // PARTITIONS

    @property
    def blocks(self) -> int:
        """The number of blocks, including the rest."""
        return self.whole + (self.rest > 0)

    @property
    def copies(self) -> int:
        """The number of copies of the code for a block of positions in the program."""
        return 1 + (self.rest > 0) if self.is_loop else self.blocks


def unrolled_positions(num_positions: int, position_block: int) -> PositionSplit:
    """Return the split into nearly equal blocks of at most ``position_block`` positions, whole tiles, without a
    loop.
    """
    tiles = div_ceil(num_positions, PARTITIONS)
    count = div_ceil(tiles, min(position_block // PARTITIONS, tiles))
    size = div_ceil(tiles, count) * PARTITIONS
    return PositionSplit(size, *divmod(num_positions, size), False)


def looped_positions(unrolled: PositionSplit, num_positions: int, is_long: bool) -> PositionSplit:
    """Return ``unrolled`` as a device loop if its program is too long or there are very many positions, else unchanged.

    Args:
        unrolled: the split without a loop.
        num_positions: N.
        is_long: whether the unrolled program is too long.
    """
    has_many = num_positions > limited_positions(POSITIONS_UNSPLIT)
    return unrolled._replace(is_loop=unrolled.whole > 1 and (is_long or has_many))


def searched_ids(ids: int) -> int:
    """Return the number of target ids per position, rounded up to a multiple of the eight that one search finds."""
    return div_ceil(ids, IDS_OF_SEARCH) * IDS_OF_SEARCH


class PositionParts(NamedTuple):
    """The split of the positions of a backward into ``whole`` parts of ``size`` positions, and a rest.

    The gradients are computed one part after another.

    Attributes:
        size: the number of positions of a part; whole tiles if there are several parts.
        whole: the number of parts of that size.
        rest: the number of positions of a further part; may be 0.
    """

    size: int
    whole: int
    rest: int

    @property
    def is_split(self) -> bool:
        """Whether there are several parts."""
        return self.whole + (self.rest > 0) > 1

    @property
    def copies(self) -> int:
        """The number of copies of the code for a part in the program; all whole parts are one device loop."""
        return 1 + (self.rest > 0)


def position_parts(
    num_positions: int, num_features: int, ids: int = 1, unsplit: int = POSITIONS_UNSPLIT
) -> PositionParts:
    """Return the parts that the positions of a backward are split into, as equal as tiles of 128 positions allow.

    There is one part for at most ``unsplit`` positions, else the fewest parts that are short enough.

    Args:
        num_positions: N.
        num_features: D.
        ids: the number of target ids of a position; with several ids a part has fewer positions.
        unsplit: the largest number of positions that are not split.
    """
    limit = limited_positions(unsplit)
    if ids > 1:
        limit = min(limit, _IDS_OF_PART // searched_ids(ids) * PARTITIONS)
    if num_positions <= limit:
        return PositionParts(num_positions, 1, 0)
    most = max(1, min(_POSITIONS_OF_PART, _ELEMENTS_OF_PART // num_features, limit) // PARTITIONS)
    tiles = div_ceil(num_positions, PARTITIONS)
    size = div_ceil(tiles, div_ceil(tiles, most)) * PARTITIONS
    return PositionParts(size, *divmod(num_positions, size))
