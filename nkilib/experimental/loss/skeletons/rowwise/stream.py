# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The stream of the rows of several tensors in chunks, loaded ahead and cut into pieces; per-row scalars in
HBM and on chip.

If a partition of a tile has one row, the scalars of the tile's rows are a line in HBM and a column on chip:
Tensor transposes the lines of all tiles of a group at once, and a transfer has lines of 512 bytes instead
of single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.rings import ring_of
from nkilib.core.rows.scratch import Scratch
from nkilib.experimental.loss.skeletons.rowwise.geometry import RowGroup, RowLaunch, RowTile
from nkilib.experimental.loss.skeletons.rowwise.host.tiling import width_of_piece
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Chunk:
    """A part of a tile that is loaded at a time: a range of columns of its long rows, or all columns of its short
    rows.

    Attributes:
        tile: the tile that contains the rows.
        group: the group of the tile.
        place: the index of the tile in the group.
        start, end: the range of columns.
    """

    tile: RowTile
    group: RowGroup
    place: int
    start: int
    end: int

    @property
    def columns(self) -> int:
        """The number of columns of each row in the chunk."""
        return self.end - self.start

    @property
    def width(self) -> int:
        """The number of elements per partition of the chunk."""
        return self.tile.each * self.columns

    @property
    def piece_width(self) -> int:
        """The number of elements per partition of every piece but the last; a short row is not divided between
        pieces.
        """
        return width_of_piece(self.columns, self.tile.each)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece and its place in the stream.

    Attributes:
        chunk: the chunk that contains the piece.
        visit: the number of chunks that the core has processed before.
        start, end: the elements of the piece in a partition of the chunk.
        piece: the piece itself, with the tensors.
        ends_row: whether the piece has the last columns of the tile's rows.
    """

    chunk: Chunk
    visit: int
    start: int
    end: int
    piece: Piece
    ends_row: bool

    @property
    def ends_chunk(self) -> bool:
        """Whether the piece is the last one of its chunk."""
        return self.end == self.chunk.width


@dataclass(frozen=True)
class RowStream:
    """The stream of the chunks of a core.

    Attributes:
        matrices_hbm: the streamed tensors by number, [N, D], or [1, D] for one that all rows share.
        chunks: the chunks of the core, in order.
        buffers_sbuf: ring buffers [128, elements] for the chunks, by the number of the tensor.
        scratch: the scratch tiles of the pieces.
        row_columns: the columns of a row, D.
    """

    matrices_hbm: dict[int, nl.NkiTensor]
    chunks: list[Chunk]
    buffers_sbuf: dict[int, list[nl.NkiTensor]]
    scratch: Scratch
    row_columns: int

    @classmethod
    def make(
        cls,
        launch: RowLaunch,
        matrices_hbm: dict[int, nl.NkiTensor],
        groups: list[RowGroup],
        scratch_tiles: int,
        is_by_columns: bool = False,
    ) -> RowStream:
        """Create a stream with the buffers of the tiling, and scratch for two pieces at a time.

        Args:
            launch: the launch, with the tiling.
            matrices_hbm: the tensors to stream, by number.
            groups: the groups of the core.
            scratch_tiles: the number of float32 tiles that a piece takes.
            is_by_columns: whether the chunks of all rows with the same columns come before those with the next
                columns.
        """
        tiling, columns = launch.tiling, launch.columns
        rings = {
            number: ring_of(tiling.buffers, tiling.width, matrix_hbm.dtype)
            for number, matrix_hbm in matrices_hbm.items()
        }
        scratch = Scratch.make(scratch_tiles, tiling.piece_width)
        chunks = [
            Chunk(tile, group, place, start, min(start + tiling.columns, columns))
            for group in groups
            for place, tile in enumerate(group.tiles)
            for start in range(0, columns, tiling.columns)
        ]
        if is_by_columns:
            chunks.sort(key=lambda chunk: chunk.start)
        return cls(matrices_hbm, chunks, rings, scratch, columns)

    @property
    def visits(self) -> int:
        """The number of visits, one per chunk, as required by :class:`nkilib.core.rows.overlap.PieceStream`."""
        return len(self.chunks)

    def pieces(self, visit: int) -> list[PlacedPiece]:
        """Return the pieces of a chunk of the core, and issue the loads of later chunks for which there are buffers.

        One buffer of each tensor is left to the previous chunk, whose last piece is finished after this chunk's
        first piece is begun.
        """
        in_flight = len(next(iter(self.buffers_sbuf.values()))) - 1
        first = 0 if visit == 0 else visit + in_flight - 1
        for number in range(first, min(visit + in_flight, len(self.chunks))):
            self._load(number)
        chunk = self.chunks[visit]
        on_chip = {number: self._on_chip(number, visit) for number in self.matrices_hbm}
        step = chunk.piece_width
        starts = range(0, chunk.width, step)
        return [self._piece(visit, start, min(start + step, chunk.width), on_chip) for start in starts]

    def _piece(self, visit: int, start: int, end: int, on_chip: dict[int, nl.NkiTensor]) -> PlacedPiece:
        chunk = self.chunks[visit]
        tensors = {number: tile_sbuf[:, start:end] for number, tile_sbuf in on_chip.items()}
        first_row, _ = chunk.group.columns(chunk.place)
        if chunk.tile.each == 1:
            piece = Piece(tensors, self.scratch, first_row, 1, is_long=True)
        else:
            rows = (end - start) // chunk.columns
            piece = Piece(tensors, self.scratch, first_row + start // chunk.columns, rows, is_long=False)
        return PlacedPiece(chunk, visit, start, end, piece, chunk.end == self.row_columns and end == chunk.width)

    def _load(self, visit: int) -> None:
        chunk = self.chunks[visit]
        for number, matrix_hbm in self.matrices_hbm.items():
            dst_sbuf = self._on_chip(number, visit)
            if matrix_hbm.shape[0] > 1:
                nisa.dma_copy(dst=dst_sbuf, src=chunk.tile.part_of(matrix_hbm, chunk.start, chunk.end))
            else:
                _load_shared(dst_sbuf, matrix_hbm[:, chunk.start : chunk.end], chunk.tile)

    def _on_chip(self, number: int, visit: int) -> nl.NkiTensor:
        chunk, ring = self.chunks[visit], self.buffers_sbuf[number]
        return ring[visit % len(ring)][0 : chunk.tile.partitions, 0 : chunk.width]


def _load_shared(dst_sbuf: nl.NkiTensor, row_hbm: nl.NkiTensor, tile: RowTile) -> None:
    """Load a row of numbers [1, columns] that all rows share, once for each row of the tile."""
    columns = row_hbm.shape[1]
    every_hbm = row_hbm.reshape((1, 1, columns)).broadcast(0, tile.partitions).broadcast(1, tile.each)
    nisa.dma_copy(dst=dst_sbuf.reshape((tile.partitions, tile.each, columns)), src=every_hbm)


def loaded_rows(vector_hbm: nl.NkiTensor, group: RowGroup) -> nl.NkiTensor:
    """Load the scalars of a group's rows from a vector [N] of a floating type, as float32 [partitions, rows]."""
    values_sbuf = nl.ndarray((group.partitions, group.rows), dtype=nl.float32, buffer=nl.sbuf)
    if group.tiles[0].each == 1:
        lines_sbuf = _loaded((len(group.tiles), group.partitions), group.lines_of(vector_hbm))
        nisa.tensor_copy(dst=values_sbuf, src=_transposed(lines_sbuf))
        return values_sbuf
    for place, tile in enumerate(group.tiles):
        start, end = group.columns(place)
        part_sbuf = _loaded((tile.partitions, tile.each), tile.of_vector(vector_hbm))
        nisa.tensor_copy(dst=values_sbuf[:, start:end], src=part_sbuf)
    return values_sbuf


