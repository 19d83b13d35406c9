# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles with all classes of many positions, for inputs of few classes, which are streamed instead of gathered
from.

A row [C, D] has D places, each with one element of every class. If whole rows of [N, C, D] fit a partition,
each partition has some of them; otherwise it has a run of the places of one row. Either way its positions,
and its elements of one class, are contiguous in HBM. The tiles depend on shape and type alone.

The weights of the classes are in every partition.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.plan_limits import limited_parts
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.skeletons.elementwise.tiles import FlatTile, flat_tiles
from nkilib.experimental.loss.skeletons.indexed.positions import Shape, number_of_batches
from nkilib.nki import nisa, nl

# bfloat16 has every integer up to this one: classes are compared in that type, four elements a cycle.
STREAMED_CLASSES_MAX = 256
# Sums that a partition of SBUF keeps. Further tiles share them.
PARTS_MAX = 4096
# Bytes of a partition for the classes that are on chip together, and the most positions that an instruction takes.
_TILE_BYTES, _POSITIONS_MAX = 48 * 1024, 1024
# Modelled for two cores of trn2, in microseconds: a group of 128 gathered elements, the start of gathering, an
# instruction of a class (there are two), and its time for each position of a partition.
_GATHER_US, _GATHER_START_US, _INSTRUCTION_US, _POSITION_US = 3.7, 12.0, 0.17, 0.0007


@dataclass(frozen=True)
class ClassTile:
    """Positions that are processed at a time, with all their classes.

    Attributes:
        part: the number of the partial sum that the positions are added to.
        is_first: whether this is the first tile of its part.
        shape: the shape of the input.
        row: the row that the positions belong to; None if the tile has whole rows.
        flat: the rows, or else the places of ``row``, a run of them in each partition.
    """

    part: int
    is_first: bool
    shape: Shape
    row: int | None
    flat: FlatTile

    @property
    def partitions(self) -> int:
        """The number of partitions that the tile takes."""
        return self.flat.rows

    @property
    def positions(self) -> int:
        """The number of positions in each partition."""
        return self.flat.columns * (self.shape.places if self.row is None else 1)

    def of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the part of a tensor [N, D] that belongs to this tile, as a view [partitions, positions]."""
        if self.row is not None:
            return self.flat.of(self._row_of(tensor_hbm))
        return self._whole_rows_of(tensor_hbm).reshape((self.partitions, self.positions))

    def classes_of(self, tensor_hbm: nl.NkiTensor, first: int, last: int) -> nl.NkiTensor:
        """Return the elements of classes [first, last) of this tile in a tensor [N, C * D].

        The result is a view [partitions, classes, positions], or for whole rows [partitions, rows, C, D]; then
        [first, last) must be all classes.
        """
        flat, classes = self.flat, self.shape.classes
        if self.row is None:
            whole = self._whole_rows_of(tensor_hbm)
            return whole.reshape((flat.rows, flat.columns, classes, self.shape.places))
        row_hbm = self._row_of(tensor_hbm).reshape((classes, self.shape.places))
        run_hbm = row_hbm[first:last, flat.first : flat.first + flat.rows * flat.columns]
        return run_hbm.reshape((last - first, flat.rows, flat.columns)).permute((1, 0, 2))

    def on_chip(self, buffer_sbuf: nl.NkiTensor, classes: int) -> nl.NkiTensor:
        """Return the part of a buffer that holds the tile's elements of ``classes`` classes, in the shape of
        :meth:`classes_of`.
        """
        flat = self.flat
        taken_sbuf = buffer_sbuf[0 : flat.rows, 0 : classes * self.positions]
        if self.row is None:
            return taken_sbuf.reshape((flat.rows, flat.columns, classes, self.shape.places))
        return taken_sbuf.reshape((flat.rows, classes, flat.columns))

    def of_class(self, tile_sbuf: nl.NkiTensor, number: int) -> nl.NkiTensor:
        """Return the elements of class ``number`` in a tile from :meth:`on_chip`, [partitions, ...]."""
        return tile_sbuf[:, :, number, :] if self.row is None else tile_sbuf[:, number, :]

    def like_class(self, positions_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile [partitions, positions] in the shape that :meth:`of_class` returns."""
        if self.row is not None:
            return positions_sbuf
        return positions_sbuf.reshape((self.partitions, self.flat.columns, self.shape.places))

    def _row_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        row = self.row or 0
        return tensor_hbm[row : row + 1].reshape((tensor_hbm.shape[1],))

    def _whole_rows_of(self, tensor_hbm: nl.NkiTensor) -> nl.NkiTensor:
        return tensor_hbm[self.flat.first : self.flat.first + self.flat.rows * self.flat.columns]


