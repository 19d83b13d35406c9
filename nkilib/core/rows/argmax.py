# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The argmax of a row: the first column of the largest element, gathered chunk by chunk like the statistics.

:class:`Argmax` processes one chunk of one batch at a time. :meth:`Argmax.search` prepares a :class:`Search`, which
processes one chunk of several batches.

Two numbers are kept for each chunk k of a row: -m_k, where m_k is the maximum of the chunk, and the first column that
holds m_k. The argmax of the row is the smallest of these columns over the chunks with the largest m_k. The numbers are
kept in *tiles of chunks*, whose layout is :class:`.statistics.Columns`. Columns are float32 numbers, which are exact up
to 2^24.

A NaN is equal to nothing: a row that holds a NaN has no argmax, and its result is the number of columns, one past the
last column. The search instructions (``nisa.max8``, ``nisa.nc_find_index8``) search for eight values at a time, and
need eight columns or more. They return the *place* of a value: its column in the searched tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nkilib.core.rows.statistics import Columns, Place
from nkilib.nki import nisa, nl

# Columns that float32 can count.
ARGMAX_COLUMNS_MAX = 2**24
# How many values nc_find_index8 searches for at a time, and in how many elements.
VALUES = 8
SEARCHED_MAX = 16384


def _searchable(tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the tile; if it has fewer than eight columns, return a copy that is padded with its first column.

    In the copy, the first place of each value is still a column of the tile.
    """
    rows, size = tile_sbuf.shape
    if size >= VALUES:
        return tile_sbuf
    filled_sbuf = nl.ndarray((rows, VALUES), dtype=tile_sbuf.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=filled_sbuf, src=tile_sbuf[:, 0:1].broadcast(1, VALUES))
    nisa.tensor_copy(dst=filled_sbuf[:, 0:size], src=tile_sbuf)
    return filled_sbuf


def _keep_first(found_sbuf: nl.NkiTensor, place_sbuf: nl.NkiTensor, offset: float, is_first: bool) -> None:
    if is_first:
        nisa.tensor_scalar(dst=found_sbuf, data=place_sbuf, op0=nl.add, operand0=offset)
    else:
        nisa.scalar_tensor_tensor(
            dst=found_sbuf, data=place_sbuf, op0=nl.add, operand0=offset, op1=nl.minimum, operand1=found_sbuf
        )


@dataclass(frozen=True)
class Search:
    """A search for the first column of the largest element of each row, in one chunk of several batches.

    Attributes:
        tiles_sbuf: the chunk of each batch, with eight columns or more.
        values_sbuf, places_sbuf: the eight values to find in each row of each chunk, and their places, [rows, batches,
            8].
        first_sbuf: the column number of the chunk's first column, float32 [rows, 1].
        found_sbuf: the result: the columns, counted from the begin of the row, float32 [rows, batches].
        neg_max_sbuf: the tile for minus the maxima that the search finds, float32 [rows, batches]; None if the maxima
            are known and ``values_sbuf`` holds them.
    """

    tiles_sbuf: list[nl.NkiTensor]
    values_sbuf: nl.NkiTensor
    places_sbuf: nl.NkiTensor
    first_sbuf: nl.NkiTensor
    found_sbuf: nl.NkiTensor
    neg_max_sbuf: nl.NkiTensor | None

    def take(self, number: int) -> None:
        """Search the chunk of batch ``number`` of the search.

        The call for the last batch also writes the columns of all batches to ``found_sbuf``, and minus the maxima to
        ``neg_max_sbuf`` unless that is None.
        """
        tile_sbuf, values_sbuf = self.tiles_sbuf[number], self.values_sbuf[:, number]
        if self.neg_max_sbuf is not None:
            nisa.max8(dst=values_sbuf, src=tile_sbuf)
        nisa.nc_find_index8(dst=self.places_sbuf[:, number], data=tile_sbuf, vals=values_sbuf)
        if number < len(self.tiles_sbuf) - 1:
            return
        first_places_sbuf = self.places_sbuf[:, :, 0]
        nisa.tensor_scalar(dst=self.found_sbuf, data=first_places_sbuf, op0=nl.add, operand0=self.first_sbuf)
        if self.neg_max_sbuf is not None:
            largest_sbuf = self.values_sbuf[:, :, 0]
            nisa.tensor_scalar(dst=self.neg_max_sbuf, data=largest_sbuf, op0=nl.multiply, operand0=-1.0)


@dataclass(frozen=True)
class Argmax:
    """The argmax of the rows of a group of batches. m_k is the maximum of chunk k of a row, m the maximum of the row.

    Attributes:
        columns: the layout of the tiles of chunks.
        num_columns: the number of columns of a row, at most ``ARGMAX_COLUMNS_MAX``.
        neg_max_sbuf, found_sbuf: for each chunk, -m_k and the first column that holds m_k, float32 [rows, batches,
            columns].
        row_neg_max_sbuf, row_found_sbuf: -m and the argmax of each row, float32 [rows, batches].
        short_sbuf: scratch for a chunk of fewer than eight columns, padded to eight, [rows, 8].
        values_sbuf, places_sbuf: scratch for eight copies of the value to find, and for their places, [rows, 8].
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
        """Allocate the tiles for chunks of ``dtype``."""
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
        """Record -m_k of chunk k, and the first column that holds m_k.

        Args:
            chunk_sbuf: the chunk, [rows, columns of the chunk].
            exact_neg_max_sbuf: -m_k in the type of the chunk, [rows, 1].
            place: the place of this chunk in the tiles of chunks.
            first: the column number of the chunk's first column.
        """
        size = chunk_sbuf.shape[1]
        found_sbuf = place.of(self.found_sbuf)
        nisa.tensor_copy(dst=place.of(self.neg_max_sbuf), src=exact_neg_max_sbuf)
        nisa.tensor_scalar(
            dst=self.values_sbuf, data=exact_neg_max_sbuf.broadcast(1, VALUES), op0=nl.multiply, operand0=-1.0
        )
        if size < VALUES:  # padded as in _searchable, but in a tile that all chunks share
            nisa.tensor_copy(dst=self.short_sbuf, src=chunk_sbuf[:, 0:1].broadcast(1, VALUES))
            nisa.tensor_copy(dst=self.short_sbuf[:, 0:size], src=chunk_sbuf)
            chunk_sbuf, size = self.short_sbuf, VALUES
        for start in range(0, size, SEARCHED_MAX):
            # A part that would be too short starts earlier; the columns that it shares with the previous part are done.
            begin = min(start, size - VALUES)
            part_sbuf = chunk_sbuf[:, begin : min(start + SEARCHED_MAX, size)]
            nisa.nc_find_index8(dst=self.places_sbuf, data=part_sbuf, vals=self.values_sbuf)
            _keep_first(found_sbuf, self.places_sbuf[:, 0:1], float(first + begin), start == 0)

    def search(
        self,
        tiles_sbuf: Sequence[nl.NkiTensor],
        place: Place,
        first_sbuf: nl.NkiTensor,
        neg_max_sbuf: nl.NkiTensor | None,
        factor: float,
        keeps_maxima: bool,
    ) -> Search:
        """Return the search for the largest elements of one chunk of several batches. :meth:`Search.take` runs it.

        Args:
            tiles_sbuf: the chunk of each batch, float32 [rows, columns of the chunk], at most ``SEARCHED_MAX`` columns.
            place: the place of the first batch's chunk in the tiles of chunks.
            first_sbuf: the column number of the chunk's first column, float32 [rows, 1].
            neg_max_sbuf: minus the maxima divided by ``factor``, float32 [rows, batches]; None if the maxima are not
                known, so that the search has to find them.
            factor: a positive number; ``factor * neg_max_sbuf`` is minus the maxima.
            keeps_maxima: whether this call writes ``factor * neg_max_sbuf`` to the attribute :attr:`neg_max_sbuf`; else
                the caller does. Not used if the argument ``neg_max_sbuf`` is None.
        """
        batches, column = slice(place.batch, place.batch + len(tiles_sbuf)), place.column
        shape = (self.columns.rows, len(tiles_sbuf), VALUES)
        values_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
        places_sbuf = nl.ndarray(shape, dtype=nl.uint32, buffer=nl.sbuf)
        kept_sbuf = self.neg_max_sbuf[:, batches, column]
        if neg_max_sbuf is not None:
            if keeps_maxima:
                nisa.tensor_scalar(dst=kept_sbuf, data=neg_max_sbuf, op0=nl.multiply, operand0=factor)
            every_sbuf = neg_max_sbuf.expand_dim(2).broadcast(2, VALUES)
            nisa.tensor_scalar(dst=values_sbuf, data=every_sbuf, op0=nl.multiply, operand0=-factor)
        return Search(
            [_searchable(tile_sbuf) for tile_sbuf in tiles_sbuf],
            values_sbuf,
            places_sbuf,
            first_sbuf,
            self.found_sbuf[:, batches, column],
            kept_sbuf if neg_max_sbuf is None else None,
        )

    def combine(self, chunks: int) -> None:
        """Compute -m and the argmax of each row from its first ``chunks`` chunks.

        The argmax is num_columns - max of c_k over the chunks k, where c_k is num_columns - (the column found in chunk
        k) if m_k is m, else 0.
        """
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
        """Copy -m and the argmax of each row, as :meth:`combine` computed them, to column 0, in place of all earlier
        chunks.

        A row with a NaN keeps the NaN as its maximum, so that later chunks do not change its argmax.
        """
        self.columns.restart(self.neg_max_sbuf, self.row_neg_max_sbuf)
        self.columns.restart(self.found_sbuf, self.row_found_sbuf)