def store_rows(vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor, group: RowGroup) -> None:
    """Store float32 scalars [partitions, rows] of a group in a vector [N] of any floating type."""
    if group.tiles[0].each == 1:
        lines_sbuf = _cast(_transposed(values_sbuf), vector_hbm.dtype)
        nisa.dma_copy(dst=group.lines_of(vector_hbm), src=lines_sbuf)
        return
    cast_sbuf = _cast(values_sbuf, vector_hbm.dtype)
    for place, tile in enumerate(group.tiles):
        start, end = group.columns(place)
        nisa.dma_copy(dst=tile.of_vector(vector_hbm), src=cast_sbuf[:, start:end])


def _loaded(shape: tuple[int, int], src_hbm: nl.NkiTensor) -> nl.NkiTensor:
    loaded_sbuf = nl.ndarray(shape, dtype=src_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=src_hbm)
    return loaded_sbuf if src_hbm.dtype == nl.float32 else _cast(loaded_sbuf, nl.float32)


def _cast(values: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Return a copy of a tile, in SBUF and in the type ``dtype``."""
    cast_sbuf = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast_sbuf, src=values)
    return cast_sbuf


def _transposed(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the float32 transpose, in PSUM."""
    rows, columns = values_sbuf.shape
    transposed_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=values_sbuf)
    return transposed_psum
