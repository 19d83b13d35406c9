# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Blocks of classes or of positions, and the loop over them that keeps a program small.

NKI unrolls the loops of Python: a gradient of 128,256 classes would be half a million instructions. So equal blocks are
iterations of ``nl.fori_loop``, of which the device has one copy, and only what is left over at the end is unrolled. A
body is written once, for a :class:`Step`; whether its block starts at a number or at a value that the loop counts does
not matter to it.

What a loop costs, modelled, not measured (docs/performance-model.md):

- 25 us where it starts and ends (``ModelParameters.loop_entry_us``).
- All engines and queues meet between two iterations: nothing of the next one overlaps with the last results of this
  one, 3 to 5 us. Trips are therefore long, of several blocks where a block is short. What the next block loads first is
  loaded before the edge, see :attr:`Step.following`.
- A store to an address that the loop counts waits for the ones before it to the same tensor, 2 us each, since the model
  takes it to reach the whole tensor. One wide store for all classes of a block costs that once. Loads do not wait, and
  addresses are computed for nothing (``register_us``).
- ``dma_compute`` takes no such address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

# A loop of fewer trips costs more than it saves.
FEWEST_TRIPS = 2


class Span(NamedTuple):
    """``size`` rows from ``first`` on, both known when the kernel is built."""

    first: int
    size: int

    @property
    def end(self) -> int:
        """The row after the last one."""
        return self.first + self.size


def cut(size: int, most: int) -> list[Span]:
    """``size`` rows in pieces of ``most``; the last one may be smaller."""
    return [Span(first, min(most, size - first)) for first in range(0, size, most)]


def shares_of_cores(size: int, cores: int) -> list[Span]:
    """``size`` rows split over the cores in tiles of 128, as evenly as these can be; the last cores may have none."""
    tiles = div_ceil(size, PARTITIONS)
    edges = [min(size, div_ceil(tiles * core, cores) * PARTITIONS) for core in range(cores + 1)]
    return [Span(first, last - first) for first, last in pairwise(edges)]


