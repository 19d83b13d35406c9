"""Gather and scatter of one element a row: the logit of the target, and its gradient.

The rows of a batch lie within a contiguous span of rows. Seen as ``[span * V, 1]``, an element of it has one index:
``row * V + target``, where row counts from the first row of the batch. It is computed in int32 on GpSimd, which is
exact; ``tensor_scalar`` would go through float32, exact up to 2^24 only.

An invalid target must not read or write a neighbour's row. So the target is clamped into its row, and where that
changed it, ``INDEX_LIMIT`` is added: the index leaves the span, and the DMA engine reports it.
"""

from __future__ import annotations

from typing import Any

from nkilib.core.cores import row_span, strided_rows
from nkilib.experimental.loss.sbuf_plan import INDEX_LIMIT
from nkilib.nki import explain_index, nisa, nl


def make_index_constants(rows: int, vocab_size: int, cores: int) -> Any:
    """Constant int32 tiles [rows, 1] for :func:`target_indices`: where each row starts, 0, V - 1 and the penalty."""
    row_start_sbuf = _int32_column(rows, 0, cores * vocab_size)
    zero_sbuf = _int32_column(rows, 0, 0)
    last_sbuf = _int32_column(rows, vocab_size - 1, 0)
    penalty_sbuf = _int32_column(rows, INDEX_LIMIT, 0)
    return row_start_sbuf, zero_sbuf, last_sbuf, penalty_sbuf


def _int32_column(rows: int, first: int, step: int) -> Any:
    """int32 tile [rows, 1] of first, first + step, ...: by iota, whose integer arithmetic is documented as exact."""
    column_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=column_sbuf, pattern=[[0, 1]], offset=first, channel_multiplier=step)
    return column_sbuf


def _integer_op(dst_sbuf: Any, data1_sbuf: Any, data2_sbuf: Any, op: Any) -> None:
    """data1 <op> data2 on GpSimd, the engine whose int32 arithmetic is exact; the others go through float32."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=nisa.engine.gpsimd)


def _constants_of_rows(constants: Any, rows: int) -> Any:
    """The constants as tiles [rows, 1]; only the last batch of a core may have fewer rows than they were made for."""
    if rows == constants[0].shape[0]:
        return constants
    row_start_sbuf, zero_sbuf, last_sbuf, penalty_sbuf = constants
    return row_start_sbuf[0:rows, :], zero_sbuf[0:rows, :], last_sbuf[0:rows, :], penalty_sbuf[0:rows, :]


def target_indices(targets_hbm: Any, constants: Any, vocab_size: int, first: int, rows: int, cores: int) -> Any:
    """Index of each row's target element within the batch's span of rows.

    Args:
        targets_hbm: [N] int32.
        constants: from :func:`make_index_constants`.
        vocab_size: V; only for the message about a target outside [0, V).
        first, rows, cores: the batch: rows ``first``, ``first + cores``, ...

    Returns:
        int32 tile [rows, 1]; out of range of the span where the target is outside [0, V).
    """
    row_start_sbuf, zero_sbuf, last_sbuf, penalty_sbuf = _constants_of_rows(constants, rows)
    targets_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=targets_sbuf, src=strided_rows(targets_hbm, first, rows, cores))
    column_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    _integer_op(column_sbuf, targets_sbuf, zero_sbuf, nl.maximum)
    _integer_op(column_sbuf, column_sbuf, last_sbuf, nl.minimum)
    index_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    _integer_op(index_sbuf, column_sbuf, targets_sbuf, nl.not_equal)
    _integer_op(index_sbuf, index_sbuf, penalty_sbuf, nl.multiply)
    _integer_op(index_sbuf, index_sbuf, column_sbuf, nl.add)
    _integer_op(index_sbuf, index_sbuf, row_start_sbuf, nl.add)
    explain_index(index_sbuf, "target", targets_sbuf, first, cores, vocab_size)
    return index_sbuf


def target_elements(matrix_hbm: Any, index_sbuf: Any, first: int, rows: int, cores: int) -> Any:
    """The target element of each row of a batch, as an indirect view [rows, 1] to gather from or scatter to."""
    span = row_span(rows, cores)
    elements_hbm = matrix_hbm.slice(0, first, first + span).reshape((span * matrix_hbm.shape[1], 1))
    return elements_hbm.vector_select(0, index_sbuf)
