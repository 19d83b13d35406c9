"""Maximum and sum of exponentials of every row, gathered chunk by chunk over the vocabulary.

For chunk k let m_k be the maximum of its logits and s_k the sum of exp(x - m_k). Then with m = max over k of m_k,

    sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m),

so that chunks need not know of each other (Milakov and Gimelshein, arXiv 1805.02867, in its parallel form). The pairs
(m_k, s_k) of all chunks of a group of batches stand in two tiles ``[rows, batches, columns]``, and one instruction
combines those of the whole group: nothing of shape [P, 1] stands between a chunk and the next one, and few logs are
taken.

A batch of more than ``STATISTICS_COLUMNS`` chunks is alone in its group; whenever its columns are full, they are
combined into column 0.

The tiles hold -m_k, which is what the ``bias`` of an activation wants. It is clamped to the finite float32 range: a
chunk of -inf alone then gives exp(-inf - lowest) = 0, not NaN from inf - inf.
"""

from __future__ import annotations

from typing import Any

from nkilib.experimental.loss.sbuf_plan import STATISTICS_COLUMNS
from nkilib.nki import nisa, nl

FLOAT32_HIGHEST = 3.4028234663852886e38
FLOAT32_LOWEST = -3.4028234663852886e38
NEGATIVE_ONE = -1.0


def make_statistics(rows: int, batches: int, num_chunks: int, dtype: Any) -> Any:
    """Tiles for the statistics of a group of batches.

    Returns:
        Of chunks: -m_k, s_k and weights, float32 [rows, batches, columns], and -m_k of one chunk in ``dtype``.
        Of rows: -m, d and log d, float32 [rows, batches].
    """
    columns = min(num_chunks, STATISTICS_COLUMNS)
    neg_max_sbuf = nl.ndarray((rows, batches, columns), dtype=nl.float32, buffer=nl.sbuf)
    sums_sbuf = nl.ndarray((rows, batches, columns), dtype=nl.float32, buffer=nl.sbuf)
    weights_sbuf = nl.ndarray((rows, batches, columns), dtype=nl.float32, buffer=nl.sbuf)
    exact_neg_max_sbuf = nl.ndarray((rows, 1), dtype=dtype, buffer=nl.sbuf)
    row_neg_max_sbuf = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
    row_sum_sbuf = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
    log_sum_sbuf = nl.ndarray((rows, batches), dtype=nl.float32, buffer=nl.sbuf)
    of_chunks = (neg_max_sbuf, sums_sbuf, weights_sbuf, exact_neg_max_sbuf)
    of_rows = (row_neg_max_sbuf, row_sum_sbuf, log_sum_sbuf)
    return of_chunks, of_rows


def chunk_statistics(chunk_sbuf: Any, statistics: Any, batch: int, chunk: int) -> None:
    """-m_k and s_k of one chunk; the chunk is overwritten with its exponentials, which nobody needs.

    Args:
        chunk_sbuf: the logits, [rows, columns of the chunk].
        statistics: from :func:`make_statistics`.
        batch: number of the batch in its group.
        chunk: number of the chunk in its row; called with 0, 1, 2, ...
    """
    if columns_are_full(statistics, chunk):
        row_weights(statistics, chunk)
        row_sums(statistics, chunk)
        restart_columns(statistics)
    chunk_maximum(chunk_sbuf, statistics, batch, chunk)
    chunk_sum(chunk_sbuf, chunk_sbuf, statistics, batch, chunk)


def columns_are_full(statistics: Any, chunk: int) -> bool:
    """Whether the chunks before have to be combined into column 0, before a chunk that finds no column."""
    columns = statistics[0][0].shape[2]
    return chunk >= columns and column_of_chunk(statistics, chunk) == 1


def restart_columns(statistics: Any) -> None:
    """Put -m and d of the chunks so far into column 0."""
    of_chunks, of_rows = statistics
    neg_max_sbuf, sums_sbuf, _, _ = of_chunks
    row_neg_max_sbuf, row_sum_sbuf, _ = of_rows
    nisa.tensor_copy(dst=neg_max_sbuf[:, 0, 0:1], src=row_neg_max_sbuf)
    nisa.tensor_copy(dst=sums_sbuf[:, 0, 0:1], src=row_sum_sbuf)


