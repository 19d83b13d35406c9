# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The statistics of the softmax of a row, its maximum and its sum of exponentials, gathered chunk by chunk.

:class:`Statistics` has the pairs of all chunks and combines them for each row. :class:`Columns` and :class:`Place` say
where the number of a chunk stands in its tiles; other values that are gathered chunk by chunk stand alike. With
:class:`MaximumFolds`, GpSimd shortens chunks before Vector takes their maxima.

For chunk k of a row x let m_k be the maximum of its elements and s_k the sum of exp(x - m_k). Then with m = max over k
of m_k,

    d = sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m),

so that chunks are independent of each other (Milakov and Gimelshein, arXiv 1805.02867, in its parallel form). The pairs
(m_k, s_k) of all chunks of a group of batches are kept in two tiles ``[rows, batches, columns]``, and one instruction
combines those of the whole group. So no computation of shape [P, 1] separates a chunk from the next one, and few logs
are taken.

A batch of more than ``STATISTICS_COLUMNS`` chunks is alone in its group; whenever its columns are full, they are
combined into column 0.

The tiles hold -m_k, which is the ``bias`` of an activation. It is clamped to the finite float32 range: a chunk that is
all -inf then gives exp(-inf - lowest) = 0, not NaN from inf - inf.

The statistics may be those of z = scale * x, as under a temperature. Maxima and their distances stay those of x, so
that large elements still cancel before anything is rounded; only the arguments of exponentials are scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.hardware import div_ceil
from nkilib.core.rows.batches import GROUP_BATCHES_MAX, BatchGroup
from nkilib.core.rows.sbuf import DividedSbuf, SbufPlan, dtype_bytes
from nkilib.core.rows.scale import ONE, Scale
from nkilib.core.rows.tiles import clamp
from nkilib.nki import nisa, nl

# Columns of the tiles of per-chunk statistics, which the batches of a group share.
STATISTICS_COLUMNS = 128
# Halvings of a folded chunk. GpSimd is modelled to take two cycles for an element of a result: as much time as the
# other passes of Vector take, in bfloat16.
_HALVINGS = 3
# Folded chunks that wait for Vector.
_FOLDED_CHUNKS = 3
# Shorter chunks are left to Vector: GpSimd would have as many pauses.
_FOLDED_COLUMNS_MIN = 1024


