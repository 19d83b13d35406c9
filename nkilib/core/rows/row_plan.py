# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of rows over partitions, instructions and batches.

A long row lies on several partitions, and a partition holds several short rows. A *piece* (:class:`RowPiece`) is what
one instruction processes. A plan (:class:`RowPlan`) holds for all rows of one length. A *batch* (:class:`RowBatch`) has
the rows of a core that are processed together, and loads and stores them. :func:`batches_of_core` makes the batches.
:func:`row_plan` makes the plan of rows that stay in SBUF between two passes over them, so that HBM is read once and
written once. It needs the bytes that a loop keeps on chip (:class:`Streams`). :func:`kept_plan` makes a plan in which
the exponentials of a row stay on chip as well.

The rounding of a row may depend on the row's length, the types and the sizes that the caller sets, but on nothing else.
The number of rows per partition affects no bit of a result, so :func:`batches_of_core` may choose it by the number of
rows.

The values of several partitions are moved to a *line*, side by side in one partition (:func:`on_line`), and back
(:func:`off_line`, :func:`column_of`).

A row of C elements lies on F partitions, 1 to 128. Its *part* on a partition is W = floor(C / F) columns wide; the last
part has the remaining columns too, its *tail*. The other parts have the same number of padding columns instead, which
change no maximum and no sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS, div_ceil
from nkilib.core.plan_limits import limited_sbuf_bytes
from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require
from nkilib.nki import nisa, nl

# Bytes per partition for all tiles together: SBUF of trn1 has 180,224 bytes, later generations have more; the rest is
# for small tiles. The value is the same on every generation, so that results are bitwise identical.
SBUF_BYTES = 168_000
# Bytes per partition that an instruction processes, and that a transfer moves, unless the caller states others.
PIECE_BYTES, SHORT_PIECE_BYTES = 8192, 4096
# Rows of up to so many elements are short: the fixed cost of instructions matters for each of them.
SHORT_ROW = 512
# One instruction computes many rows of up to so many elements, which takes more passes over them: this is faster up to
# 36 elements for softmax, and 48 for log-softmax.
TINY_ROW = 40
# Batches on chip: one is loaded, one computed, one stored; pieces of a few more batches hide latencies.
_LEAST_BATCHES, _MOST_BATCHES = 3, 8
# The minimum number of pieces of long rows: other pieces are processed while the statistics of a row are combined.
_LEAST_PIECES, _LEAST_PIECES_OF_PARTS = 4, 8
# The maximum number of pieces of a batch of whole rows: the first load and the last store of larger ones take longer.
MOST_PIECES = 2
# Exponentials that are kept: rows of up to so many bytes, in the widest type of a piece, have one piece; longer ones
# have pieces of up to so many elements, and up to so many of them.
_LARGEST_KEPT_ROW_BYTES, _LARGEST_KEPT_PIECE, _MOST_KEPT_PIECES = 8192, 2048, 16
# Pieces that have such tiles besides those of one row, for rows of one piece, of several, and on several partitions: as
# many as are processed while the statistics of a row are combined, and until its first piece is finished.
_KEPT_AHEAD_OF_ONE, _KEPT_AHEAD, _KEPT_AHEAD_OF_PARTS = 3, 7, 10
# The least number of batches on chip then, and of further pieces that are loaded or stored meanwhile; and that of large
# pieces of rows on several partitions, from so many elements on.
_LEAST_KEPT_BATCHES, _KEPT_MARGIN = 2, 4
_KEPT_MARGIN_OF_LARGE, _LARGE_KEPT_PIECE = 8, 1025
# Rows that are spread over more partitions than they need have up to so many pieces, of so many elements or more: a
# core has few of them, and its loads overlap with nothing but other pieces of the same rows.
_MOST_SPREAD_PIECES, _LEAST_SPREAD_PIECE = 8, 384


