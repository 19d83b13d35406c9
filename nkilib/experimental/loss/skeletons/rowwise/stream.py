# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rows of several tensors [N, D] (N rows, D columns): loaded in chunks and cut into pieces; per-row scalars.

- :class:`RowTile`: adjacent rows, spread over the partitions; tiles do not depend on the number of cores;
- :class:`RowGroup`: tiles of one core, whose losses are computed together;
- :class:`Chunk`: the part of a tile that is loaded at a time; :class:`RowStream` loads the chunks of a core;
- :class:`Piece`: the part of a chunk on which a loss definition computes at a time;
- :class:`RowLaunch`: tensors and tiling of a launch;
- :func:`loaded_rows`, :func:`store_rows`: load and store the per-row scalars of a group.

*Long rows*: each partition of a tile has one row. Chunks are ranges of columns; a piece is a range of columns of a
chunk. An engine accumulates one value per *run* of up to 1,024 columns, and the values of all runs of a row are
combined at the end. *Short rows*: each partition has several whole rows, adjacent in HBM. A chunk is a whole tile; a
piece is some of the rows of each partition, and Vector reduces each row along its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nkilib.core.arithmetic import product
from nkilib.core.hardware import div_ceil
from nkilib.core.rows.sbuf import Scratch, ring_of
from nkilib.experimental.loss.skeletons.rowwise.tiling import (
    RUN_COLUMNS,
    RowwiseTiling,
    partitions_of_tile,
    width_of_piece,
)
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


# Tiles whose rows are finished together: the small instructions for them cost the same for one and for all.
GROUP_TILES = 16
# The maximum rows of a partition of a group of several tiles.
GROUP_ROWS = 512


