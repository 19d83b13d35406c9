# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The layout of the sequences and states of a batch on partitions, and the chunks of time.

The states of a sequence are blank, label, blank, ..., blank. Pair i is blank i and the label beside it. The
pairs of a sequence lie in up to four blocks, each in partitions of its own, so that instructions are short.
A block needs the values of one label of its neighbour at the previous time step; therefore it runs a chunk
of time behind its neighbour. A wavefront is the work that is done together: one chunk of time in each
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.nki import nisa, nl

# Two pairs more than labels: one for the last blank, and one for the label behind it, from which the betas start.
_FURTHER_PAIRS = 2
# Blocks, and the partitions from one to the next: instructions start at multiples of 32.
_STRIDES = {4: 32, 3: 32, 2: 64, 1: 128}
# Steps of a chunk at most: longer chunks spare few loads, and make a longer program.
CHUNK_MAX = 32


class BatchShape(NamedTuple):
    """The shape of the log-probabilities: T, N and C."""

    steps: int
    sequences: int
    classes: int


class Layout(NamedTuple):
    """The number of sequences of a group, of blocks per sequence, and of pairs per block."""

    rows: int
    blocks: int
    pairs: int


@dataclass(frozen=True)
class Plan:
    """The sizes of a launch. They depend on shapes alone, not on the number of cores.

    Attributes:
        steps, sequences, classes, labels: T, N, C and S.
        rows: the number of sequences of a group, which lie in adjacent partitions; the last group may have
            fewer.
        blocks: the number of blocks into which the pairs of a sequence are divided.
        pairs: the number of pairs of a block.
        chunk: time steps that are loaded and stored at a time.
    """

    steps: int
    sequences: int
    classes: int
    labels: int
    rows: int
    blocks: int
    pairs: int
    chunk: int

    @classmethod
    def make(cls, shape: BatchShape, labels: int, fewest_pairs: int, chunk: int) -> Plan:
        """Choose the sizes for log-probabilities [T, N, C] and at most ``labels`` labels.

        Args:
            fewest_pairs: the smallest number of pairs of a block; a sequence is not split into smaller blocks.
            chunk: the largest number of steps of a chunk.
        """
        layout = _layout(shape.sequences, labels, fewest_pairs)
        return cls(*shape, labels, *layout, min(chunk, shape.steps))

    @property
    def stride(self) -> int:
        """The distance, in partitions, from the start of one block to the start of the next."""
        return _STRIDES[self.blocks]

    @property
    def states(self) -> int:
        """The number of states of a sequence, ``2 S + 1``."""
        return 2 * self.labels + 1

    @property
    def chunks(self) -> int:
        """The number of chunks of time."""
        return div_ceil(self.steps, self.chunk)

    @property
    def wavefronts(self) -> int:
        """The number of wavefronts until the last block has processed all chunks."""
        return self.chunks + self.blocks - 1

    @property
    def groups(self) -> int:
        """The number of groups of sequences."""
        return div_ceil(self.sequences, self.rows)

    def own_groups(self) -> list[Group]:
        """Return the groups of this core."""
        return [self.group(number) for number in range(nl.program_id(0), self.groups, nl.num_programs())]

    def group(self, number: int) -> Group:
        """Return group ``number``."""
        first = number * self.rows
        return Group(self, number, first, min(self.rows, self.sequences - first))


@dataclass(frozen=True)
class Group:
    """A group of sequences that are processed together, in adjacent partitions.

    Attributes:
        plan: the plan of the launch.
        number: the number of the group.
        first: the first sequence of the group.
        rows: the number of sequences of the group.
    """

    plan: Plan
    number: int
    first: int
    rows: int

    @property
    def partitions(self) -> int:
        """The number of partitions that instructions cover.

        It includes the gaps between the blocks if a group is not full.
        """
        return (self.plan.blocks - 1) * self.plan.stride + self.rows

    def block(self, number: int) -> slice:
        """Return the partitions of a block."""
        start = number * self.plan.stride
        return slice(start, start + self.rows)

    def sequences(self, tensor_hbm: nl.NkiTensor, dimension: int) -> nl.NkiTensor:
        """Return the part of a tensor that belongs to the sequences of the group."""
        return tensor_hbm.slice(dimension, self.first, self.first + self.rows)

    def tile(self, *columns: int, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Allocate a tile [partitions, *columns] for all blocks of the group."""
        return nl.ndarray((self.partitions, *columns), dtype=dtype, buffer=nl.sbuf)


def _layout(sequences: int, labels: int, fewest_pairs: int) -> Layout:
    """Choose the layout for a number of sequences, each of at most ``labels`` labels.

    If there are at least two sequences, both cores have work.
    """
    rows = min(PARTITIONS, div_ceil(sequences, 2))
    needed = labels + _FURTHER_PAIRS
    possible = [count for count, stride in _STRIDES.items() if rows <= stride and needed >= count * fewest_pairs]
    blocks = max(possible, default=1)
    return Layout(rows, blocks, div_ceil(needed, blocks))


def steps_that_fit(bytes_of_step: int, bytes_taken: int) -> int:
    """Return the number of time steps of a chunk that fit a partition; 0 if not even one fits.

    Args:
        bytes_of_step: the bytes of a partition that each step takes.
        bytes_taken: the bytes of a partition that other tiles take.
    """
    return min(CHUNK_MAX, (usable_sbuf_bytes() - bytes_taken) // bytes_of_step)


@dataclass(frozen=True)
class Times:
    """The time steps of a chunk in one block: the rows of a tile, and their place in the whole input.

    Attributes:
        first: the time of row 0, a number or a scalar that a loop of the device counts.
        start, end: the range of rows that exist in the input.
    """

    first: int | nisa.NkiScalar
    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether none of the rows exists in the input."""
        return self.end <= self.start

    @property
    def rows(self) -> slice:
        """The rows that exist, as a slice of a tile of the chunk."""
        return slice(self.start, self.end)

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of these times along the first dimension of a tensor in HBM."""
        if isinstance(self.first, int):
            return tensor_hbm.slice(0, self.first + self.start, self.first + self.end)
        return tensor_hbm[nl.ds(self.first, self.end)]
