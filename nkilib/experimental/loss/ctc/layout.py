# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The inputs of CTC (:class:`Inputs`), the layout of sequences and states on partitions, and the chunks of time.

:class:`BatchLayout` has the sizes of a launch, and a :class:`Group` the sequences that are processed together; their
lengths and labels are on chip as :class:`Sequences`, and :class:`Times` are the time steps of a chunk.

The states of a sequence are blank, label, blank, ..., blank. Pair i is blank i and a label beside it: the label after
the blank for alpha, the label before it for beta. The pairs of a sequence are divided into up to four blocks, each in
partitions of its own, which keeps instructions short. A block needs the values of one label of its neighbour at the
previous time step, so a block processes a chunk of time after its neighbour has done so. A wavefront is the work that
is issued together: one chunk of time in each block, a different chunk for each block. T is the number of time steps, N
of sequences, C of classes, S of labels of the longest target, and P of partitions of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nkilib.core.hardware import PARTITIONS, div_ceil
from nkilib.core.plan_limits import usable_sbuf_bytes
from nkilib.nki import nisa, nl

# Two pairs more than labels: one for the last blank, and one for the label behind it, from which the betas start.
_FURTHER_PAIRS = 2
# Blocks, and the partitions from one to the next: instructions start at multiples of 32.
_STRIDES = {4: 32, 3: 32, 2: 64, 1: 128}
# Steps of a chunk at most: longer chunks spare few loads, and make a longer program.
CHUNK_MAX = 32
# The logarithm of 0, for numbers that stay finite: sums of it with itself and with others stay below NOWHERE.
NOTHING = -1e30
NOWHERE = -1e29


class BatchShape(NamedTuple):
    """The shape of the log-probabilities: T, N and C."""

    steps: int
    sequences: int
    classes: int


@dataclass(frozen=True)
class Group:
    """A group of sequences that are processed together, in adjacent partitions.

    Attributes:
        layout: the layout of the launch.
        number: the index of the group in the launch.
        first: the index, from 0 to N - 1, of the group's first sequence.
        rows: the number of sequences of the group.
    """

    layout: BatchLayout
    number: int
    first: int
    rows: int

    @property
    def partitions(self) -> int:
        """The number P of partitions of the group's tiles, with the unused partitions between blocks."""
        return (self.layout.blocks - 1) * self.layout.stride + self.rows

    def block(self, number: int) -> slice:
        """Return the partitions of block number ``number``, as a slice."""
        start = number * self.layout.stride
        return slice(start, start + self.rows)

    def sequences(self, tensor_hbm: nl.NkiTensor, dimension: int) -> nl.NkiTensor:
        """Return the view of a tensor in HBM for the group's sequences, which lie along dimension ``dimension``."""
        return tensor_hbm.slice(dimension, self.first, self.first + self.rows)

    def tile(self, *columns: int, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Allocate a tile [partitions, *columns], for all blocks of states of the group."""
        return nl.ndarray((self.partitions, *columns), dtype=dtype, buffer=nl.sbuf)


@dataclass(frozen=True)
class BatchLayout:
    """The sizes of a launch, which depend on shapes only, not on the number of cores.

    Attributes:
        steps, sequences, classes, labels: T, N, C and S.
        rows: the number of sequences of a group, which lie in adjacent partitions; the last group may have fewer.
        blocks: the number of blocks into which the pairs of a sequence are divided.
        pairs: the number of pairs of a block.
        chunk: the number of time steps that are loaded and stored at a time.
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
    def make(cls, shape: BatchShape, labels: int, fewest_pairs: int, chunk: int) -> BatchLayout:
        """Choose the sizes of a launch.

        Args:
            shape: T, N and C.
            labels: S.
            fewest_pairs: the minimum number of pairs of a block.
            chunk: the maximum number of time steps of a chunk.
        """
        rows = min(PARTITIONS, div_ceil(shape.sequences, 2))  # with two sequences or more, both cores have work
        needed = labels + _FURTHER_PAIRS
        possible = [count for count, stride in _STRIDES.items() if rows <= stride and needed >= count * fewest_pairs]
        blocks = max(possible, default=1)
        return cls(*shape, labels, rows, blocks, div_ceil(needed, blocks), min(chunk, shape.steps))

    @property
    def stride(self) -> int:
        """The number of partitions from the start of a block to the start of the next block."""
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
        """The number of wavefronts until all blocks have processed all chunks of time."""
        return self.chunks + self.blocks - 1

    @property
    def groups(self) -> int:
        """The number of groups of sequences."""
        return div_ceil(self.sequences, self.rows)

    def own_groups(self) -> list[Group]:
        """Return the groups of this core."""
        return [self.group(number) for number in range(nl.program_id(0), self.groups, nl.num_programs())]

    def group(self, number: int) -> Group:
        """Return group number ``number``."""
        first = number * self.rows
        return Group(self, number, first, min(self.rows, self.sequences - first))


def steps_that_fit(bytes_of_step: int, bytes_taken: int) -> int:
    """Return the number of time steps of a chunk that fit a partition, at most ``CHUNK_MAX``; below 1 if none fits.

    Args:
        bytes_of_step: the bytes per partition of all tiles for a time step.
        bytes_taken: the bytes per partition of other tiles.
    """
    return min(CHUNK_MAX, (usable_sbuf_bytes() - bytes_taken) // bytes_of_step)


@dataclass(frozen=True)
class Times:
    """The time steps of a chunk in one block; row i of a tile is time step ``first`` + i.

    Attributes:
        first: the time step of row 0, a number or a scalar that a loop of the device counts.
        start, end: the rows, ``end`` exclusive, whose time steps exist (are 0 to T - 1).
    """

    first: int | nisa.NkiScalar
    start: int
    end: int

    @property
    def is_empty(self) -> bool:
        """Whether no row has a time step that exists."""
        return self.end <= self.start

    @property
    def rows(self) -> slice:
        """The rows whose time steps exist, as a slice."""
        return slice(self.start, self.end)

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the view of a tensor [T, ...] at the time steps that exist."""
        if isinstance(self.first, int):
            return tensor_hbm.slice(0, self.first + self.start, self.first + self.end)
        return tensor_hbm[nl.ds(self.first, self.end)]


def length_column(rows: int, lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load int32 lengths, one per row, as a float32 tile [rows, 1]."""
    loaded_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=lengths_hbm.reshape((rows, 1)))
    length_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=length_sbuf, src=loaded_sbuf)
    return length_sbuf