@dataclass(frozen=True)
class RowTile:
    """A tile of adjacent rows; each partition has ``each`` rows.

    Attributes:
        number: the index of the tile among all tiles of the launch.
        first: the index of the first row.
        partitions: the number of partitions that the tile takes.
        each: the number of rows in each partition.
    """

    number: int
    first: int
    partitions: int
    each: int

    @property
    def end(self) -> int:
        """The index of the row after the tile's last one."""
        return self.first + self.partitions * self.each

    def part_of(self, matrix_hbm: nl.NkiTensor, start: int, end: int) -> nl.NkiTensor:
        """Return columns [start, end) of the tile's rows of a matrix, as a view [partitions, each * columns].

        If ``each`` is over 1, [start, end) must be all columns.
        """
        if self.each == 1:
            return matrix_hbm[self.first : self.end, start:end]
        return matrix_hbm[self.first : self.end, :].reshape((self.partitions, self.each * matrix_hbm.shape[1]))

    def of_vector(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements of a vector [N] for the tile's rows, as a view [partitions, each]."""
        return vector_hbm[self.first : self.end].reshape((self.partitions, self.each))


@dataclass(frozen=True)
class RowGroup:
    """A group of tiles of a core, all of one size, whose losses are computed together.

    A tensor [partitions, rows] of the group has one value per row: column ``tile * each + i`` of a partition belongs to
    row i of this partition in tile number ``tile`` of the group.

    Attributes:
        tiles: the tiles in order; successive tile numbers differ by ``cores``.
        start: the index of the group's first tile among the tiles of the core.
        cores: the number of cores of the launch.
    """

    tiles: list[RowTile]
    start: int
    cores: int

    @property
    def partitions(self) -> int:
        """The number of partitions of each tile."""
        return self.tiles[0].partitions

    @property
    def rows(self) -> int:
        """The number of rows in each partition, over all tiles of the group."""
        return len(self.tiles) * self.tiles[0].each

    def columns(self, tile: int) -> tuple[int, int]:
        """Return the columns (first, end) of the group's tile number ``tile`` in a tensor [partitions, rows]."""
        each = self.tiles[0].each
        return tile * each, (tile + 1) * each

    def lines_of(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        """Return the elements of a vector [N] for the group's rows, as a view [tiles, partitions].

        Each partition of a tile must have one row.
        """
        first, last, size = self.tiles[0], self.tiles[-1], self.partitions
        lines_hbm = vector_hbm[first.first : last.end].reshape(((last.end - first.first) // size, size))
        return lines_hbm if len(self.tiles) == 1 else lines_hbm[:: self.cores, :]


def row_tiles(rows: int, partitions: int, each: int) -> list[RowTile]:
    """Return all tiles for ``rows`` rows.

    Full tiles come first, then at most one tile with fewer rows per partition, then at most one tile with fewer
    partitions and one row in each.

    Args:
        rows: the number of rows, N.
        partitions: the number of partitions of a full tile.
        each: the number of rows per partition of a full tile.
    """
    tiles: list[RowTile] = []
    done = 0
    for share in sorted({each, 1}, reverse=True):
        while rows - done >= partitions * share:
            tiles.append(RowTile(len(tiles), done, partitions, share))
            done += partitions * share
        left = (rows - done) // partitions
        if share > 1 and left > 1:
            tiles.append(RowTile(len(tiles), done, partitions, left))
            done += partitions * left
    if done < rows:
        tiles.append(RowTile(len(tiles), done, rows - done, 1))
    return tiles


def _joins(group: RowGroup, tile: RowTile) -> bool:
    last = group.tiles[-1]
    is_alike = (last.partitions, last.each) == (tile.partitions, tile.each)
    most = min(GROUP_TILES, max(1, GROUP_ROWS // tile.each))
    return is_alike and len(group.tiles) < most


def groups_of_core(tiles: list[RowTile], cores: int, core: int) -> list[RowGroup]:
    """Return the groups of core ``core``, each of successive tiles of one size.

    The tiles of the core are every ``cores``-th tile, from tile number ``core`` on.
    """
    own = tiles[core::cores]
    groups: list[RowGroup] = []
    for number, tile in enumerate(own):
        if groups and _joins(groups[-1], tile):
            groups[-1].tiles.append(tile)
        else:
            groups.append(RowGroup([tile], number, cores))
    return groups


@dataclass(frozen=True)
class RowLaunch:
    """The tensors of a launch, and its tiling.

    Attributes:
        matrices_hbm: the tensors [N, D], in the order of their numbers; [1, D] for a tensor that all rows share.
        vectors_hbm: per-row scalars that the loss definition takes, each float32 [N].
        tiling: the tiling of the rows.
    """

    matrices_hbm: tuple[nl.NkiTensor, ...]
    tiling: RowwiseTiling
    vectors_hbm: tuple[nl.NkiTensor, ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows, N."""
        return int(self.matrices_hbm[0].shape[0])

    @property
    def columns(self) -> int:
        """The number of columns, D."""
        return int(self.matrices_hbm[0].shape[1])

    def tiles(self) -> list[RowTile]:
        """Return the tiles of all cores, in the order of rows."""
        return row_tiles(self.rows, partitions_of_tile(self.rows), self.tiling.each)

    def groups(self) -> list[RowGroup]:
        """Return the groups of tiles of this core."""
        return groups_of_core(self.tiles(), nl.num_programs(), nl.program_id(0))


@dataclass(frozen=True)
class Piece:
    """The part of a chunk that is processed at a time: in each partition, a range of columns of one long row, or some
    short rows.

    Attributes:
        tensors: the elements of each loaded tensor, [partitions, elements] in its type, by the number of the tensor.
        scratch: the source of float32 tiles of the piece's size.
        row: the index of the piece's first row (of each partition) among the rows of the partition in the group.
        rows: the number of rows of the piece in each partition.
        is_long: whether the rows are long, so that other pieces may hold further columns of the same rows.
        numbers_sbuf: in a forward, for each statistic, the tile for its values in this piece: float32 [partitions,
            runs of the piece] for long rows, [partitions, rows of the piece] for short rows.
        later: in a backward, functions that issue remaining work; they are called after the next piece has begun.
    """

    tensors: dict[int, nl.NkiTensor]
    scratch: Scratch
    row: int
    rows: int
    is_long: bool
    numbers_sbuf: list[nl.NkiTensor] = field(default_factory=list)
    later: list[Callable[[], None]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape as (partitions, elements per partition)."""
        partitions, elements = next(iter(self.tensors.values())).shape
        return partitions, elements

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of a piece of long rows, each as (first element, end)."""
        elements = self.shape[1]
        return [(start, min(start + RUN_COLUMNS, elements)) for start in range(0, elements, RUN_COLUMNS)]

    def float32(self) -> nl.NkiTensor:
        """Return an uninitialised float32 scratch tile of the piece's size.

        A piece may take as many tiles as ``forward_tiles`` and ``backward_tiles`` of its loss definition allow.
        """
        return self.scratch.next(*self.shape)

    def by_row(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return a tile of the piece's size, reshaped to [partitions, rows, columns]."""
        partitions, elements = self.shape
        return tile_sbuf.reshape((partitions, self.rows, elements // self.rows))

    def of_rows(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values of the piece's rows, a view [partitions, rows of the piece].

        ``values_sbuf`` has the values of all rows of the group, [partitions, rows of the group].
        """
        return values_sbuf[0 : self.shape[0], self.row : self.row + self.rows]

    def of_elements(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return :meth:`of_rows`, broadcast to all elements of each row: a view [partitions, rows, columns]."""
        return self.of_rows(values_sbuf).expand_dim(2).broadcast(2, self.shape[1] // self.rows)

    def add_function(
        self,
        statistic: int,
        op: Operator,
        dst_sbuf: nl.NkiTensor,
        data_sbuf: nl.NkiTensor,
        bias_sbuf: nl.NkiTensor | None = None,
        scale: float = 1.0,
    ) -> None:
        """Sum ``op(data * scale + bias)`` over each run or short row, as statistic number ``statistic``.

        Scalar computes the function and the sums of runs, Vector the sums of short rows.

        Args:
            statistic: the index of the statistic, a sum, in :attr:`numbers_sbuf`.
            op: an activation function.
            dst_sbuf: a float32 tile for the values of the function; it may be ``data_sbuf``.
            data_sbuf: a tile of the piece's size, of any type.
            bias_sbuf: the bias, float32 [partitions or more, 1]; None for 0.
            scale: the factor of the data.
        """
        keywords = {} if bias_sbuf is None else {"bias": bias_sbuf[0 : self.shape[0], :]}
        if not self.is_long:
            nisa.activation(dst=dst_sbuf, op=op, data=data_sbuf, scale=scale, **keywords)
            self.add(statistic, dst_sbuf)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.activation(
                dst=dst_sbuf[:, start:end],
                op=op,
                data=data_sbuf[:, start:end],
                scale=scale,
                reduce_op=nl.add,
                reduce_res=self.numbers_sbuf[statistic][:, number : number + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
                **keywords,
            )

    def add_product(
        self, statistic: int, dst_sbuf: nl.NkiTensor, left_sbuf: nl.NkiTensor, right_sbuf: nl.NkiTensor
    ) -> None:
        """Sum ``left * right`` over each run or short row, as statistic number ``statistic``, on Vector.

        The products are written to ``dst_sbuf``, a float32 tile.
        """
        if not self.is_long:
            product(dst_sbuf, left_sbuf, right_sbuf)
            self.add(statistic, dst_sbuf)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.scalar_tensor_tensor(
                dst=dst_sbuf[:, start:end],
                data=left_sbuf[:, start:end],
                op0=nl.multiply,
                operand0=1.0,
                op1=nl.multiply,
                operand1=right_sbuf[:, start:end],
                reduce_op=nl.add,
                reduce_res=self.numbers_sbuf[statistic][:, number : number + 1],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def add(self, statistic: int, values_sbuf: nl.NkiTensor) -> None:
        """Sum a float32 tile over each run or short row, as statistic number ``statistic``, on Vector."""
        self._reduce(statistic, values_sbuf, nl.add)

    def take_maximum(self, statistic: int, values_sbuf: nl.NkiTensor) -> None:
        """Compute the maximum of each run or short row of a tile, as statistic number ``statistic``, on Vector."""
        self._reduce(statistic, values_sbuf, nl.maximum)

    def count_equal(self, statistic: int, values_sbuf: nl.NkiTensor, numbers_sbuf: nl.NkiTensor) -> None:
        """Count the elements of each run or short row that equal a given number, on Vector.

        Args:
            statistic: the index of the statistic, a count, in :attr:`numbers_sbuf`.
            values_sbuf: the elements, a float32 tile; overwritten.
            numbers_sbuf: the number to compare with, for each run or short row: [partitions, runs or rows].
        """
        if not self.is_long:
            columns = self.shape[1] // self.rows
            nisa.tensor_tensor(
                dst=self.by_row(values_sbuf),
                data1=self.by_row(values_sbuf),
                data2=numbers_sbuf.expand_dim(2).broadcast(2, columns),
                op=nl.equal,
            )
        else:
            for number, (start, end) in enumerate(self.runs):
                nisa.tensor_scalar(
                    dst=values_sbuf[:, start:end],
                    data=values_sbuf[:, start:end],
                    op0=nl.equal,
                    operand0=numbers_sbuf[:, number : number + 1],
                )
        self.add(statistic, values_sbuf)

    def _reduce(self, statistic: int, values_sbuf: nl.NkiTensor, op: Operator) -> None:
        numbers_sbuf = self.numbers_sbuf[statistic]
        if not self.is_long:
            nisa.tensor_reduce(dst=numbers_sbuf, op=op, data=self.by_row(values_sbuf), axis=2)
            return
        for number, (start, end) in enumerate(self.runs):
            nisa.tensor_reduce(dst=numbers_sbuf[:, number : number + 1], op=op, data=values_sbuf[:, start:end], axis=1)


def runs_of(elements: int) -> int:
    """Return the number of runs of ``elements`` adjacent elements; a run has at most ``RUN_COLUMNS`` elements."""
    return div_ceil(elements, RUN_COLUMNS)


@dataclass(frozen=True)
class Chunk:
    """The part of a tile that is loaded at a time: a range of columns of long rows, or all columns of short rows.

    Attributes:
        tile: the tile that contains the rows.
        group: the group of the tile.
        place: the index of the tile in the group.
        start, end: the range [start, end) of columns.
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
        """The number of elements per partition of a piece; the last piece may have fewer."""
        return width_of_piece(self.columns, self.tile.each)


@dataclass(frozen=True)
class PlacedPiece:
    """A piece and its place in the stream.

    Attributes:
        chunk: the chunk that contains the piece.
        visit: the index of the chunk among the chunks of the core.
        start, end: the range [start, end) of the piece's elements in a partition of the chunk.
        piece: the piece itself.
        ends_row: whether this is the last piece of its tile.
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


def _load_shared(dst_sbuf: nl.NkiTensor, row_hbm: nl.NkiTensor, tile: RowTile) -> None:
    columns = row_hbm.shape[1]
    every_hbm = row_hbm.reshape((1, 1, columns)).broadcast(0, tile.partitions).broadcast(1, tile.each)
    nisa.dma_copy(dst=dst_sbuf.reshape((tile.partitions, tile.each, columns)), src=every_hbm)


@dataclass(frozen=True)
class RowStream:
    """The stream of the chunks of a core.

    Attributes:
        matrices_hbm: the streamed tensors by number, [N, D], or [1, D] for one that all rows share.
        chunks: the chunks of the core, in order.
        buffers_sbuf: for each tensor by number, buffer slots [128, elements] for its chunks, used round-robin.
        scratch: the scratch tiles of the pieces.
        row_columns: the number of columns of a row, D.
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
        """Return a stream, with new buffers and with scratch tiles for two pieces at a time.

        Args:
            launch: the launch, with the tiling.
            matrices_hbm: the tensors to stream, by number.
            groups: the groups of the core.
            scratch_tiles: the number of float32 scratch tiles of a piece.
            is_by_columns: whether all chunks of the first columns come first, instead of all chunks of the first tile.
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
        """The number of chunks to process, as :class:`nkilib.core.rows.stream.PieceStream` requires."""
        return len(self.chunks)

    def pieces(self, visit: int) -> list[PlacedPiece]:
        """Issue the loads of further chunks into free buffers, and return the pieces of chunk number ``visit``.

        One buffer of each tensor is not free: the last piece of chunk ``visit`` - 1 is still in use.
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


def _cast(values: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    cast_sbuf = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast_sbuf, src=values)
    return cast_sbuf


def _transposed(values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    rows, columns = values_sbuf.shape
    transposed_psum = nl.ndarray((columns, rows), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=transposed_psum, data=values_sbuf)
    return transposed_psum


def _loaded(shape: tuple[int, int], src_hbm: nl.NkiTensor) -> nl.NkiTensor:
    loaded_sbuf = nl.ndarray(shape, dtype=src_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=loaded_sbuf, src=src_hbm)
    return loaded_sbuf if src_hbm.dtype == nl.float32 else _cast(loaded_sbuf, nl.float32)


def loaded_rows(vector_hbm: nl.NkiTensor, group: RowGroup) -> nl.NkiTensor:
    """Load the elements of a vector [N] for a group's rows, and return them as float32 [partitions, rows].

    If each partition of a tile has one row, the elements of a tile are loaded as a line, which Tensor transposes.
    """
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
    """Store float32 values [partitions, rows] of a group's rows in a vector [N] of any floating type."""
    if group.tiles[0].each == 1:
        lines_sbuf = _cast(_transposed(values_sbuf), vector_hbm.dtype)
        nisa.dma_copy(dst=group.lines_of(vector_hbm), src=lines_sbuf)
        return
    cast_sbuf = _cast(values_sbuf, vector_hbm.dtype)
    for place, tile in enumerate(group.tiles):
        start, end = group.columns(place)
        nisa.dma_copy(dst=tile.of_vector(vector_hbm), src=cast_sbuf[:, start:end])
