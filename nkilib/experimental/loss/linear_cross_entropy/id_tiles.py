"""Tiles of the gradient of several target ids of each position: 0 but for few classes.

Once for a launch the ids of a position are sorted, and each has a place in a table of gradients
(:mod:`.id_gradient`). For a tile of classes Vector marks those that are ids, eight at a time, in the numbers 0, 1, 2,
...; a running sum of the marks, from the number of the ids below the tile on, gives the places, and GpSimd gathers the
gradients. So a tile costs K / 8 passes of Vector and a few more, and not two for each id.

``nc_match_replace8`` is not defined for a value that it does not find. So the ids of the position stand behind the
numbers once more, where one of another tile is found.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.linear_cross_entropy.id_sizes import ID_TURNS
from nkilib.experimental.loss.linear_cross_entropy.operands import PARTITIONS
from nkilib.experimental.loss.linear_cross_entropy.sizes import IDS_OF_SEARCH
from nkilib.nki import nisa, nl

_MARK = -1.0
_GPSIMD = nisa.engine.gpsimd


@dataclass(frozen=True)
class IdTiles:
    """Makes one tile of ``sum_k g_k 1[t_k = v]`` after another.

    Attributes:
        table_sbuf: as in :class:`IdColumns`.
        numbers: of classes, of a tile.
        firsts_sbuf: classes of a block that the tiles start at, float32 [128, tiles].
        sources_sbuf: by turn, 0, 1, 2, ... and the ids of the positions, float32 [128, numbers + K'].
        marked_sbuf: the same with marks.
        below_sbuf: which ids are below the tile, float32 [128, K'].
        running_sbuf: minus the running sum of the marks, float32 [128, numbers].
        places_sbuf: by turn, in the table, uint32 [128, numbers].
        gradients_sbuf: by turn, float32 [128, numbers].
    """

    table_sbuf: nl.NkiTensor
    numbers: int
    firsts_sbuf: nl.NkiTensor
    sources_sbuf: list[nl.NkiTensor]
    marked_sbuf: nl.NkiTensor
    below_sbuf: nl.NkiTensor
    running_sbuf: nl.NkiTensor
    places_sbuf: list[nl.NkiTensor]
    gradients_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, table_sbuf: nl.NkiTensor, block: int, classes: int) -> IdTiles:
        """For blocks of at most so many classes, and tiles of so many of them."""
        searched = table_sbuf.shape[2] - 1

        def tile(columns: int, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
            return nl.ndarray((PARTITIONS, columns), dtype=dtype, buffer=nl.sbuf)

        sources_sbuf = [tile(classes + searched) for _ in range(ID_TURNS)]
        for source_sbuf in sources_sbuf:
            nisa.iota(dst=source_sbuf[:, 0:classes], pattern=[[1, classes]], offset=0, channel_multiplier=0)
        firsts_sbuf = tile(div_ceil(block, classes))
        nisa.iota(dst=firsts_sbuf, pattern=[[classes, firsts_sbuf.shape[1]]], offset=0, channel_multiplier=0)
        return cls(
            table_sbuf,
            classes,
            firsts_sbuf,
            sources_sbuf,
            tile(classes + searched),
            tile(searched),
            tile(classes),
            [tile(classes, nl.uint32) for _ in range(ID_TURNS)],
            [tile(classes) for _ in range(ID_TURNS)],
        )

    def gradients(self, number: int, ids_sbuf: nl.NkiTensor, column: int, first: int, classes: int) -> nl.NkiTensor:
        """Tile ``number``, float32 [rows, classes].

        Args:
            ids_sbuf: sorted ids of the positions, float32 [rows, K'], counted from the block's first class.
            column: of the positions.
            first: class of the tile, counted likewise.
            classes: how many it has.
        """
        rows, searched = ids_sbuf.shape
        turn = number % ID_TURNS
        source_sbuf, marked_sbuf = self.sources_sbuf[turn][0:rows], self.marked_sbuf[0:rows]
        own_sbuf = source_sbuf[:, self.numbers :]
        place = first // self.numbers
        first_sbuf = self.firsts_sbuf[0:rows, place : place + 1].broadcast(1, searched)
        nisa.tensor_tensor(dst=own_sbuf, data1=ids_sbuf, data2=first_sbuf, op=nl.subtract, engine=_GPSIMD)
        count_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar_reduce(
            dst=self.below_sbuf[0:rows],
            data=own_sbuf,
            op0=nl.less,
            operand0=0.0,
            reduce_op=nl.add,
            reduce_res=count_sbuf,
            reduce_res_negate=True,
        )
        for start in range(0, searched, IDS_OF_SEARCH):
            nisa.nc_match_replace8(
                dst=marked_sbuf,
                data=source_sbuf if start == 0 else marked_sbuf,
                vals=own_sbuf[:, start : start + IDS_OF_SEARCH],
                imm=_MARK,
            )
        marks_sbuf, running_sbuf = marked_sbuf[:, 0:classes], self.running_sbuf[0:rows, 0:classes]
        nisa.tensor_scalar_cumulative(
            dst=running_sbuf,
            src=marks_sbuf,
            op0=nl.minimum,
            op1=nl.add,
            imm0=0.0,
            imm1=count_sbuf,
            reduce_cmd=nisa.reduce_cmd.load_reduce,
        )
        places_sbuf = self.places_sbuf[turn][0:rows, 0:classes]
        nisa.scalar_tensor_tensor(
            dst=places_sbuf, data=marks_sbuf, op0=nl.minimum, operand0=0.0, op1=nl.multiply, operand1=running_sbuf
        )
        gradients_sbuf = self.gradients_sbuf[turn][0:rows, 0:classes]
        nisa.nc_n_gather(dst=gradients_sbuf, data=self.table_sbuf[0:rows, column], indices=places_sbuf)
        return gradients_sbuf