def lengths_in_blocks(group: Group, lengths_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load lengths [N] of a group into the partitions of every block, float32 [P, 1]."""
    loaded_sbuf = group.tile(1, dtype=nl.int32)
    nisa.memset(dst=loaded_sbuf, value=0)
    for block in range(group.layout.blocks):
        source = group.sequences(lengths_hbm, 0).reshape((group.rows, 1))
        nisa.dma_copy(dst=loaded_sbuf[group.block(block)], src=source)
    length_sbuf = group.tile(1)
    nisa.tensor_copy(dst=length_sbuf, src=loaded_sbuf)
    return length_sbuf


def _labels(group: Group, targets_hbm: nl.NkiTensor | None) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """Return labels (0 outside of ``targets_hbm``) and their indices in the target, each float32 [P, pairs + 1].

    Column 0 is for the label before the first blank of the block; in the first block its index is -1.
    """
    layout = group.layout
    loaded_sbuf = group.tile(layout.pairs + 1, dtype=nl.int32)
    number_sbuf = group.tile(layout.pairs + 1)
    nisa.memset(dst=loaded_sbuf, value=0)
    nisa.memset(dst=number_sbuf, value=0.0)
    for block in range(layout.blocks):
        first = block * layout.pairs - 1
        start, end = max(0, first), min(layout.labels, first + layout.pairs + 1)
        partitions = group.block(block)
        if targets_hbm is not None and start < end:
            source = group.sequences(targets_hbm, 0).slice(1, start, end)
            nisa.dma_copy(dst=loaded_sbuf[partitions, start - first : end - first], src=source)
        nisa.iota(dst=number_sbuf[partitions], pattern=[[1, layout.pairs + 1]], offset=first)
    label_sbuf = group.tile(layout.pairs + 1)
    nisa.tensor_copy(dst=label_sbuf, src=loaded_sbuf)
    return label_sbuf, number_sbuf


def _add_difference(
    mask_sbuf: nl.NkiTensor, class_sbuf: nl.NkiTensor, label_sbuf: nl.NkiTensor, scratch_sbuf: nl.NkiTensor
) -> None:
    """Add ``NOTHING`` to ``mask_sbuf`` where the label is no class.

    There ``class_sbuf``, which has the labels clamped to the classes, differs from ``label_sbuf``.
    """
    is_none_sbuf = nl.ndarray(mask_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_none_sbuf, data1=class_sbuf, data2=label_sbuf, op=nl.not_equal)
    nisa.scalar_tensor_tensor(
        dst=mask_sbuf, data=is_none_sbuf, op0=nl.multiply, operand0=NOTHING, op1=nl.add, operand1=mask_sbuf
    )


@dataclass(frozen=True)
class Sequences:
    """The lengths and labels of the sequences of a group, and masks of the labels.

    In tiles with ``pairs + 1`` columns, column k is for the label before blank k of the block, and column k + 1 for the
    label after it.

    Attributes:
        group: the group of the sequences.
        input_length_sbuf, target_length_sbuf: the numbers of time steps and of labels, float32 [P, 1].
        class_sbuf: float32 [P, pairs + 1], the labels; an arbitrary class where there is no label.
        mask_sbuf: float32 [P, pairs + 1], 0 for a label of the target, else ``NOTHING``, the logarithm of 0.
        is_end_sbuf: uint32 [P, pairs + 1], 1 for the imaginary label after the last blank, from which beta starts.
        may_skip_sbuf: uint32 [P, pairs], 1 where the label after blank k may directly follow the label before it.
    """

    group: Group
    input_length_sbuf: nl.NkiTensor
    target_length_sbuf: nl.NkiTensor
    class_sbuf: nl.NkiTensor
    mask_sbuf: nl.NkiTensor
    is_end_sbuf: nl.NkiTensor
    may_skip_sbuf: nl.NkiTensor

    @classmethod
    def load(
        cls,
        group: Group,
        targets_hbm: nl.NkiTensor | None,
        input_lengths_hbm: nl.NkiTensor,
        target_lengths_hbm: nl.NkiTensor,
    ) -> Sequences:
        """Load the lengths and labels of a group from HBM, and compute the masks."""
        pairs = group.layout.pairs
        input_length_sbuf = lengths_in_blocks(group, input_lengths_hbm)
        target_length_sbuf = lengths_in_blocks(group, target_lengths_hbm)
        label_sbuf, number_sbuf = _labels(group, targets_hbm)
        is_behind_sbuf = group.tile(pairs + 1)
        nisa.tensor_scalar(dst=is_behind_sbuf, data=number_sbuf, op0=nl.greater_equal, operand0=target_length_sbuf)
        mask_sbuf, class_sbuf = group.tile(pairs + 1), group.tile(pairs + 1)
        is_end_sbuf = group.tile(pairs + 1, dtype=nl.uint32)
        nisa.tensor_scalar(dst=mask_sbuf, data=is_behind_sbuf, op0=nl.multiply, operand0=NOTHING)
        nisa.memset(dst=mask_sbuf[0 : group.rows, 0:1], value=NOTHING)  # before the first label
        nisa.tensor_scalar(dst=is_end_sbuf, data=number_sbuf, op0=nl.equal, operand0=target_length_sbuf)
        last = float(group.layout.classes - 1)
        nisa.tensor_scalar(dst=class_sbuf, data=label_sbuf, op0=nl.maximum, operand0=0.0, op1=nl.minimum, operand1=last)
        # A class that does not exist has probability 0.
        _add_difference(mask_sbuf, class_sbuf, label_sbuf, is_behind_sbuf)
        may_skip_sbuf = group.tile(pairs, dtype=nl.uint32)
        differs_sbuf = group.tile(pairs)
        nisa.tensor_tensor(
            dst=differs_sbuf, data1=label_sbuf[:, 1 : pairs + 1], data2=label_sbuf[:, 0:pairs], op=nl.not_equal
        )
        nisa.tensor_tensor(dst=may_skip_sbuf, data1=differs_sbuf, data2=is_behind_sbuf[:, 1 : pairs + 1], op=nl.maximum)
        nisa.memset(dst=may_skip_sbuf[0 : group.rows, 0:1], value=1)  # the first label follows the start
        return cls(group, input_length_sbuf, target_length_sbuf, class_sbuf, mask_sbuf, is_end_sbuf, may_skip_sbuf)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a loss, in HBM.

    Attributes:
        log_probs_hbm: the log-probabilities, [T, N, C].
        targets_hbm: the labels of the targets, int32 [N, S]; None if S is 0.
        input_lengths_hbm, target_lengths_hbm: the number of time steps and of labels of each sequence, int32 [N].
        blank: the class of the blank.
    """

    log_probs_hbm: nl.NkiTensor
    targets_hbm: nl.NkiTensor | None
    input_lengths_hbm: nl.NkiTensor
    target_lengths_hbm: nl.NkiTensor
    blank: int

    def sequences(self, group: Group) -> Sequences:
        """Load the lengths and labels of a group."""
        return Sequences.load(group, self.targets_hbm, self.input_lengths_hbm, self.target_lengths_hbm)
