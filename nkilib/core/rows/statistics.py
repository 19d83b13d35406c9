# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The statistics of the softmax of a row, its maximum and its sum of exponentials, gathered chunk by chunk.

:class:`Statistics` holds the pairs of all chunks and combines them for each row. :class:`Columns` is the layout of
*tiles of chunks*, [rows, batches, columns], which hold a number for each chunk of each row; :class:`Place` is the place
of a chunk in them. Other values that are gathered chunk by chunk use the same layout. GpSimd can *fold* chunks, that
is, shorten them by maxima of pairs (:func:`halve`), before Vector computes their maxima: :class:`Folding` says how
often, :class:`MaximumFolds` has the tiles; :func:`halved` does it for several rows per partition.
:class:`SplitStatistics` combines the partitions of rows that lie on several.

For chunk k of a row x let m_k be the maximum of its elements and s_k the sum of exp(x - m_k). Then with m = max over k
of m_k,

    d = sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m),

so that chunks are independent of each other (Milakov and Gimelshein, arXiv 1805.02867, in its parallel form). The pairs
(m_k, s_k) of all chunks of a group of batches are kept in two tiles of chunks, and one instruction combines the pairs
of the whole group. So no instruction on a tile [rows, 1] separates a chunk from the next one, and few logs are
computed.

A batch of more than ``STATISTICS_COLUMNS`` chunks is alone in its group; whenever its columns are full, they are
combined into column 0 (``restart``).

The tiles hold -m_k, which is the ``bias`` of an activation. It is clamped to the finite float32 range: a chunk that is
all -inf then gives exp(-inf - lowest) = 0, not NaN from inf - inf.

Under a temperature the elements are z = scale * x. Maxima and their differences are then still computed from x, so that
large elements cancel before anything is rounded; only the arguments of exponentials are scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import GROUP_BATCHES_MAX, BatchGroup
from nkilib.core.rows.row_plan import RowBatch, off_line, on_line
from nkilib.core.rows.sbuf import DividedSbuf, Ring, SbufPlan, dtype_bytes
from nkilib.core.rows.scale import ONE, Scale
from nkilib.core.rows.tiles import clamp
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Columns of the tiles of per-chunk statistics, which the batches of a group share.
STATISTICS_COLUMNS = 128
# Folded chunks that wait for Vector.
_FOLDED_CHUNKS = 3
# Shorter chunks are left to Vector: GpSimd would have as many pauses.
FOLDED_COLUMNS_MIN = 1024


