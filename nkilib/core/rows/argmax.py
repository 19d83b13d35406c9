"""The column of the largest element, the first one of equals, gathered chunk by chunk as the statistics are.

Of each chunk two numbers are kept, -m_k and the column where m_k stands first. In a row, columns of the largest m_k
stay, and the smallest of them is taken. Columns are counted in float32, which is exact up to 2^24.

A NaN is equal to nothing: a row that holds one has no argmax, and gets the number of columns, one past the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.rows.statistics import Columns, Place
from nkilib.nki import nisa, nl

# Columns that float32 can count.
ARGMAX_COLUMNS_MAX = 2**24
# What nc_find_index8 looks for at a time, and in how many elements.
VALUES = 8
SEARCHED_MAX = 16384


@dataclass(frozen=True)
class Argmax:
    """The argmax of a group of batches.

    Attributes:
        columns: how the tiles of chunks are laid out.
        num_columns: that are counted, at most ``ARGMAX_COLUMNS_MAX``.
        neg_max_sbuf, found_sbuf: -m_k and columns of chunks, float32 [rows, batches, columns].
        row_neg_max_sbuf, row_found_sbuf: the same of rows, [rows, batches].
        short_sbuf, values_sbuf, places_sbuf: eight elements of a short chunk, eight values, eight places: [rows, 8].
    """

    columns: Columns
    num_columns: int
    neg_max_sbuf: nl.NkiTensor
    found_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    row_found_sbuf: nl.NkiTensor
    short_sbuf: nl.NkiTensor
    values_sbuf: nl.NkiTensor
    places_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, num_columns: int, dtype: nl.DType) -> Argmax:
        """For chunks of ``dtype``."""
        shape = (columns.rows, VALUES)
        return cls(
            columns,
            num_columns,
            neg_max_sbuf=columns.tile(),
            found_sbuf=columns.tile(),
            row_neg_max_sbuf=columns.row_tile(),
            row_found_sbuf=columns.row_tile(),
            short_sbuf=nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf),
            values_sbuf=nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf),
            places_sbuf=nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf),
        )

    def take(self, chunk_sbuf: nl.NkiTensor, exact_neg_max_sbuf: nl.NkiTensor, place: Place, first: int) -> None:
        """-m_k and the column of m_k of one chunk.

        Args:
            chunk_sbuf: [rows, columns of the chunk].
            exact_neg_max_sbuf: -m_k in the type of the chunk, [rows, 1].
            place: of the chunk.
            first: what the chunk's first column counts as.
        """
        size = chunk_sbuf.shape[1]
        found_sbuf = place.of(self.found_sbuf)
        nisa.tensor_copy(dst=place.of(self.neg_max_sbuf), src=exact_neg_max_sbuf)
        nisa.tensor_scalar(
            dst=self.values_sbuf, data=exact_neg_max_sbuf.broadcast(1, VALUES), op0=nl.multiply, operand0=-1.0
        )
        if size < VALUES:  # the first column fills up what is too short: it is found where it stands first
            nisa.tensor_copy(dst=self.short_sbuf, src=chunk_sbuf[:, 0:1].broadcast(1, VALUES))
            nisa.tensor_copy(dst=self.short_sbuf[:, 0:size], src=chunk_sbuf)
            chunk_sbuf, size = self.short_sbuf, VALUES
        for start in range(0, size, SEARCHED_MAX):
            # A part that would be too short starts earlier; what it shares with the one before was found there.
            begin = min(start, size - VALUES)
            part_sbuf = chunk_sbuf[:, begin : min(start + SEARCHED_MAX, size)]
            nisa.nc_find_index8(dst=self.places_sbuf, data=part_sbuf, vals=self.values_sbuf)
            _keep_first(found_sbuf, self.places_sbuf[:, 0:1], float(first + begin), start == 0)

    def take_tiles(self, tiles_sbuf: Sequence[nl.NkiTensor], neg_max_sbuf: nl.NkiTensor, place: Place) -> None:
        """-m_k and the column of m_k of a chunk of several batches, counted from the first one of the chunk.

        Args:
            tiles_sbuf: of each batch, float32 [rows, columns of the chunk].
            neg_max_sbuf: -m_k of each, float32 [rows, batches].
            place: of the chunk of the first batch.
        """
        batches, column = slice(place.batch, place.batch + len(tiles_sbuf)), place.column
        if tiles_sbuf[0].shape[1] < VALUES:
            for number, tile_sbuf in enumerate(tiles_sbuf):
                of_tile_sbuf = neg_max_sbuf[:, number : number + 1]
                self.take(tile_sbuf, of_tile_sbuf, Place(place.batch + number, column), 0)
            return
        nisa.tensor_copy(dst=self.neg_max_sbuf[:, batches, column], src=neg_max_sbuf)
        shape = (neg_max_sbuf.shape[0], len(tiles_sbuf), VALUES)
        values_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        places_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        nisa.tensor_scalar(
            dst=values_sbuf, data=neg_max_sbuf.expand_dim(2).broadcast(2, VALUES), op0=nl.multiply, operand0=-1.0
        )
        for number, tile_sbuf in enumerate(tiles_sbuf):
            nisa.nc_find_index8(dst=places_sbuf[:, number], data=tile_sbuf, vals=values_sbuf[:, number])
        nisa.tensor_scalar(dst=self.found_sbuf[:, batches, column], data=places_sbuf[:, :, 0], op0=nl.add, operand0=0.0)

    def combine(self, chunks: int) -> None:
        """The column of each row: num_columns - max of (num_columns - column) over the chunks whose m_k is m."""
        neg_max_sbuf = self.columns.in_use(self.neg_max_sbuf, chunks)
        candidates_sbuf = nl.ndarray(neg_max_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        is_largest_sbuf = nl.ndarray(neg_max_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=self.row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
        nisa.tensor_tensor(
            dst=is_largest_sbuf,
            data1=neg_max_sbuf,
            data2=self.row_neg_max_sbuf.expand_dim(2).broadcast(2, neg_max_sbuf.shape[2]),
            op=nl.equal,
        )
        nisa.scalar_tensor_tensor(
            dst=candidates_sbuf,
            data=self.columns.in_use(self.found_sbuf, chunks),
            op0=nl.subtract,
            operand0=float(self.num_columns),
            reverse0=True,
            op1=nl.multiply,
            operand1=is_largest_sbuf,
        )
        nisa.tensor_reduce(dst=self.row_found_sbuf, op=nl.maximum, data=candidates_sbuf, axis=2)
        nisa.tensor_scalar(
            dst=self.row_found_sbuf,
            data=self.row_found_sbuf,
            op0=nl.subtract,
            operand0=float(self.num_columns),
            reverse0=True,
        )

    def restart(self) -> None:
        """Put -m and column of the chunks so far into column 0. A row with a NaN keeps it in -m, and finds no more."""
        self.columns.restart(self.neg_max_sbuf, self.row_neg_max_sbuf)
        self.columns.restart(self.found_sbuf, self.row_found_sbuf)


def _keep_first(found_sbuf: nl.NkiTensor, place_sbuf: nl.NkiTensor, offset: float, is_first: bool) -> None:
    """The column of a place, or the smaller one of it and of what was found. A place not found is over 2^31."""
    if is_first:
        nisa.tensor_scalar(dst=found_sbuf, data=place_sbuf, op0=nl.add, operand0=offset)
    else:
        nisa.scalar_tensor_tensor(
            dst=found_sbuf, data=place_sbuf, op0=nl.add, operand0=offset, op1=nl.minimum, operand1=found_sbuf
        )