def most_batches_of_group(num_chunks: int) -> int:
    """Return how many batches with ``num_chunks`` chunks per row can share the columns of the statistics."""
    return max(1, min(GROUP_BATCHES_MAX, STATISTICS_COLUMNS // num_chunks))


@dataclass(frozen=True)
class Place:
    """The place of a chunk's number in a tile of chunks: the batch in the group, and the column."""

    batch: int
    column: int

    def of(self, tile_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return this place of a tile [rows, batches, columns], as a view [rows, 1]."""
        return tile_sbuf[:, self.batch, self.column : self.column + 1]


@dataclass(frozen=True)
class Columns:
    """The layout of the tiles in which a group of batches keeps a number for each chunk.

    Attributes:
        rows, batches: the number of rows of a batch, and the number of batches of the group.
        count: the number of columns, at least two where a row has more chunks than columns.
    """

    rows: int
    batches: int
    count: int

    @classmethod
    def of_group(cls, group: BatchGroup, num_chunks: int) -> Columns:
        """Return the layout for a group whose rows have ``num_chunks`` chunks."""
        return cls(group.rows, group.batches, min(num_chunks, STATISTICS_COLUMNS))

    def tile(self) -> nl.NkiTensor:
        """Allocate a float32 number for each chunk: [rows, batches, count]."""
        return nl.ndarray((self.rows, self.batches, self.count), dtype=nl.float32, buffer=nl.sbuf)

    def row_tile(self, dtype: nl.DType = nl.float32) -> nl.NkiTensor:
        """Allocate a number for each row: [rows, batches]."""
        return nl.ndarray((self.rows, self.batches), dtype=dtype, buffer=nl.sbuf)

    def place(self, batch: int, chunk: int) -> Place:
        """Return the place of chunk number ``chunk`` of the rows of a batch."""
        return Place(batch, self._column(chunk))

    def _column(self, chunk: int) -> int:
        """Return the column of a chunk: 0 for chunk 0, and round-robin over the others for the chunks after it.

        Column 0 later holds the combined value of earlier chunks.
        """
        return 0 if chunk == 0 else 1 + (chunk - 1) % (self.count - 1)

    def in_use(self, tile_sbuf: nl.NkiTensor, chunks: int) -> nl.NkiTensor:
        """Return the columns of a tile that are written after ``chunks`` chunks of each row."""
        return tile_sbuf[:, :, 0 : 1 + self._column(chunks - 1)]

    def are_full(self, chunk: int) -> bool:
        """Tell whether earlier chunks have to be combined into column 0 before chunk number ``chunk`` gets a column."""
        return chunk >= self.count and self._column(chunk) == 1

    def restart(self, tile_sbuf: nl.NkiTensor, row_sbuf: nl.NkiTensor) -> None:
        """Copy the combined value of each row, [rows, batches], into column 0 of a tile."""
        nisa.tensor_copy(dst=tile_sbuf[:, :, 0], src=row_sbuf)


@dataclass(frozen=True)
class Statistics:
    """Maxima m_k and m, and sums s_k and d (see the module), of a group of batches, float32 except for
    ``exact_neg_max_sbuf``.

    Attributes:
        columns: the layout of the tiles of chunks.
        scale: the positive scale of z = scale * x, of all rows or of each.
        neg_max_sbuf: -m_k, in units of x, [rows, batches, columns].
        bias_sbuf: scale * -m_k; the same tile without a scale.
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
    def make(cls, columns: Columns, dtype: nl.DType, scale: Scale = ONE) -> Statistics:
        """Allocate the tiles for chunks x of ``dtype``, where z = ``scale`` * x."""
        neg_max_sbuf = columns.tile()
        return cls(
            columns,
            scale,
            neg_max_sbuf=neg_max_sbuf,
            bias_sbuf=neg_max_sbuf if scale.is_one else columns.tile(),
            sums_sbuf=columns.tile(),
            weights_sbuf=columns.tile(),
            exact_neg_max_sbuf=nl.ndarray((columns.rows, 1), dtype=dtype, buffer=nl.sbuf),
            row_neg_max_sbuf=columns.row_tile(),
            row_sum_sbuf=columns.row_tile(),
            log_sum_sbuf=columns.row_tile(),
        )

    def take_maximum(self, chunk_sbuf: nl.NkiTensor, place: Place) -> None:
        """Compute -m_k of one chunk, exactly and clamped."""
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

    def take_sum(self, exponentials_sbuf: nl.NkiTensor, chunk_sbuf: nl.NkiTensor, place: Place) -> None:
        """Compute s_k of one chunk, whose maximum is known. The exponentials may be written over the chunk."""
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
        """Return the values times the scale; the tile itself where there is no scale."""
        return values_sbuf if self.scale.is_one else self.scale.times(values_sbuf)

    def restart(self) -> None:
        """Put -m and d (see the module) of the chunks so far into column 0."""
        self.columns.restart(self.neg_max_sbuf, self.row_neg_max_sbuf)
        self.columns.restart(self.sums_sbuf, self.row_sum_sbuf)

    def take_distances(self, chunks: int) -> nl.NkiTensor:
        """Compute -m = min of -m_k, and the distances m_k - m, which are returned and overwrite the weights.

        It needs no sums: issued right after the last of ``chunks`` chunks of a row, it keeps no engine waiting.
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
        """Compute the weights exp(scale * (m_k - m)) from the distances m_k - m."""
        self.scale.take_exponentials(self.columns.in_use(self.weights_sbuf, chunks))

    def combine_sums(self, chunks: int) -> None:
        """Compute d = sum of s_k * exp(scale * (m_k - m)), see the module.

        Vector waits here until Scalar is done with the last chunk and the weights.
        """
        sums_sbuf = self.columns.in_use(self.sums_sbuf, chunks)
        weights_sbuf = self.columns.in_use(self.weights_sbuf, chunks)
        nisa.tensor_tensor(dst=weights_sbuf, data1=weights_sbuf, data2=sums_sbuf, op=nl.multiply)
        nisa.tensor_reduce(dst=self.row_sum_sbuf, op=nl.add, data=weights_sbuf, axis=2)

    def take_logs(self) -> None:
        """Compute log d, the logarithms of the rows' sums. Scalar loads another activation table for it, and exp's
        again for the next chunk.
        """
        nisa.activation(dst=self.log_sum_sbuf, op=nl.log, data=self.row_sum_sbuf)


@dataclass(frozen=True)
class MaximumFolds:
    """The tiles that GpSimd folds chunks into, so that Vector takes the maximum of fewer elements.

    Vector takes a maximum at one element a cycle. Where Vector has another pass over each chunk, as for an entropy, and
    GpSimd has little to do, GpSimd compares the two halves of a chunk, then the halves of the result, and so on. A
    maximum is exact in the type of its elements, so the order of the comparisons makes no difference, and a NaN stays a
    NaN.

    Attributes:
        halves_sbuf: the result of every fold except the last, in the type of the chunks, [rows, half a chunk].
        folded_sbuf: the results of the last fold, [rows, an eighth of a chunk]; a ring buffer over the chunks.
    """

    halves_sbuf: nl.NkiTensor
    folded_sbuf: list[nl.NkiTensor]

    @classmethod
    def make(cls, plan: SbufPlan, sbuf: DividedSbuf) -> MaximumFolds | None:
        """Allocate the tiles for the chunks of a divided plan; None if the chunks are short or leave no room."""
        half, folded = (div_ceil(sbuf.chunk_size, 2**times) for times in (1, _HALVINGS))
        needed_bytes = (half + _FOLDED_CHUNKS * folded) * dtype_bytes(sbuf.dtype)
        if sbuf.chunk_size < _FOLDED_COLUMNS_MIN or needed_bytes > plan.bytes_that_fit - sbuf.taken_bytes(plan):
            return None
        halves_sbuf = nl.ndarray((sbuf.rows, half), dtype=sbuf.dtype, buffer=nl.sbuf)
        shape = (sbuf.rows, folded)
        return cls(halves_sbuf, [nl.ndarray(shape, dtype=sbuf.dtype, buffer=nl.sbuf) for _ in range(_FOLDED_CHUNKS)])

    def folded(self, load: int, chunk_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Fold chunk number ``load`` and return the result, [rows, columns], which holds the largest value of each row.

        The first chunk stays as it is, because Vector has nothing else to do yet.
        """
        rows, columns = chunk_sbuf.shape
        if load == 0 or columns < _FOLDED_COLUMNS_MIN:
            return chunk_sbuf
        source_sbuf = chunk_sbuf
        for halving in range(1, _HALVINGS + 1):
            left = div_ceil(columns, 2)
            tile_sbuf = self.halves_sbuf
            if halving == _HALVINGS:
                tile_sbuf = self.folded_sbuf[load % len(self.folded_sbuf)]
            dst_sbuf = tile_sbuf[0:rows, 0:left]
            nisa.tensor_tensor(
                dst=dst_sbuf,
                data1=source_sbuf[:, 0:left],
                data2=source_sbuf[:, columns - left : columns],  # for an odd number, one element twice
                op=nl.maximum,
                engine=nisa.engine.gpsimd,
            )
            source_sbuf, columns = dst_sbuf, left
        return source_sbuf