def most_batches_of_group(num_chunks: int) -> int:
    """Return how many batches can share the columns of the statistics, if a row has ``num_chunks`` chunks."""
    return max(1, min(GROUP_BATCHES_MAX, STATISTICS_COLUMNS // num_chunks))


@dataclass(frozen=True)
class Place:
    """The place of a chunk in tiles of chunks: the number of the batch in the group, and the column."""

    batch: int
    column: int

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return this place of a tile of chunks, as a view [rows, 1]."""
        return tile_sbuf[:, self.batch, self.column : self.column + 1]


@dataclass(frozen=True)
class Columns:
    """The layout of the tiles of chunks of a group of batches.

    Attributes:
        rows, batches: the number of rows of a batch, and the number of batches of the group.
        count: the number of columns; at least two if a row has more chunks than columns.
    """

    rows: int
    batches: int
    count: int

    @classmethod
    def of_group(cls, group: BatchGroup, num_chunks: int) -> Columns:
        """Return the layout for a group of batches whose rows have ``num_chunks`` chunks."""
        return cls(group.rows, group.batches, min(num_chunks, STATISTICS_COLUMNS))

    def tile(self) -> nl.NkiTensor:
        """Return a new tile of chunks, float32 [rows, batches, count]."""
        return nl.ndarray((self.rows, self.batches, self.count), dtype=nl.float32, buffer=nl.sbuf)

    def row_tile(self, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Return a new tile with a number for each row, [rows, batches]."""
        return nl.ndarray((self.rows, self.batches), dtype=dtype, buffer=nl.sbuf)

    def place(self, batch: int, chunk: int) -> Place:
        """Return the place of chunk number ``chunk`` of the rows of batch number ``batch``."""
        return Place(batch, self._column(chunk))

    def _column(self, chunk: int) -> int:
        """Return the column of chunk number ``chunk``: column 0 for chunk 0; the other columns, round-robin, for later
        chunks.

        Column 0 later holds the combined value of earlier chunks.
        """
        return 0 if chunk == 0 else 1 + (chunk - 1) % (self.count - 1)

    def in_use(self, tile_sbuf: nl.NkiTensor, chunks: int) -> nl.NkiTensor:
        """Return the columns of a tile of chunks that hold values after ``chunks`` chunks of each row, [rows, batches,
        columns in use].
        """
        return tile_sbuf[:, :, 0 : 1 + self._column(chunks - 1)]

    def are_full(self, chunk: int) -> bool:
        """Return whether the earlier chunks have to be combined into column 0 before chunk number ``chunk``."""
        return chunk >= self.count and self._column(chunk) == 1

    def restart(self, tile_sbuf: nl.NkiTensor, row_sbuf: nl.NkiTensor) -> None:
        """Copy the combined value of each row, [rows, batches], to column 0 of a tile of chunks."""
        nisa.tensor_copy(dst=tile_sbuf[:, :, 0], src=row_sbuf)


@dataclass(frozen=True)
class Statistics:
    """Maxima m_k and m, and sums s_k and d (see the module), of a group of batches, float32 except for
    ``exact_neg_max_sbuf``.

    Attributes:
        columns: the layout of the tiles of chunks.
        scale: the positive scale of z = scale * x.
        neg_max_sbuf: -m_k, in units of x, [rows, batches, columns].
        bias_sbuf: scale * -m_k, of the same shape; the same tile if the scale is 1.
        sums_sbuf, weights_sbuf: s_k and exp(scale * (m_k - m)), of the same shape.
        exact_neg_max_sbuf: -m_k of one chunk, not clamped, in the type of the chunk, [rows, 1].
        row_neg_max_sbuf: -m, in units of x, [rows, batches].
        row_sum_sbuf, log_sum_sbuf: d and log d of rows, [rows, batches].
    """

    columns: Columns
    scale: Scale
    neg_max_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    weights_sbuf: nl.NkiTensor
    exact_neg_max_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, dtype: nl.DType, scale: Scale = ONE, is_whole: bool = False) -> Statistics:
        """Return new tiles for chunks x of ``dtype``, where z = ``scale`` * x.

        If ``is_whole``, a chunk is a row, so that m = m_k and d = s_k: the tiles of rows are the tiles of chunks, and
        nothing is left to combine.
        """
        neg_max_sbuf, sums_sbuf = columns.tile(), columns.tile()
        return cls(
            columns,
            scale,
            neg_max_sbuf=neg_max_sbuf,
            bias_sbuf=neg_max_sbuf if scale.is_one else columns.tile(),
            sums_sbuf=sums_sbuf,
            weights_sbuf=columns.tile(),
            exact_neg_max_sbuf=nl.ndarray((columns.rows, 1), dtype=dtype, buffer=nl.sbuf),
            row_neg_max_sbuf=neg_max_sbuf[:, :, 0] if is_whole else columns.row_tile(),
            row_sum_sbuf=sums_sbuf[:, :, 0] if is_whole else columns.row_tile(),
            log_sum_sbuf=columns.row_tile(),
        )

    def take_maximum(self, chunk_sbuf: nl.NkiTensor, place: Place) -> None:
        """Write -m_k of one chunk to ``exact_neg_max_sbuf``, and clamped to ``neg_max_sbuf``; write the bias."""
        # A maximum loses nothing in the type of its data. Vector may be twice as fast where both have the same 16-bit
        # type.
        nisa.tensor_reduce(dst=self.exact_neg_max_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1, negate=True)
        clamp(place.of(self.neg_max_sbuf), self.exact_neg_max_sbuf, self.scale.most)
        if not self.scale.is_one:
            nisa.tensor_scalar(
                dst=place.of(self.bias_sbuf),
                data=place.of(self.neg_max_sbuf),
                op0=nl.multiply,
                operand0=self.scale.of(place.batch),
            )

    def take_maxima(self, rows_sbuf: nl.NkiTensor, first: int, end: int, column: int) -> None:
        """Write -m_k, clamped, and the bias of one chunk of several batches.

        Args:
            rows_sbuf: the chunk of the batches, [rows, batches, columns].
            first, end: the batches of the group, from index ``first`` up to but not including ``end``.
            column: the column of the chunk in tiles of chunks.
        """
        exact_sbuf = nl.ndarray(rows_sbuf.shape[0:2], dtype=self.exact_neg_max_sbuf.dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=exact_sbuf, op=nl.maximum, data=rows_sbuf, axis=2, negate=True)
        neg_max_sbuf = self.neg_max_sbuf[:, first:end, column]
        clamp(neg_max_sbuf, exact_sbuf, self.scale.most)
        if not self.scale.is_one:
            self.scale.part(first, end).multiply(self.bias_sbuf[:, first:end, column], neg_max_sbuf)

    def take_sum(self, exponentials_sbuf: nl.NkiTensor, chunk_sbuf: nl.NkiTensor, place: Place) -> None:
        """Write the exponentials of one chunk to ``exponentials_sbuf``, which may be the chunk, and record their sum
        s_k. The maximum of the chunk must be recorded already.
        """
        nisa.activation(
            dst=exponentials_sbuf,
            op=nl.exp,
            data=chunk_sbuf,
            bias=place.of(self.bias_sbuf),
            scale=self.scale.of(place.batch),
            reduce_op=nl.add,
            reduce_res=place.of(self.sums_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def scaled(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values times the scale; the tile itself if the scale is 1."""
        return values_sbuf if self.scale.is_one else self.scale.times(values_sbuf)

    def restart(self) -> None:
        """Copy -m and d (see the module) of each row's earlier chunks to column 0."""
        self.columns.restart(self.neg_max_sbuf, self.row_neg_max_sbuf)
        self.columns.restart(self.sums_sbuf, self.row_sum_sbuf)

    def take_distances(self, chunks: int) -> nl.NkiTensor:
        """Compute -m of each row, write the distances m_k - m over the weights, and return the distances.

        Call it right after the maximum of the last of ``chunks`` chunks: it needs no sums, so no engine waits.
        """
        neg_max_sbuf = self.columns.in_use(self.neg_max_sbuf, chunks)
        distances_sbuf = self.columns.in_use(self.weights_sbuf, chunks)
        nisa.tensor_reduce(dst=self.row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
        nisa.tensor_tensor(
            dst=distances_sbuf,
            data1=self.row_neg_max_sbuf.expand_dim(2).broadcast(2, distances_sbuf.shape[2]),
            data2=neg_max_sbuf,
            op=nl.subtract,
        )
        return distances_sbuf

    def take_weights(self, chunks: int) -> None:
        """Replace the distances m_k - m by the weights exp(scale * (m_k - m))."""
        self.scale.take_exponentials(self.columns.in_use(self.weights_sbuf, chunks))

    def combine_sums(self, chunks: int) -> None:
        """Compute d = sum of s_k * exp(scale * (m_k - m)), see the module; overwrite the weights.

        Vector waits here until Scalar is done with the last chunk and the weights.
        """
        sums_sbuf = self.columns.in_use(self.sums_sbuf, chunks)
        weights_sbuf = self.columns.in_use(self.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=weights_sbuf, data1=weights_sbuf, data2=sums_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_sum_sbuf, op=nl.add, data=weights_sbuf, axis=2)

    def take_logs(self) -> None:
        """Compute log d. Scalar has to load the table of log, and for the next chunk the table of exp again."""
        nisa.activation(dst=self.log_sum_sbuf, op=nl.log, data=self.row_sum_sbuf)


@dataclass(frozen=True)
class SplitStatistics:
    """The statistics of split rows, from those of their parts.

    Attributes:
        batch: the rows.
        parts: the statistics of the pieces of each partition, [partitions, 1, pieces].
        rows: the statistics of the rows, [1, rows].
    """

    batch: RowBatch
    parts: Statistics
    rows: Statistics

    def maxima_on_line(self, pieces: int) -> nl.NkiTensor:
        """Compute minus the maximum of each partition, and return them on a line, [1, partitions] in PSUM."""
        parts = self.parts
        neg_max_sbuf = parts.columns.in_use(parts.neg_max_sbuf, pieces)
        of_part_sbuf = neg_max_sbuf[:, :, 0]
        if pieces > 1:
            of_part_sbuf = parts.row_neg_max_sbuf
            nisa.tensor_reduce(dst=of_part_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
        return on_line(of_part_sbuf)

    def take_maxima(self, line_psum: nl.NkiTensor) -> nl.NkiTensor:
        """Compute minus the maximum m of each row from the result of :meth:`maxima_on_line`, and return it for each
        partition of the row, [partitions, 1] in PSUM.
        """
        self.reduce_line(self.rows.row_neg_max_sbuf, line_psum, nl.minimum)
        return off_line(self.rows.row_neg_max_sbuf, self.batch.plan.parts)

    def take_distances(self, of_rows_psum: nl.NkiTensor, pieces: int) -> nl.NkiTensor:
        """Compute the distances m_k - m of the pieces of each partition, which are returned and overwrite the weights.

        ``of_rows_psum`` is the result of :meth:`take_maxima`.
        """
        parts = self.parts
        neg_max_sbuf = parts.columns.in_use(parts.neg_max_sbuf, pieces)
        distances_sbuf = parts.columns.in_use(parts.weights_sbuf, pieces)
        of_rows_psum = of_rows_psum.expand_dim(2).broadcast(2, pieces)
        nisa.tensor_tensor(dst=distances_sbuf, data1=of_rows_psum, data2=neg_max_sbuf, op=nl.subtract)
        return distances_sbuf

    def combine_sums(self, pieces: int) -> None:
        """Compute the sums of exponentials of the rows, once the distances are replaced by weights."""
        self.parts.combine_sums(pieces)
        self.reduce_line(self.rows.row_sum_sbuf, on_line(self.parts.row_sum_sbuf), nl.add)

    def reduce_line(self, dst_sbuf: nl.NkiTensor, line_psum: nl.NkiTensor, op: Operator) -> None:
        """Reduce the numbers of the partitions of each row, [1, partitions] to [1, rows]."""
        by_row_psum = line_psum.reshape((1, self.batch.lines, self.batch.plan.parts))
        nisa.tensor_reduce(dst=dst_sbuf, op=op, data=by_row_psum, axis=2)


def halve(dst_sbuf: nl.NkiTensor, x_sbuf: nl.NkiTensor) -> None:
    """Write the maxima of pairs of elements of a tile [..., columns] to ``dst_sbuf``, [..., half the columns], on
    GpSimd.

    Vector, the only engine that computes the maximum of a row, then reads half as many elements. A maximum is exact in
    the type of its elements, so no bit depends on the order of the comparisons, and a NaN stays a NaN. If the number of
    columns is odd, the middle one is in both halves.
    """
    columns, half = x_sbuf.shape[-1], dst_sbuf.shape[-1]
    axis = len(x_sbuf.shape) - 1
    nisa.tensor_tensor(
        dst=dst_sbuf,
        data1=x_sbuf.slice(axis, 0, half),
        data2=x_sbuf.slice(axis, columns - half, columns),
        op=nl.maximum,
        engine=nisa.engine.gpsimd,
    )


def halved(x_sbuf: nl.NkiTensor, halves: Ring) -> nl.NkiTensor:
    """Compute the maximum of each pair of elements of the rows of [partitions, rows, columns]; see
    :func:`halve`.
    """
    partitions, rows, columns = x_sbuf.shape
    halves_sbuf = halves.next_shaped((partitions, rows, div_ceil(columns, 2)))
    halve(halves_sbuf, x_sbuf)
    return halves_sbuf


@dataclass(frozen=True)
class Folding:
    """How far GpSimd shortens chunks before Vector computes their maxima.

    Attributes:
        halvings: the number of times that the folded part of a chunk is halved.
        share: the share of a chunk's columns that is folded. With 1.0 the first chunk of the core is not folded,
            because Vector has nothing else to do meanwhile.
    """

    halvings: int
    share: float = 1.0

    def columns(self, columns: int) -> int:
        """Return how many of a chunk's ``columns`` columns are folded."""
        return int(columns * self.share)

    def bytes_beside(self, chunk_size: int, element_bytes: int) -> int:
        """Return the bytes of a partition that the tiles of :class:`MaximumFolds` take."""
        half, folded = self._tiles(chunk_size)
        return (half + _FOLDED_CHUNKS * folded) * element_bytes

    def fits(self, plan: SbufPlan, sbuf: DividedSbuf) -> bool:
        """Return whether chunks are long enough to be folded, and the tiles of :class:`MaximumFolds` fit beside the
        chunks.

        Args:
            plan: the needs of the kernel.
            sbuf: the plan for one chunk size, made of ``plan``.
        """
        needed_bytes = self.bytes_beside(sbuf.chunk_size, dtype_bytes(sbuf.dtype))
        return sbuf.chunk_size >= FOLDED_COLUMNS_MIN and needed_bytes <= plan.bytes_that_fit - sbuf.taken_bytes(plan)

    def _tiles(self, chunk_size: int) -> tuple[int, int]:
        """Return the numbers of columns of ``halves_sbuf`` (0 for no tile) and of a tile of ``folded_sbuf``, see
        :class:`MaximumFolds`.
        """
        half, folded = (div_ceil(self.columns(chunk_size), 2**times) for times in (1, self.halvings))
        return (half if self.halvings > 1 else 0), folded + 1


@dataclass(frozen=True)
class MaximumFolds:
    """The tiles that GpSimd folds chunks into.

    Vector takes a maximum at one element a cycle, and GpSimd is modelled to take two cycles for an element of a result.

    Attributes:
        folding: how far chunks are shortened.
        halves_sbuf: the result of each halving except the last, in the type of the chunks, [rows, half a chunk]; None
            for a single halving.
        folded_sbuf: a ring buffer of tiles for the result of the last halving, with one more column for the maximum of
            the columns that are not folded.
    """

    folding: Folding
    halves_sbuf: nl.NkiTensor | None
    folded_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, plan: SbufPlan, sbuf: DividedSbuf, folding: Folding | None) -> MaximumFolds | None:
        """Return new tiles for the chunks of a plan. Return None if there is no ``folding``, or if it does not fit
        (:meth:`Folding.fits`).
        """
        if folding is None or not folding.fits(plan, sbuf):
            return None
        half, folded = folding._tiles(sbuf.chunk_size)
        halves_sbuf = nl.ndarray((sbuf.rows, half), dtype=sbuf.dtype, buffer=nl.sbuf) if half else None
        shape = (sbuf.rows, folded)
        folded_sbuf = [nl.ndarray(shape, dtype=sbuf.dtype, buffer=nl.sbuf) for _ in range(_FOLDED_CHUNKS)]
        return cls(folding, halves_sbuf, folded_sbuf)

    def folded(self, load: int, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Fold chunk number ``load`` and return a shorter tile [rows, columns] that has the same maximum in each row.

        If GpSimd folds a part of the chunk, Vector takes the maximum of the rest meanwhile. A short chunk is returned
        as it is.
        """
        rows, columns = chunk_sbuf.shape
        left = self.folding.columns(columns)
        if columns < FOLDED_COLUMNS_MIN or (load == 0 and left == columns):
            return chunk_sbuf
        rest_sbuf = chunk_sbuf[:, left:columns] if left < columns else None
        tile_sbuf = self.folded_sbuf[load % len(self.folded_sbuf)]
        source_sbuf = chunk_sbuf[:, 0:left]
        for halving in range(1, self.folding.halvings + 1):
            left = div_ceil(left, 2)
            is_last = halving == self.folding.halvings
            dst_sbuf = (tile_sbuf if is_last or self.halves_sbuf is None else self.halves_sbuf)[0:rows, 0:left]
            halve(dst_sbuf, source_sbuf)
            source_sbuf = dst_sbuf
        if rest_sbuf is None:
            return source_sbuf
        nisa.tensor_reduce(dst=tile_sbuf[0:rows, left : left + 1], op=nl.maximum, data=rest_sbuf, axis=1)
        return tile_sbuf[0:rows, 0 : left + 1]
