"""The gradient of a row that all rows share: the sum over rows of what each has, the same bits on one core and on two.

Tiles of rows are added up element by element, those with even numbers and those with odd ones apart: two cores have one
of these sums each, one core has both. Then come the rows of a partition, by halves; the partitions, which Tensor turns
into columns for Vector to add up; and last the two sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.rowwise.launch import RowLaunch
from nkilib.experimental.loss.rowwise.stream import PlacedPiece
from nkilib.nki import nisa, nl

# Sums of tiles, in which every second tile is: as many as a launch has cores at most.
SUMS: Final = 2
_PARTITIONS: Final = 128
# Float32 numbers of a partition of a bank of PSUM, and tiles that are turned into it.
_BANK_COLUMNS: Final = 512
_TURNED: Final = _BANK_COLUMNS // _PARTITIONS


@dataclass(frozen=True)
class SharedGradient:
    """Sums of the columns of a chunk; chunks of the same columns follow each other.

    Attributes:
        gradient_hbm: [1, D] of any floating type.
        columns: of a chunk at most.
        each: rows of a partition at most.
        sums_sbuf: of the tiles of this core, by the number of the tile: float32 [partitions, each * columns] each.
    """

    gradient_hbm: nl.NkiTensor
    columns: int
    each: int
    sums_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, launch: RowLaunch, gradient_hbm: nl.NkiTensor) -> SharedGradient:
        """All zeros."""
        tiling, count = launch.tiling, SUMS // nl.num_programs()
        shape = (_PARTITIONS, tiling.width)
        sums_sbuf = [nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf) for _ in range(count)]
        found = cls(gradient_hbm, tiling.columns, tiling.each, sums_sbuf)
        found._restart()
        return found

    def of_piece(self, placed: PlacedPiece) -> nl.NkiTensor:
        """The sum that a piece is a part of, [partitions, elements]."""
        tile = placed.chunk.tile
        sum_sbuf = self.sums_sbuf[tile.number % len(self.sums_sbuf)]
        return sum_sbuf[0 : tile.partitions, placed.start : placed.end]

    def store_nothing(self) -> None:
        """Of a core without rows: its zeros."""
        columns = self.gradient_hbm.shape[1]
        for start in range(0, columns, self.columns):
            self.store(start, min(start + self.columns, columns))

    def store(self, start: int, end: int) -> None:
        """The sums of all cores of some columns; then zeros again."""
        columns = end - start
        parts = [self._of_partitions(each, columns) for each in self.sums_sbuf]
        own_sbuf, other_sbuf = parts if len(parts) == SUMS else (parts[0], _of_other_core(parts[0]))
        nisa.tensor_tensor(dst=own_sbuf, data1=own_sbuf, data2=other_sbuf, op=nl.add)
        if nl.program_id(0) == 0:
            _store_columns(self.gradient_hbm[0, start:end], own_sbuf)
        self._restart()

    def _restart(self) -> None:
        for each_sbuf in self.sums_sbuf:
            nisa.memset(dst=each_sbuf, value=0.0)

    def _of_partitions(self, sum_sbuf: nl.NkiTensor, columns: int) -> nl.NkiTensor:
        """The sum over partitions and their rows, [128, tiles of columns]: column ``c`` is in partition ``c % 128``."""
        rows = self.each
        while rows > 1:
            half = rows // 2
            first_sbuf = sum_sbuf[:, 0 : half * columns]
            second_sbuf = sum_sbuf[:, (rows - half) * columns : rows * columns]
            nisa.tensor_tensor(dst=first_sbuf, data1=first_sbuf, data2=second_sbuf, op=nl.add)
            rows -= half
        tiles = div_ceil(columns, _PARTITIONS)
        part_sbuf = nl.ndarray((_PARTITIONS, tiles), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=part_sbuf, value=0.0)
        for first in range(0, tiles, _TURNED):
            self._add_partitions(part_sbuf, sum_sbuf[:, 0:columns], first, min(first + _TURNED, tiles))
        return part_sbuf

    def _add_partitions(self, part_sbuf: nl.NkiTensor, sum_sbuf: nl.NkiTensor, first: int, end: int) -> None:
        """Of some tiles of columns, of which the last one may have fewer."""
        turned_psum = nl.ndarray((_PARTITIONS, end - first, _PARTITIONS), dtype=nl.float32, buffer=nl.psum)
        for tile in range(first, end):
            columns_sbuf = sum_sbuf[:, tile * _PARTITIONS : min((tile + 1) * _PARTITIONS, sum_sbuf.shape[1])]
            width = columns_sbuf.shape[1]
            place_psum = turned_psum[0:width, tile - first]
            nisa.nc_transpose(dst=place_psum, data=columns_sbuf)
            nisa.tensor_reduce(dst=part_sbuf[0:width, tile : tile + 1], op=nl.add, data=place_psum, axis=1)


def _of_other_core(part_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    other = 1 - nl.program_id(0)
    received_sbuf = nl.ndarray(part_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.sendrecv(src=part_sbuf, dst=received_sbuf, send_to_rank=other, recv_from_rank=other, pipe_id=0)
    return received_sbuf


def _store_columns(columns_hbm: nl.NkiTensor, part_sbuf: nl.NkiTensor) -> None:
    """Numbers [128, tiles] as a vector [columns], a tile a line."""
    columns, tiles = columns_hbm.shape[0], part_sbuf.shape[1]
    turned_psum = nl.ndarray((tiles, _PARTITIONS), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned_psum, data=part_sbuf)
    lines_sbuf = nl.ndarray((tiles, _PARTITIONS), dtype=columns_hbm.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=lines_sbuf, src=turned_psum)
    whole, rest = divmod(columns, _PARTITIONS)
    if whole > 0:
        lines_hbm = columns_hbm[0 : whole * _PARTITIONS].reshape((whole, _PARTITIONS))
        nisa.dma_copy(dst=lines_hbm, src=lines_sbuf[0:whole])
    if rest > 0:
        nisa.dma_copy(
            dst=columns_hbm[whole * _PARTITIONS : columns].reshape((1, rest)), src=lines_sbuf[whole:tiles, 0:rest]
        )
