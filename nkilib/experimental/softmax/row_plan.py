# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How rows are cut up: pieces for instructions, partitions for long rows, rows of a partition for short ones.

What the bits of a row may depend on is decided here, from the length of a row and the types alone. How many rows a
partition holds is decided where the number of rows is known: no bit depends on it.

Rows stay in SBUF between the two passes over them, so HBM is read once and written once. A row that is too long for a
partition lies on several of them, 2 to 128: its parts are of W = floor(C / F) columns, and the last one has the rest
as well. The other parts have so many columns of padding, which change no maximum and no sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.plan_limits import limited_sbuf_bytes
from nkilib.core.rows.checks import require
from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import PARTITIONS
from nkilib.core.tiling import div_ceil
from nkilib.nki import nl

# What the tiles of a partition may take together: SBUF of trn1 has 180,224 bytes, later ones have more; the rest is for
# small tiles. The same on every generation, so that bits do not depend on it.
SBUF_BYTES = 168_000
# Bytes of a partition that an instruction takes, and that a transfer moves, unless the caller says otherwise.
PIECE_BYTES, SHORT_PIECE_BYTES = 8192, 4096
# Rows of up to so many elements are short: fixed costs of instructions for each of them matter.
SHORT_ROW = 512
# Rows of up to so many elements are computed many in an instruction, which takes more passes over them: faster up to 36
# elements of softmax, and 48 of log-softmax.
TINY_ROW = 40
# One batch is loaded, one computed, one stored; pieces of a few batches more hide latencies.
_LEAST_BATCHES, _MOST_BATCHES = 3, 8
# Rows of several pieces have so many at least: while the statistics of a row are combined, others are worked on.
_LEAST_PIECES, _LEAST_PIECES_OF_PARTS = 4, 8
# Pieces of a batch of whole rows at most: of larger ones the first load and the last store take longer.
MOST_PIECES = 2


@dataclass(frozen=True)
class Piece:
    """What one instruction, and one transfer, takes of a batch: some rows of each partition, or some columns.

    Attributes:
        first, end: rows of a partition.
        start, stop: columns of a partition.
        column: of the statistics, where rows have several pieces.
    """

    first: int
    end: int
    start: int
    stop: int
    column: int

    @property
    def rows(self) -> int:
        """Rows of a partition."""
        return self.end - self.first

    @property
    def columns(self) -> int:
        """Columns of a row in a partition."""
        return self.stop - self.start

    @property
    def size(self) -> int:
        """Elements of a partition."""
        return self.rows * self.columns


@dataclass(frozen=True)
class Streams:
    """Bytes that a loop keeps in a partition.

    Attributes:
        resident: for each element of a row, from its load to its store.
        scratch: for each element of a piece.
        element: of the widest type of a piece.
    """

    resident: int
    scratch: int
    element: int


@dataclass(frozen=True)
class RowPlan:
    """Of rows of one length and type.

    Attributes:
        row_size: C.
        parts: F, partitions of a row.
        width: W, columns of a part that every part has.
        piece_size: elements of a piece at most.
        rows_of_piece: rows of a piece at most; 1 where a row has several pieces.
        rows_each: rows of a partition at most.
        batches_on_chip: batches whose tiles there are.
    """

    row_size: int
    parts: int
    width: int
    piece_size: int
    rows_of_piece: int
    rows_each: int
    batches_on_chip: int

    @property
    def tail(self) -> int:
        """Columns of the last part that the others do not have."""
        return self.row_size - self.parts * self.width

    @property
    def columns(self) -> int:
        """Columns of a partition, with padding."""
        return self.width + self.tail

    @property
    def chunks(self) -> int:
        """Pieces of a row in a partition."""
        return div_ceil(self.columns, self.piece_size)

    @property
    def is_short(self) -> bool:
        """Whether fixed costs of instructions matter for each row."""
        return self.columns <= SHORT_ROW

    @property
    def is_tiny(self) -> bool:
        """Whether rows are computed many in an instruction."""
        return self.columns <= TINY_ROW

    def pieces(self, each: int) -> list[Piece]:
        """Of a batch with so many rows in a partition."""
        if self.chunks > 1:
            size = div_ceil(self.columns, self.chunks)
            starts = range(0, self.columns, size)
            return [Piece(0, 1, at, min(at + size, self.columns), number) for number, at in enumerate(starts)]
        step = self.rows_of_piece
        return [Piece(at, min(at + step, each), 0, self.columns, 0) for at in range(0, each, step)]


def row_plan(
    function: str,
    row_size: int,
    streams: Streams,
    chunk_size: int | None,
    most_pieces: int = MOST_PIECES,
    piece_bytes: int | None = None,
) -> RowPlan:
    """How rows of ``row_size`` elements are cut up, for loops that keep ``streams`` of them.

    Args:
        function: the kernel, for messages.
        row_size: C.
        streams: what the loop keeps.
        chunk_size: elements of a piece at most; None is what is modelled to be fastest.
        most_pieces: of a batch of whole rows.
        piece_bytes: of a piece; None is what is usual for rows of that length.

    Raises:
        AssertionError: a row that does not stay on chip.
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
    parts = _parts(row_size, on_chip // _LEAST_BATCHES)
    width = row_size // parts
    columns = row_size - (parts - 1) * width
    if columns > piece_size:
        least = _LEAST_PIECES_OF_PARTS if parts > 1 else _LEAST_PIECES
        if chunk_size is None:
            piece_size = min(piece_size, div_ceil(columns, least))
        return RowPlan(row_size, parts, width, piece_size, 1, 1, min(_MOST_BATCHES, on_chip // columns))
    rows_of_piece = max(1, min(piece_size, on_chip) // columns)
    pieces_on_chip = on_chip // (rows_of_piece * columns)
    pieces = max(1, min(most_pieces, pieces_on_chip // _LEAST_BATCHES)) if parts == 1 else 1
    rows_each = 1 if parts > 1 else rows_of_piece * pieces
    batches = min(_MOST_BATCHES, pieces_on_chip // pieces)
    return RowPlan(row_size, parts, width, piece_size, rows_of_piece, rows_each, batches)


def _parts(row_size: int, fitting: int) -> int:
    """Partitions of a row: the fewest that hold it, or a few more where they divide its length."""
    least = div_ceil(row_size, fitting)
    if least == 1:
        return 1
    dividing = [parts for parts in range(least, min(PARTITIONS, 2 * least) + 1) if row_size % parts == 0]
    if dividing:
        return dividing[0]
    parts = 2
    # The last part holds the rest of the row besides.
    while parts < PARTITIONS and row_size - (parts - 1) * (row_size // parts) > fitting:
        parts *= 2
    return parts


def largest_row(streams: Streams) -> int:
    """The longest row that stays on chip: then a single batch does, and nothing overlaps with its loads and stores."""
    on_chip = (limited_sbuf_bytes(SBUF_BYTES) - streams.scratch * PIECE_BYTES // streams.element) // streams.resident
    return (on_chip - PARTITIONS) * PARTITIONS


def element_bytes(*dtypes: nl.DType) -> int:
    """Bytes of one element of each type."""
    return sum(dtype_bytes(dtype) for dtype in dtypes)