@dataclass(frozen=True)
class RowPiece:
    """The part of a batch that one instruction, or one transfer, processes: some rows of each partition, or some
    columns.

    Attributes:
        first, end: the rows of each partition, from ``first`` up to but not including ``end``.
        start, stop: the columns of each partition, from ``start`` up to but not including ``stop``.
        column: the column of the statistics that gets the values of the piece, if rows have several pieces.
    """

    first: int
    end: int
    start: int
    stop: int
    column: int

    @property
    def rows(self) -> int:
        """The number of rows of the piece in each partition."""
        return self.end - self.first

    @property
    def columns(self) -> int:
        """The number of columns of the piece in each of its rows."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """The number of elements of the piece in each partition."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Streams:
    """The bytes of SBUF that a loop takes in a partition.

    Attributes:
        resident: the bytes for each element of a row, from its load to its store.
        scratch: the bytes for each element of a piece.
        element: the bytes of an element of the widest type of a piece.
    """

    resident: int
    scratch: int
    element: int


@dataclass(frozen=True)
class RowPlan:
    """The plan of rows of one length and type; C, F and W are defined in the module.

    Attributes:
        row_size: C, the number of elements of a row.
        parts: F, the number of partitions of a row.
        width: W, the number of columns of a part without the tail.
        piece_size: the maximum number of elements of a piece in a partition.
        rows_of_piece: the maximum number of rows of a piece in a partition; 1 if a row has several pieces.
        rows_each: the maximum number of rows per partition.
        batches_on_chip: the number of batches whose rows are in SBUF at a time.
        kept_pieces: the number of tiles for exponentials of pieces that stay on chip (:func:`kept_plan`); 0 in other
            plans.
    """

    row_size: int
    parts: int
    width: int
    piece_size: int
    rows_of_piece: int
    rows_each: int
    batches_on_chip: int
    kept_pieces: int = 0

    @property
    def tail(self) -> int:
        """The number of columns of the last part of a row beyond W: the remainder of C / F."""
        return self.row_size - self.parts * self.width

    @property
    def columns(self) -> int:
        """The number of columns that a row takes in each of its partitions, padding included."""
        return self.width + self.tail

    @property
    def pieces_per_row(self) -> int:
        """The number of pieces into which the columns of a row in a partition are divided."""
        return div_ceil(self.columns, self.piece_size)

    @property
    def is_whole(self) -> bool:
        """Whether one piece has all elements of a row, so that nothing has to be combined."""
        return self.parts == 1 and self.pieces_per_row == 1

    @property
    def is_short(self) -> bool:
        """Whether a partition holds at most ``SHORT_ROW`` columns of a row, so that the fixed cost of an instruction
        per row matters.
        """
        return self.columns <= SHORT_ROW

    @property
    def is_tiny(self) -> bool:
        """Whether a partition holds at most ``TINY_ROW`` columns of a row, so that an instruction must process many
        rows to be worth its fixed cost.
        """
        return self.columns <= TINY_ROW

    def pieces(self, rows_each: int) -> list[RowPiece]:
        """Return the pieces into which a batch with ``rows_each`` rows per partition is divided."""
        if self.pieces_per_row > 1:
            size = div_ceil(self.columns, self.pieces_per_row)
            starts = range(0, self.columns, size)
            return [RowPiece(0, 1, at, min(at + size, self.columns), number) for number, at in enumerate(starts)]
        step = self.rows_of_piece
        return [RowPiece(at, min(at + step, rows_each), 0, self.columns, 0) for at in range(0, rows_each, step)]