def balanced_spans(whole: Span, most: int) -> list[Span]:
    """``whole`` in as few pieces of at most ``most`` rows as can be, of sizes as equal as whole tiles of 128 are.

    A short last piece would cost the traffic of a long one.

    Args:
        most: a multiple of 128.
    """
    tiles = div_ceil(whole.size, PARTITIONS)
    count = div_ceil(tiles, most // PARTITIONS)
    end = whole.first + whole.size
    edges = [min(end, whole.first + div_ceil(tiles * piece, count) * PARTITIONS) for piece in range(count + 1)]
    return [Span(first, last - first) for first, last in pairwise(edges)]


@dataclass(frozen=True)
class Block:
    """Some rows that a body works on at a time.

    Attributes:
        first: the first one, a number or what a loop of the device counts.
        size: how many.
    """

    first: int | nisa.NkiScalar
    size: int

    def part(self, start: int, count: int) -> Block:
        """Rows ``start`` to ``start + count`` of it."""
        return Block(self.first + start, count)

    def of(self, tensor_hbm: nl.NkiTensor, dimension: int = 0) -> nl.NkiTensor:
        """The view of its rows, which are dimension ``dimension`` of a tensor in HBM."""
        if isinstance(self.first, int):
            return tensor_hbm.slice(dimension, self.first, self.first + self.size)
        index = (*([slice(None)] * dimension), nl.ds(self.first, self.size))
        return tensor_hbm[index]


@dataclass(frozen=True)
class Step:
    """What a body does at a time: a block, of which the step before has begun the first loads.

    Attributes:
        block: to work on.
        number: counts the steps of a trip, and goes on behind the loop: which of several buffers to take.
        loaded: how many of its first rows the step before had as :attr:`following`, or :attr:`BlockPlan.opening` has.
        following: the first rows of the next block, whose loads this step starts: all of them in the midst of a trip;
            at its end so many whole tiles of 128 as the block behind the loop has too. None without any.
    """

    block: Block
    number: int
    loaded: int
    following: Block | None


@dataclass(frozen=True)
class BlockPlan:
    """How a core goes through its rows: ``trips`` times ``blocks_per_trip`` blocks of ``size`` rows, and then the rest.

    Attributes:
        first: its first row.
        size: rows of a block in the loop.
        blocks_per_trip: of the loop.
        trips: how often it runs, the same for all cores; 0 without a loop.
        rest: the blocks behind it; at least one behind a loop.
    """

    first: int
    size: int
    blocks_per_trip: int
    trips: int
    rest: tuple[Span, ...]

    @property
    def count(self) -> int:
        """How many blocks."""
        return self.trips * self.blocks_per_trip + len(self.rest)

    @property
    def bodies(self) -> int:
        """How many copies of the body the program has."""
        return (self.blocks_per_trip if self.trips else 0) + len(self.rest)

    @property
    def largest(self) -> int:
        """Rows of the largest block; 0 without any."""
        return max(self.size if self.trips else 0, *(span.size for span in self.rest), 0)

    @property
    def sizes(self) -> set[int]:
        """Of the blocks."""
        return {span.size for span in self.rest} | ({self.size} if self.trips else set())

    @property
    def opening(self) -> Block | None:
        """What is loaded before the first step, its :attr:`Step.loaded` rows; None where there is none."""
        return _block_or_none(self.first, self._loaded_of_rest(0)) if self.rest else None

    def run(self, body: Callable[[Step], None]) -> None:
        """Call ``body`` for each block."""
        if self.trips > 0:
            nl.fori_loop(self.first, self.rest[0].first, self._trip(body), self.blocks_per_trip * self.size)
        done = self.trips * self.blocks_per_trip
        for number, span in enumerate(self.rest):
            following = Block(*self.rest[number + 1]) if number + 1 < len(self.rest) else None
            body(Step(Block(*span), done + number, self._loaded_of_rest(number), following))

    def _trip(self, body: Callable[[Step], None]) -> Callable[[nisa.NkiScalar], None]:
        """The body of the loop: ``blocks_per_trip`` blocks."""
        over_an_edge = self._loaded_of_rest(0)

        def trip(first: nisa.NkiScalar) -> None:
            block, loaded = Block(first, self.size), over_an_edge
            for number in range(self.blocks_per_trip):
                is_last = number + 1 == self.blocks_per_trip
                next_first = block.first + self.size
                following = _block_or_none(next_first, over_an_edge if is_last else self.size)
                body(Step(block, number, loaded, following))
                block, loaded = Block(next_first, self.size), self.size

        return trip

    def _loaded_of_rest(self, number: int) -> int:
        """Rows of a block of the rest that the step before has loaded: whole tiles, a block at most, of a trip."""
        size = self.rest[number].size
        if self.trips == 0 or number > 0:
            return size
        return min(self.size, size // PARTITIONS * PARTITIONS)


def plan_blocks(shares: Sequence[Span], core: int, most: int, most_bodies: int, turns: int = 1) -> BlockPlan:
    """The blocks of a core. All cores have the same loop, as the device requires.

    Args:
        shares: the rows of each core; a first row that is not the first of all is a multiple of 128.
        core: which of them.
        most: rows of a block, a multiple of 128.
        most_bodies: how many copies of the body the program may have, at least ``2 * turns``, and one more may come of
            unlike shares there. So many blocks and fewer are unrolled. From ``1 + 2 * turns`` on at least half a block
            is left behind the loop, so that half a block is loaded before each edge.
        turns: how many buffers the body takes in turn by :attr:`Step.number`; a trip has a multiple of that.
    """
    tiles = [div_ceil(share.size, PARTITIONS) for share in shares]
    count = div_ceil(max(tiles), most // PARTITIONS)
    each = div_ceil(max(tiles), max(1, count))
    blocks_per_trip = max(turns, (most_bodies - 1) // 2 // turns * turns)
    least_rest = div_ceil(each, 2) if most_bodies > 2 * blocks_per_trip else 1
    trips = (min(tiles) - least_rest) // (blocks_per_trip * each) if count > most_bodies else 0
    share = shares[core]
    if trips < FEWEST_TRIPS:
        return BlockPlan(share.first, each * PARTITIONS, blocks_per_trip, 0, tuple(_rest(share, each)))
    done = trips * blocks_per_trip * each * PARTITIONS
    rest = Span(share.first + done, share.size - done)
    return BlockPlan(share.first, each * PARTITIONS, blocks_per_trip, trips, tuple(_rest(rest, each)))


def _block_or_none(first: int | nisa.NkiScalar, size: int) -> Block | None:
    return Block(first, size) if size > 0 else None


def _rest(span: Span, each: int) -> list[Span]:
    return balanced_spans(span, each * PARTITIONS) if span.size else []