@dataclass(frozen=True)
class ClassTiling:
    """The tiling of an input of few classes.

    Attributes:
        shape: the shape of the input.
        positions: the largest number of positions in a partition.
        classes: the number of classes whose elements at these positions are on chip together.
        has_whole_rows: whether partitions have whole rows.
    """

    shape: Shape
    positions: int
    classes: int
    has_whole_rows: bool

    @classmethod
    def of(cls, shape: Shape, dtype: nl.DType) -> ClassTiling:
        """Choose the tiling of an input.

        A tile has as many positions as fit, but with whole rows no more than it takes to spread all rows over the
        partitions of two cores.
        """
        in_buffer = _TILE_BYTES // dtype_bytes(dtype)
        fitting = min(_POSITIONS_MAX, in_buffer // shape.classes)
        if fitting < shape.places or shape.rows < PARTITIONS <= shape.places:
            runs = div_ceil(shape.places, PARTITIONS)
            positions = div_ceil(runs, div_ceil(runs, _POSITIONS_MAX))
            return cls(shape, positions, min(shape.classes, in_buffer // positions), False)
        rows = min(fitting // shape.places, div_ceil(shape.rows, 2 * PARTITIONS))
        return cls(shape, rows * shape.places, shape.classes, True)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The ranges [first, last) of classes that are on chip together."""
        starts = range(0, self.shape.classes, self.classes)
        return [(start, min(start + self.classes, self.shape.classes)) for start in starts]

    def tiles(self) -> list[ClassTile]:
        """Return all tiles of the launch, in the order of their positions."""
        shape = self.shape
        rows_and_runs: list[tuple[int | None, FlatTile]]
        if self.has_whole_rows:
            rows_and_runs = [(None, flat) for flat in _tiles(shape.rows, self.positions // shape.places)]
        else:
            rows_and_runs = [(row, flat) for row in range(shape.rows) for flat in _tiles(shape.places, self.positions)]
        of_part = div_ceil(len(rows_and_runs), limited_parts(PARTS_MAX))
        return [
            ClassTile(number // of_part, number % of_part == 0, shape, row, flat)
            for number, (row, flat) in enumerate(rows_and_runs)
        ]

    def tiles_of_core(self) -> list[ClassTile]:
        """Return the tiles that this core processes: those of its parts, see :class:`ClassTile`."""
        cores, core = nl.num_programs(), nl.program_id(0)
        return [tile for tile in self.tiles() if tile.part % cores == core]

    @property
    def number_of_tiles(self) -> int:
        """The number of tiles of the launch."""
        if self.has_whole_rows:
            return len(_tiles(self.shape.rows, self.positions // self.shape.places))
        return self.shape.rows * len(_tiles(self.shape.places, self.positions))


def is_streamed(shape: Shape, dtype: nl.DType) -> bool:
    """Return whether streaming the whole input is modelled to take less time than gathering the elements at the
    targets.
    """
    if shape.classes > STREAMED_CLASSES_MAX:
        return False
    tiling = ClassTiling.of(shape, dtype)
    of_class = 2.0 * _INSTRUCTION_US + _POSITION_US * dtype_bytes(dtype) * tiling.positions
    streaming = div_ceil(tiling.number_of_tiles, 2) * shape.classes * of_class
    return streaming < _GATHER_START_US + _GATHER_US * div_ceil(number_of_batches(shape), 2)


def _tiles(elements: int, columns: int) -> list[FlatTile]:
    """Return the tiles of ``flat_tiles``, except for a last one with more than ``columns`` elements in one
    partition.

    Its elements, fewer than 128, are put into one partition each.
    """
    tiles = flat_tiles(elements, columns)
    last = tiles[-1]
    if last.columns > columns:
        tiles[-1] = FlatTile(last.number, last.first, last.columns, 1)
    return tiles


def loaded_weights(class_weight_hbm: nl.NkiTensor | None) -> nl.NkiTensor | None:
    """Load the class weights into every partition: float32 [128, C], or None for weights of 1."""
    if class_weight_hbm is None:
        return None
    classes, partitions = class_weight_hbm.shape[0], nl.tile_size.pmax
    weights_sbuf = nl.ndarray((partitions, classes), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=weights_sbuf, src=class_weight_hbm.reshape((1, classes)).broadcast(0, partitions))
    return weights_sbuf