def chunk_maximum(chunk_sbuf: Any, statistics: Any, batch: int, chunk: int, scale: float = 1.0) -> None:
    """-m_k of one chunk, exactly and clamped; of logits that are the chunk times ``scale``, at most that."""
    neg_max_sbuf, _, _, exact_neg_max_sbuf = statistics[0]
    column = column_of_chunk(statistics, chunk)
    # A maximum loses nothing in the type of its data. Vector may be twice as fast where both have the same 16-bit type.
    nisa.tensor_reduce(dst=exact_neg_max_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1, negate=True)
    clamped_sbuf = neg_max_sbuf[:, batch, column : column + 1]
    if scale == 1.0:
        nisa.tensor_scalar(
            dst=clamped_sbuf,
            data=exact_neg_max_sbuf,
            op0=nl.minimum,
            operand0=FLOAT32_HIGHEST,
            op1=nl.maximum,
            operand1=FLOAT32_LOWEST,
        )
    else:
        nisa.tensor_scalar(
            dst=clamped_sbuf,
            data=exact_neg_max_sbuf,
            op0=nl.multiply,
            operand0=scale,
            op1=nl.minimum,
            operand1=FLOAT32_HIGHEST,
        )


def chunk_sum(
    exponentials_sbuf: Any, chunk_sbuf: Any, statistics: Any, batch: int, chunk: int, scale: float = 1.0
) -> None:
    """s_k of one chunk, whose maximum is there. The exponentials may be written over the chunk."""
    neg_max_sbuf, sums_sbuf, _, _ = statistics[0]
    column = column_of_chunk(statistics, chunk)
    nisa.activation(
        dst=exponentials_sbuf,
        op=nl.exp,
        data=chunk_sbuf,
        bias=neg_max_sbuf[:, batch, column : column + 1],
        scale=scale,
        reduce_op=nl.add,
        reduce_res=sums_sbuf[:, batch, column : column + 1],
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def column_of_chunk(statistics: Any, chunk: int) -> int:
    """Column 0 for chunk 0, and later for what was combined before; the other chunks take the other columns in turn."""
    columns = statistics[0][0].shape[2]
    if chunk == 0:
        return 0
    return 1 + (chunk - 1) % (columns - 1)


def columns_in_use(statistics: Any, num_chunks: int) -> int:
    """How many columns hold something once ``num_chunks`` chunks of each row have gone through."""
    return 1 + column_of_chunk(statistics, num_chunks - 1)


def row_weights(statistics: Any, num_chunks: int) -> None:
    """-m = min of -m_k, and the weights exp(m_k - m), once ``num_chunks`` chunks of each row have gone through.

    Needs no sums: issued right after the last chunk, it keeps no engine waiting.
    """
    row_distances(statistics, num_chunks)
    exponentiate_distances(statistics, num_chunks)


def row_distances(statistics: Any, num_chunks: int) -> None:
    """-m = min of -m_k, and m_k - m, which take the place of the weights."""
    of_chunks, of_rows = statistics
    used = columns_in_use(statistics, num_chunks)
    neg_max_sbuf = of_chunks[0][:, :, 0:used]
    row_neg_max_sbuf = of_rows[0]
    nisa.tensor_reduce(dst=row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf, axis=2)
    nisa.tensor_tensor(
        dst=of_chunks[2][:, :, 0:used],
        data1=row_neg_max_sbuf.expand_dim(2).broadcast(2, used),
        data2=neg_max_sbuf,
        op=nl.subtract,
    )


def exponentiate_distances(statistics: Any, num_chunks: int) -> None:
    """The weights exp(m_k - m)."""
    weights_sbuf = statistics[0][2][:, :, 0 : columns_in_use(statistics, num_chunks)]
    nisa.activation(dst=weights_sbuf, op=nl.exp, data=weights_sbuf)


def row_sums(statistics: Any, num_chunks: int) -> None:
    """d = sum of s_k * exp(m_k - m). Vector waits here until Scalar is done with the last chunk and the weights."""
    of_chunks, of_rows = statistics
    used = columns_in_use(statistics, num_chunks)
    sums_sbuf = of_chunks[1][:, :, 0:used]
    weights_sbuf = of_chunks[2][:, :, 0:used]
    nisa.tensor_tensor(dst=weights_sbuf, data1=weights_sbuf, data2=sums_sbuf, op=nl.multiply)
    nisa.tensor_reduce(dst=of_rows[1], op=nl.add, data=weights_sbuf, axis=2)


def row_logs(statistics: Any) -> None:
    """log d. Scalar loads another activation table for it, and exp's again for the next chunk."""
    _, of_rows = statistics
    _, row_sum_sbuf, log_sum_sbuf = of_rows
    nisa.activation(dst=log_sum_sbuf, op=nl.log, data=row_sum_sbuf)
