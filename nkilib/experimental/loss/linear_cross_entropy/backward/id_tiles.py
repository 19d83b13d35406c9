# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tiles of the gradient of several target ids per position, which are 0 except for few classes.

Once per launch the ids of a position are sorted, and each gets a place in a table of gradients (:mod:`.id_gradient`).
For a tile of classes Vector marks the classes that are ids, eight at a time, in the numbers 0, 1, 2, ...; a running sum
of the marks, which starts at the number of ids below the tile, gives the places. So a tile costs K / 8 passes of Vector
and a few more, instead of two passes per id. GpSimd gathers the gradients when the tile is computed.

Vector has little to do while Tensor multiplies a block of gradients with W and X. So the places of the next block are
found then, and kept in one byte each.

``nc_match_replace8`` is not defined for a value that it does not find. So the ids of the position follow the numbers
once more, where an id of another tile is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear.shared.sizes import IDS_OF_SEARCH
from nkilib.experimental.loss.linear_cross_entropy.backward.tile_needs import ID_SLOTS
from nkilib.nki import nisa, nl

_MARK = -1.0


@dataclass(frozen=True)
class IdTiles:
    """Computes the tiles of ``sum_k g_k 1[t_k = v]``, one after another.

    Attributes:
        table_sbuf: the table of gradients, see :class:`IdColumns`.
        classes: the largest number of classes of a tile.
        source_sbuf: 0, 1, 2, ... and the ids of a tile of positions, float32 [128, classes + K'].
        marked_sbuf: a copy of ``source_sbuf`` with marks.
        below_sbuf: a mask of the ids below a tile, float32 [128, K'].
        running_sbuf: minus the running sum of the marks, float32 [128, classes].
        kept_sbuf: the places in the table, uint8 [128, tiles of positions of a block, tiles of classes of a block,
            classes].
        places_sbuf: buffer slots for the places of a tile, uint32 [128, classes].
        gradients_sbuf: buffer slots for the gradients of a tile, float32 [128, classes].
    """

    table_sbuf: nl.NkiTensor
    classes: int
    source_sbuf: nl.NkiTensor
    marked_sbuf: nl.NkiTensor
    below_sbuf: nl.NkiTensor
    running_sbuf: nl.NkiTensor
    kept_sbuf: nl.NkiTensor
    places_sbuf: list[nl.NkiTensor]
    gradients_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, table_sbuf: nl.NkiTensor, position_tiles: int, block: int, classes: int) -> IdTiles:
        """Allocate memory for blocks of ``position_tiles`` tiles and ``block`` classes, in tiles of ``classes``."""
        searched = table_sbuf.shape[2] - 1

        def tile(columns: int, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
            return nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf)

        source_sbuf = tile(classes + searched)
        nisa.iota(dst=source_sbuf[:, 0:classes], pattern=[[1, classes]], offset=0, channel_multiplier=0)
        shape = (PARTITIONS, position_tiles, div_ceil(block, classes), classes)
        return cls(
            table_sbuf,
            classes,
            source_sbuf,
            tile(classes + searched),
            tile(searched),
            tile(classes),
            nl.ndarray(shape, dtype=nl.uint8, buffer=nl.sbuf),
            [tile(classes, nl.uint32) for _ in range(ID_SLOTS)],
            [tile(classes) for _ in range(ID_SLOTS)],
        )

    @property
    def tiles_of_classes(self) -> int:
        """The number of tiles of classes of a block."""
        return self.kept_sbuf.shape[2]

    def search(self, column: int, tile: int, ids_sbuf: nl.NkiTensor, skipped: int) -> None:
        """Find the table places of a tile of positions and a tile of classes.

        Args:
            column: the number of the tile of positions.
            tile: the number of the tile of classes in its block.
            ids_sbuf: the sorted ids of the positions, float32 [128, K'].
            skipped: the number of classes between the class that the ids are counted from and the block.
        """
        searched = ids_sbuf.shape[1]
        own_sbuf = self.source_sbuf[:, self.classes :]
        first = float(skipped + tile * self.classes)
        nisa.tensor_scalar(dst=own_sbuf, data=ids_sbuf, op0=nl.subtract, operand0=first)
        count_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=self.below_sbuf,
            data=own_sbuf,
            op0=nl.less,
            operand0=0.0,
            reduce_op=nl.add,
            reduce_res=count_sbuf,
            reduce_res_negate=True,
        )
        for start in range(0, searched, IDS_OF_SEARCH):
            nisa.nc_match_replace8(
                dst=self.marked_sbuf,
                data=self.source_sbuf if start == 0 else self.marked_sbuf,
                vals=own_sbuf[:, start : start + IDS_OF_SEARCH],
                imm=_MARK,
            )
        marks_sbuf = self.marked_sbuf[:, 0 : self.classes]
        nisa.tensor_scalar_cumulative(
            dst=self.running_sbuf,
            src=marks_sbuf,
            op0=nl.minimum,
            op1=nl.add,
            imm0=0.0,
            imm1=count_sbuf,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        )
        nisa.scalar_tensor_tensor(
            dst=self._kept(column, tile),
            data=marks_sbuf,
            op0=nl.minimum,
            operand0=0.0,
            op1=nl.multiply,
            operand1=self.running_sbuf,
        )

    def gradients(self, number: int, rows: int, column: int, first: int, classes: int) -> nl.NkiTensor:
        """Return tile ``number``, whose places have been found, float32 [rows, classes].

        Args:
            number: the number of the tile.
            rows: the number of positions.
            column: the number of the tile of positions.
            first: the first class of the tile, counted in its block.
            classes: the number of classes of the tile.
        """
        slot = number % ID_SLOTS
        places_sbuf = self.places_sbuf[slot][0:rows, 0:classes]
        kept_sbuf = self._kept(column, first // self.classes)[0:rows, 0:classes]
        nisa.tensor_copy(dst=places_sbuf, src=kept_sbuf, engine=nisa.engine.gpsimd)
        gradients_sbuf = self.gradients_sbuf[slot][0:rows, 0:classes]
        nisa.nc_n_gather(dst=gradients_sbuf, data=self.table_sbuf[0:rows, column], indices=places_sbuf)
        return gradients_sbuf

    def _kept(self, column: int, tile: int) -> nl.NkiTensor:
        """Return the memory for the places of a tile, [128, classes]; no two tiles of a block share it."""
        return self.kept_sbuf[:, column % self.kept_sbuf.shape[1], tile]
