# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of the N * D positions of an input [N, C, D]; D is the product of all dimensions after the
classes, or 1.

A position is one of the D places of one of the N rows. A batch is the positions that are processed at a
time, one per partition. They lie along N, at one place of adjacent rows, or along D, at adjacent places of
one row, whichever is longer: the index of an element is then affine in the partition, except for its class.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.elements import INDEX_LIMIT
from nkilib.core.tiling import div_ceil
from nkilib.nki import nl

PARTITIONS = 128
# Batches of a launch: the sums of that many fit a partition of SBUF, and a program of so many its limit.
BATCHES_MAX = 8192


@dataclass(frozen=True)
class Shape:
    """The shape [N, C, D] of an input: rows, classes, and places of each row."""

    rows: int
    classes: int
    places: int

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Shape:
        """Return the shape for an input [N, C] or [N, C, d1, ...]; without further dimensions there is one place."""
        places = 1
        for size in shape[2:]:
            places *= size
        return cls(shape[0], shape[1], places)

    @property
    def row_size(self) -> int:
        """The number of elements of a row, C * D."""
        return self.classes * self.places

    @property
    def is_along_rows(self) -> bool:
        """Whether the positions of a batch lie along N."""
        return self.rows >= min(self.places, PARTITIONS)

    @property
    def rows_of_block(self) -> int:
        """The number of rows in a block, whose positions are all processed by one core.

        It is the largest number whose elements have int32 indices, and at most half of all rows, so that there is a
        block for each of two cores.
        """
        if not self.is_along_rows:
            return 1
        return max(1, min(PARTITIONS, div_ceil(self.rows, 2), INDEX_LIMIT // self.row_size))


@dataclass(frozen=True)
class Block:
    """Adjacent rows whose positions are all processed by one core.

    Attributes:
        number: the index of the block among all blocks.
        first, rows: the first row, and the number of rows.
    """

    number: int
    first: int
    rows: int

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the block's rows of a tensor [N, elements of a row], as a view [rows * elements of a row]."""
        size = tensor_hbm.shape[1]
        return tensor_hbm[self.first : self.first + self.rows].reshape((self.rows * size,))


@dataclass(frozen=True)
class PositionBatch:
    """Positions that the kernel processes at a time.

    Attributes:
        number: the number of the batch among all batches of the launch.
        block: the block that contains the positions.
        place: the place of the first position in its row; this row is the first one of the block.
        positions: the number of positions.
        is_along_rows: whether the positions lie at one place of adjacent rows; else they lie at adjacent places
            of one row.
    """

    number: int
    block: Block
    place: int
    positions: int
    is_along_rows: bool

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the numbers of these positions in a tensor [N, D], as a view [positions, 1]."""
        first = self.block.first
        if self.is_along_rows:
            return tensor_hbm[first : first + self.positions, self.place : self.place + 1]
        view_hbm = tensor_hbm[first : first + 1, self.place : self.place + self.positions]
        return view_hbm.reshape((self.positions, 1))


def blocks_of(shape: Shape) -> list[Block]:
    """Return all blocks, in the order of their rows."""
    size = shape.rows_of_block
    starts = range(0, shape.rows, size)
    return [Block(number, start, min(size, shape.rows - start)) for number, start in enumerate(starts)]


def batches_of_block(shape: Shape, block: Block) -> list[PositionBatch]:
    """Return all batches of a block; their numbers continue those of the previous block."""
    if shape.is_along_rows:
        first = block.number * shape.places
        return [PositionBatch(first + place, block, place, block.rows, True) for place in range(shape.places)]
    starts = range(0, shape.places, PARTITIONS)
    first = block.number * len(starts)
    return [
        PositionBatch(first + number, block, start, min(PARTITIONS, shape.places - start), False)
        for number, start in enumerate(starts)
    ]


def number_of_batches(shape: Shape) -> int:
    """Return the total number of batches of all blocks."""
    of_block = shape.places if shape.is_along_rows else div_ceil(shape.places, PARTITIONS)
    return len(blocks_of(shape)) * of_block
