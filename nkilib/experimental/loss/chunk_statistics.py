"""Maximum and sum of exponentials of every row, gathered chunk by chunk over the vocabulary.

For chunk k let m_k be the maximum of its logits and s_k the sum of exp(x - m_k). Then with m = max over k of m_k,

    sum over the row of exp(x - m) = sum over k of s_k * exp(m_k - m),

so that chunks need not know of each other (Milakov and Gimelshein, arXiv 1805.02867, in its parallel form). The pairs
(m_k, s_k) of up to ``STATISTICS_COLUMNS - 1`` chunks stand in columns of two tiles; folding them takes five small
instructions, off the path of the chunks. Column 0 holds the pair of all chunks folded before.

The tiles hold -m_k, which is what the ``bias`` of an activation wants. It is clamped to the finite float32 range: a
chunk of -inf alone then gives exp(-inf - lowest) = 0, not NaN from inf - inf.
"""

from __future__ import annotations

from typing import Any

from nkilib.core.tiling import div_ceil
from nkilib.experimental.loss.sbuf_plan import STATISTICS_COLUMNS
from nkilib.nki import nisa, nl

FLOAT32_HIGHEST = 3.4028234663852886e38
FLOAT32_LOWEST = -3.4028234663852886e38
NEGATIVE_ONE = -1.0


def make_statistics(rows: int) -> Any:
    """The tiles of :func:`row_statistics`: negated maxima, sums, and work space."""
    shape = (rows, STATISTICS_COLUMNS)
    neg_max_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    sums_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    weighted_sbuf = nl.ndarray(shape, dtype=nl.float32, buffer=nl.sbuf)
    return neg_max_sbuf, sums_sbuf, weighted_sbuf


def row_statistics(batch_hbm: Any, chunk_buffers_sbuf: Any, first_load: int, statistics: Any) -> Any:
    """Maximum and sum of exponentials of a batch of rows; reads every logit once.

    Args:
        batch_hbm: [rows, V], the batch's rows of the logits.
        chunk_buffers_sbuf: tiles [P, chunk_size] that the chunks take in turn; they end up holding exponentials.
        first_load: how many chunks took a buffer before.
        statistics: from :func:`make_statistics`.

    Returns:
        float32 tiles [rows, 1]: -m, and d = sum of exp(x - m).
    """
    neg_max_sbuf, sums_sbuf, _ = statistics
    rows, vocab_size = batch_hbm.shape
    chunk_size = chunk_buffers_sbuf[0].shape[1]
    num_chunks = div_ceil(vocab_size, chunk_size)
    row_neg_max_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    row_sum_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=row_neg_max_sbuf, value=FLOAT32_HIGHEST)
    nisa.memset(dst=row_sum_sbuf, value=0.0)
    for group_start in range(0, num_chunks, STATISTICS_COLUMNS - 1):
        group_end = min(group_start + STATISTICS_COLUMNS - 1, num_chunks)
        nisa.tensor_copy(dst=neg_max_sbuf[0:rows, 0:1], src=row_neg_max_sbuf)
        nisa.tensor_copy(dst=sums_sbuf[0:rows, 0:1], src=row_sum_sbuf)
        for chunk in range(group_start, group_end):
            start = chunk * chunk_size
            end = min(start + chunk_size, vocab_size)
            buffer_sbuf = chunk_buffers_sbuf[(first_load + chunk) % len(chunk_buffers_sbuf)]
            column = 1 + chunk - group_start
            chunk_sbuf = buffer_sbuf[0:rows, 0 : end - start]
            nisa.dma_copy(dst=chunk_sbuf, src=batch_hbm[:, start:end])
            _chunk_statistics(
                chunk_sbuf, neg_max_sbuf[0:rows, column : column + 1], sums_sbuf[0:rows, column : column + 1]
            )
        _fold(statistics, rows, 1 + group_end - group_start, row_neg_max_sbuf, row_sum_sbuf)
    return row_neg_max_sbuf, row_sum_sbuf


def _chunk_statistics(chunk_sbuf: Any, neg_max_sbuf: Any, sum_sbuf: Any) -> None:
    """-m_k and s_k of one chunk; the chunk is overwritten with its exponentials, which nobody needs."""
    nisa.tensor_reduce(dst=neg_max_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1, negate=True)
    nisa.tensor_scalar(
        dst=neg_max_sbuf,
        data=neg_max_sbuf,
        op0=nl.minimum,
        operand0=FLOAT32_HIGHEST,
        op1=nl.maximum,
        operand1=FLOAT32_LOWEST,
    )
    nisa.activation(
        dst=chunk_sbuf,
        op=nl.exp,
        data=chunk_sbuf,
        bias=neg_max_sbuf,
        reduce_op=nl.add,
        reduce_res=sum_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def _fold(statistics: Any, rows: int, columns: int, row_neg_max_sbuf: Any, row_sum_sbuf: Any) -> None:
    """-m = min of -m_k, and d = sum of s_k * exp(m_k - m), over the first ``columns`` columns."""
    neg_max_sbuf, sums_sbuf, weighted_sbuf = statistics
    weighted_sbuf = weighted_sbuf[0:rows, 0:columns]
    nisa.tensor_reduce(dst=row_neg_max_sbuf, op=nl.minimum, data=neg_max_sbuf[0:rows, 0:columns], axis=1)
    nisa.activation(
        dst=weighted_sbuf,
        op=nl.exp,
        data=neg_max_sbuf[0:rows, 0:columns],
        scale=NEGATIVE_ONE,
        bias=row_neg_max_sbuf,
    )
    nisa.tensor_tensor(dst=weighted_sbuf, data1=weighted_sbuf, data2=sums_sbuf[0:rows, 0:columns], op=nl.multiply)
    nisa.tensor_reduce(dst=row_sum_sbuf, op=nl.add, data=weighted_sbuf, axis=1)