def _parts(row_size: int, fitting: int) -> int:
    least = div_ceil(row_size, fitting)
    if least == 1:
        return 1
    dividing = [parts for parts in range(least, min(PARTITIONS, 2 * least) + 1) if row_size % parts == 0]
    if dividing:
        return dividing[0]
    parts = 2
    # The last part also holds the rest of the row.
    while parts < PARTITIONS and row_size - (parts - 1) * (row_size // parts) > fitting:
        parts *= 2
    return parts


def largest_row(streams: Streams) -> int:
    """Return the length of the longest row that stays on chip. Only one batch of such rows is on chip, so its transfers
    do not overlap with computation.
    """
    on_chip = (limited_sbuf_bytes(SBUF_BYTES) - streams.scratch * PIECE_BYTES // streams.element) // streams.resident
    return (on_chip - PARTITIONS) * PARTITIONS


def row_plan(
    function: str,
    row_size: int,
    streams: Streams,
    chunk_size: int | None,
    most_pieces: int = MOST_PIECES,
    piece_bytes: int | None = None,
    least_parts: int | None = None,
) -> RowPlan:
    """Return the plan of rows of ``row_size`` elements.

    Args:
        function: the name of the kernel, for messages.
        row_size: C, the number of elements of a row.
        streams: the bytes that the loop keeps in a partition.
        chunk_size: the maximum number of elements of a piece; None means the number that is modelled to be fastest.
        most_pieces: the maximum number of pieces of a batch, if each piece holds whole rows.
        piece_bytes: the bytes of a piece; None means the default for rows of that length.
        least_parts: a lower limit for the partitions per row; a row of fewer elements gets one partition per element.
            None means no lower limit: as few partitions as fit.

    Raises:
        AssertionError: a row does not fit on chip.
    """
    require(
        row_size <= largest_row(streams),
        f"{function}: the axis must have at most {largest_row(streams)} elements of these types, which stay on chip, "
        f"got {row_size}; split the axis and combine the statistics of its parts",
    )
    if piece_bytes is None:
        piece_bytes = SHORT_PIECE_BYTES if row_size <= SHORT_ROW else PIECE_BYTES
    fitting = limited_sbuf_bytes(SBUF_BYTES)
    usual = piece_bytes // streams.element
    piece_size = max(1, min(usual if chunk_size is None else chunk_size, fitting // 3 // streams.scratch))
    on_chip = (fitting - streams.scratch * max(usual, piece_size)) // streams.resident
    parts = max(_parts(row_size, on_chip // _LEAST_BATCHES), min(least_parts or 1, row_size))
    width = row_size // parts
    columns = row_size - (parts - 1) * width
    if chunk_size is None and least_parts is not None:
        piece_size = min(piece_size, _spread_piece(columns))
    if columns > piece_size:
        least = _LEAST_PIECES_OF_PARTS if parts > 1 else _LEAST_PIECES
        if chunk_size is None and least_parts is None:
            piece_size = min(piece_size, div_ceil(columns, least))
        return RowPlan(row_size, parts, width, piece_size, 1, 1, min(_MOST_BATCHES, on_chip // columns))
    rows_of_piece = 1 if parts > 1 else max(1, min(piece_size, on_chip) // columns)
    pieces_on_chip = on_chip // (rows_of_piece * columns)
    pieces = max(1, min(most_pieces, pieces_on_chip // _LEAST_BATCHES)) if parts == 1 else 1
    rows_each = 1 if parts > 1 else rows_of_piece * pieces
    batches = min(_MOST_BATCHES, pieces_on_chip // pieces)
    return RowPlan(row_size, parts, width, piece_size, rows_of_piece, rows_each, batches)


def _spread_piece(columns: int) -> int:
    """Return the number of elements of a piece if few rows are spread over many partitions.

    Args:
        columns: the number of columns of a row in each partition.
    """
    return div_ceil(columns, max(1, min(_MOST_SPREAD_PIECES, columns // _LEAST_SPREAD_PIECE)))


def kept_plan(
    row_size: int, streams: Streams, chunk_size: int | None, least_parts: int | None = None
) -> RowPlan | None:
    """Return a plan in which the exponentials of a row stay on chip until the row's sum is known.

    Args:
        row_size: C, the number of elements of a row.
        streams: the bytes that the loop keeps in a partition; ``scratch`` does not include the exponentials.
        chunk_size: the maximum number of elements of a piece; None means the number that is modelled to be fastest.
            The number of partitions of a row does not depend on it.
        least_parts: see :func:`row_plan`.

    Returns:
        The plan, or None if no plan fits the exponentials of a row and several batches.
    """
    fastest = _fastest_kept_plan(row_size, streams, least_parts)
    if fastest is None or chunk_size is None:
        return fastest
    asked = _kept_on(row_size, fastest.parts, streams, min(chunk_size, fastest.columns))
    return fastest if asked is None and fastest.piece_size <= chunk_size else asked


def _fastest_kept_plan(row_size: int, streams: Streams, least_parts: int | None) -> RowPlan | None:
    parts = min(least_parts or 1, row_size)
    while parts <= PARTITIONS:
        columns = row_size - (parts - 1) * (row_size // parts)
        for piece_size in _kept_sizes(columns, streams) if least_parts is None else [_spread_piece(columns)]:
            plan = _kept_on(row_size, parts, streams, piece_size)
            if plan is not None:
                return plan
        parts *= 2
    return None


def _kept_on(row_size: int, parts: int, streams: Streams, piece_size: int) -> RowPlan | None:
    """Return a plan with ``parts`` partitions per row and pieces of ``piece_size`` elements; None if it does not
    fit.
    """
    width = row_size // parts
    columns = row_size - (parts - 1) * width
    pieces = div_ceil(columns, piece_size)
    ahead = _KEPT_AHEAD_OF_PARTS if parts > 1 else _KEPT_AHEAD if pieces > 1 else _KEPT_AHEAD_OF_ONE
    kept = pieces + ahead
    left = limited_sbuf_bytes(SBUF_BYTES) - (FLOAT32_BYTES * kept + streams.scratch) * piece_size
    batches = min(_MOST_BATCHES, left // (streams.resident * columns))
    margin = _KEPT_MARGIN_OF_LARGE if parts > 1 and piece_size >= _LARGE_KEPT_PIECE else _KEPT_MARGIN
    if batches < _LEAST_KEPT_BATCHES or batches * pieces < kept + margin:
        return None
    return RowPlan(row_size, parts, width, piece_size, 1, 1, batches, kept)


def _kept_sizes(columns: int, streams: Streams) -> list[int]:
    if columns * streams.element <= _LARGEST_KEPT_ROW_BYTES:
        return [columns]
    fewest = div_ceil(columns, _LARGEST_KEPT_PIECE)
    return [div_ceil(columns, pieces) for pieces in range(fewest, _MOST_KEPT_PIECES + 1)]


@dataclass(frozen=True)
class _Transfer:
    """The columns of a piece that one transfer moves: columns that all parts of a row have, or columns of the tail.

    Attributes:
        piece: the piece of a batch.
        start, stop: the columns in a partition, from ``start`` up to but not including ``stop``.
        is_tail: whether only the last part has these columns.
    """

    piece: RowPiece
    start: int
    stop: int
    is_tail: bool

    def on_all_partitions(self, piece_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        return piece_sbuf[:, :, self.start - self.piece.start : self.stop - self.piece.start]

    def on_chip(self, piece_sbuf: nl.NkiTensor, plan: RowPlan) -> nl.NkiTensor:
        """Return the elements of the piece's tile that the transfer moves; for a tail, those in the last partition of
        each row.
        """
        columns_sbuf = self.on_all_partitions(piece_sbuf)
        if not self.is_tail:
            return columns_sbuf
        return columns_sbuf[plan.parts - 1 : columns_sbuf.shape[0] : plan.parts]

    def in_hbm(self, matrix_hbm: nl.NkiTensor, batch: RowBatch) -> nl.NkiTensor:
        """Return the elements of a matrix [rows, C] in HBM that the transfer moves."""
        plan, piece = batch.plan, self.piece
        if self.is_tail:
            skipped = (plan.parts - 1) * plan.width
            return matrix_hbm[batch.first : batch.first + batch.lines, skipped + self.start : skipped + self.stop]
        rows_hbm = matrix_hbm[batch.first : batch.first + batch.lines * batch.rows_each, 0 : plan.parts * plan.width]
        if plan.parts > 1:
            return rows_hbm.reshape_dim(1, (plan.parts, plan.width))[:, :, self.start : self.stop]
        by_partition_hbm = rows_hbm.reshape_dim(0, (batch.lines, batch.rows_each))
        return by_partition_hbm[:, piece.first : piece.end, self.start : self.stop]


@dataclass(frozen=True)
class RowBatch:
    """Rows that are in SBUF together: ``rows_each`` rows per partition, or ``plan.parts`` partitions per row.

    Attributes:
        plan: the plan of the rows.
        matrix: the index of the matrix that the rows belong to.
        first: the index of the first row in the matrix; the rows are consecutive.
        lines: the number of rows of the batch divided by ``rows_each``, which is the number of partitions if
            ``plan.parts`` is 1.
        rows_each: the number of rows per partition.
    """

    plan: RowPlan
    matrix: int
    first: int
    lines: int
    rows_each: int

    @property
    def partitions(self) -> int:
        """The number of partitions that hold rows of the batch."""
        return self.lines * self.plan.parts

    @cached_property
    def pieces(self) -> list[RowPiece]:
        """The pieces of the batch, in the order in which they are processed."""
        return self.plan.pieces(self.rows_each)

    @property
    def start(self) -> int:
        """0: the rows are a single batch. :class:`.batches.StoredRows` requires this property."""
        return 0

    @property
    def as_rows(self) -> Batch:
        """The rows as a :class:`Batch`, with one value per partition; for batches with at most one row per
        partition.
        """
        return Batch(self.first, self.lines, 1)

    @property
    def as_line(self) -> RowBatch:
        """The rows as a batch whose values lie on one line: all rows in one partition."""
        return RowBatch(replace(self.plan, parts=1), self.matrix, self.first, 1, self.lines * self.rows_each)

    def loaded(self, vector_hbm: nl.NkiTensor, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Load the elements of the rows from a vector [N] into a new tile [partitions, rows per partition], and return
        the tile.

        All partitions of a row get the row's element.
        """
        values_sbuf = nl.ndarray((self.partitions, self.rows_each), dtype=dtype, buffer=nl.sbuf)
        self.load_values(vector_hbm, values_sbuf)
        return values_sbuf

    def load_values(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
        """Load the elements of a vector as :meth:`loaded` does, into a tile of the caller."""
        of_rows_hbm = self._of_rows(vector_hbm)
        if self.plan.parts > 1:
            of_rows_hbm = of_rows_hbm.broadcast(1, self.plan.parts)
        nisa.dma_copy(dst=values_sbuf, src=of_rows_hbm)

    def stored(self, vector_hbm: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> nisa.NkiInstruction:
        """Store a tile [lines, rows per partition] as the elements of the rows in a vector [N]; return the DMA
        instruction.
        """
        return nisa.dma_copy(dst=self._of_rows(vector_hbm), src=values_sbuf)

    def _of_rows(self, vector_hbm: nl.NkiTensor) -> nl.NkiTensor:
        own_hbm = vector_hbm.slice(0, self.first, self.first + self.lines * self.rows_each)
        return own_hbm.reshape_dim(0, (self.lines, self.rows_each))

    def tile_of(self, buffer_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the part of a buffer [128, size] that holds the batch, as a view [partitions, rows per partition,
        columns].
        """
        columns = self.plan.columns
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : self.rows_each * columns]
        return flat_sbuf.reshape((self.partitions, self.rows_each, columns))

    def piece_of(self, buffer_sbuf: nl.NkiTensor, piece: RowPiece) -> nl.NkiTensor:
        """Return the first elements of a scratch buffer [128, size], as a view [partitions, rows, columns] for a
        piece.
        """
        flat_sbuf = buffer_sbuf[0 : self.partitions, 0 : piece.size]
        return flat_sbuf.reshape((self.partitions, piece.rows, piece.columns))

    def load(self, matrix_hbm: nl.NkiTensor, piece: RowPiece, piece_sbuf: nl.NkiTensor, padding: float) -> None:
        """Load a piece of the rows of a matrix.

        Args:
            matrix_hbm: the matrix, [rows, C].
            piece: the piece.
            piece_sbuf: the tile for it, [partitions, rows, columns].
            padding: the value for the padding columns of partitions without a tail.
        """
        for transfer in self._transfers(piece):
            if transfer.is_tail:
                nisa.memset(dst=transfer.on_all_partitions(piece_sbuf), value=padding)
            nisa.dma_copy(dst=transfer.on_chip(piece_sbuf, self.plan), src=transfer.in_hbm(matrix_hbm, self))

    def store(self, matrix_hbm: nl.NkiTensor, piece: RowPiece, piece_sbuf: nl.NkiTensor) -> list[nisa.NkiInstruction]:
        """Store a piece of the rows, [partitions, rows, columns], into a matrix; return the DMA instructions."""
        return [
            nisa.dma_copy(dst=transfer.in_hbm(matrix_hbm, self), src=transfer.on_chip(piece_sbuf, self.plan))
            for transfer in self._transfers(piece)
        ]

    def _transfers(self, piece: RowPiece) -> list[_Transfer]:
        width = self.plan.width
        if piece.stop <= width:
            return [_Transfer(piece, piece.start, piece.stop, False)]
        transfers = [_Transfer(piece, max(piece.start, width), piece.stop, True)]
        if piece.start < width:
            transfers.append(_Transfer(piece, piece.start, width, False))
        return transfers


def _batch_of(plan: RowPlan, matrix: int, first: int, left: int, least_batches: int) -> RowBatch:
    if plan.parts > 1:
        return RowBatch(plan, matrix, first, min(left, PARTITIONS // plan.parts), 1)
    if left < PARTITIONS:
        return RowBatch(plan, matrix, first, left, 1)
    least = div_ceil(left, PARTITIONS)
    if least_batches == 1 and least <= plan.rows_each and left % least == 0:
        return RowBatch(plan, matrix, first, left // least, least)
    most = left // PARTITIONS
    # Batches of equal size, without a short one at the end; several for few rows, so that engines work in parallel.
    batches = max(div_ceil(most, plan.rows_each), min(least_batches, most // plan.rows_of_piece), 1)
    rows_each = div_ceil(most, batches)
    return RowBatch(plan, matrix, first, PARTITIONS, rows_each)


def batches_of_core(
    plan: RowPlan, matrices: int, rows: int, cores: int, core: int, least_batches: int = _LEAST_BATCHES
) -> list[RowBatch]:
    """Return the batches of a core, which processes a consecutive share of the rows of each matrix.

    Batches with full partitions come first. The last ones have fewer rows per partition, then fewer partitions.

    Args:
        plan: the plan of the rows.
        matrices: the number of matrices.
        rows: the number of rows of a matrix.
        cores: the number of cores of the launch.
        core: the number of this core.
        least_batches: the least number of batches into which rows that fill 128 partitions are divided. There are
            fewer batches if a batch would be smaller than a piece. With 1, a single batch may also use fewer
            partitions, if the rows divide evenly among them.
    """
    batches = []
    share = div_ceil(rows, cores)
    for matrix in range(matrices):
        first, end = core * share, min(rows, (core + 1) * share)
        while first < end:
            batch = _batch_of(plan, matrix, first, end - first, least_batches)
            batches.append(batch)
            first += batch.lines * batch.rows_each
    return batches


def on_line(column_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the transpose [1, partitions] of a tile [partitions, 1], in PSUM."""
    line_psum = nl.ndarray((1, column_sbuf.shape[0]), dtype=column_sbuf.dtype, buffer=nl.psum)
    nisa.nc_transpose(dst=line_psum, data=column_sbuf)
    return line_psum


def off_line(line_sbuf: nl.NkiTensor, parts: int) -> nl.NkiTensor:
    """Return the values of a line, [1, rows], on the partitions of their rows, [rows * parts, 1] in PSUM.

    Args:
        line_sbuf: the line, float32.
        parts: the number of partitions of a row.
    """
    rows = line_sbuf.shape[1]
    spread_sbuf = nl.ndarray((1, rows, parts), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=spread_sbuf, src=line_sbuf.expand_dim(2).broadcast(2, parts))
    return column_of(spread_sbuf.reshape((1, rows * parts)))


def column_of(line_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the transpose [partitions, 1] of a float32 tile [1, partitions], in PSUM."""
    column_psum = nl.ndarray((line_sbuf.shape[1], 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=column_psum, data=line_sbuf)
    return column_psum
