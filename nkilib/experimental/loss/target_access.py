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
    row_start_sbuf = int32_column(rows, 0, cores * vocab_size)
    zero_sbuf = int32_column(rows, 0, 0)
    last_sbuf = int32_column(rows, vocab_size - 1, 0)
    penalty_sbuf = int32_column(rows, INDEX_LIMIT, 0)
    return row_start_sbuf, zero_sbuf, last_sbuf, penalty_sbuf


def int32_column(rows: int, first: int, step: int) -> Any:
    """int32 tile [rows, 1] of first, first + step, ...: by iota, whose integer arithmetic is documented as exact."""
    column_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=column_sbuf, pattern=[[0, 1]], offset=first, channel_multiplier=step)
    return column_sbuf


def integer_op(dst_sbuf: Any, data1_sbuf: Any, data2_sbuf: Any, op: Any) -> None:
    """data1 <op> data2 on GpSimd, the engine whose int32 arithmetic is exact; the others go through float32."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=nisa.engine.gpsimd)


def rows_of(constant_sbuf: Any, rows: int) -> Any:
    """A constant [rows, 1]; only the last batch of a core may have fewer rows than it was made for."""
    if rows == constant_sbuf.shape[0]:
        return constant_sbuf
    return constant_sbuf[0:rows, :]


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
    _, zero_sbuf, last_sbuf, _ = constants
    targets_sbuf = load_targets(targets_hbm, first, rows, cores)
    column_sbuf = clamped(targets_sbuf, zero_sbuf, last_sbuf)
    index_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    integer_op(index_sbuf, column_sbuf, targets_sbuf, nl.not_equal)
    add_position(index_sbuf, column_sbuf, constants)
    explain_index(index_sbuf, "target", targets_sbuf, first, cores, vocab_size)
    return index_sbuf


def make_class_constants(rows: int, vocab_size: int, cores: int, options: Any) -> Any:
    """Constant int32 tiles [rows, 1] for :func:`class_targets`: those of the indices; the first and the last class that
    is here, and of all; the ignored index."""
    first_class, num_classes = options["first_class"], options["num_classes"]
    of_indices = make_index_constants(rows, vocab_size, cores)
    here = int32_column(rows, first_class, 0), int32_column(rows, first_class + vocab_size - 1, 0)
    of_all = int32_column(rows, 0, 0), int32_column(rows, num_classes - 1, 0)
    return of_indices, here, of_all, int32_column(rows, options["ignore_index"], 0)


def class_targets(
    targets_hbm: Any, constants: Any, batch: Any, cores: int, options: Any, valid_sbuf: Any, held_sbuf: Any
) -> Any:
    """Where the target elements of a batch are, if targets may be ignored and the vocabulary may be a part.

    A target that is ignored, or of a class that is not here, is moved to the nearest class that is: its element can be
    gathered, and be scattered if it gets what it would get without the scatter.

    Args:
        targets_hbm: [N] int32, counted over all classes.
        constants: from :func:`make_class_constants`.
        batch: its first position, and how many.
        cores: of the launch.
        options: from :func:`.extended_options.make_options`.
        valid_sbuf: uint32 [rows, 1], where 1 goes for a target that is not ignored, else 0.
        held_sbuf: uint32 [rows, 1], where 1 goes for such a target if its class is here, else 0.

    Returns:
        int32 tiles [rows, 1]: index of each row's element within the batch's span of rows, out of range of it where
        the target is neither ignored nor a class; and the element's column.
    """
    of_indices, here, of_all, ignored_sbuf = constants
    first, rows = batch
    targets_sbuf = load_targets(targets_hbm, first, rows, cores)
    column_sbuf = clamped(targets_sbuf, here[0], here[1])
    index_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    integer_op(valid_sbuf, targets_sbuf, ignored_sbuf[0:rows, :], nl.not_equal)
    integer_op(held_sbuf, column_sbuf, targets_sbuf, nl.equal)
    if options["is_shard"]:
        integer_op(index_sbuf, clamped(targets_sbuf, of_all[0], of_all[1]), targets_sbuf, nl.equal)
        integer_op(index_sbuf, valid_sbuf, index_sbuf, nl.greater)
        integer_op(column_sbuf, column_sbuf, here[0][0:rows, :], nl.subtract)
    else:
        integer_op(index_sbuf, valid_sbuf, held_sbuf, nl.greater)
    integer_op(held_sbuf, held_sbuf, valid_sbuf, nl.multiply)
    add_position(index_sbuf, column_sbuf, of_indices)
    explain_index(index_sbuf, "target", targets_sbuf, first, cores, options["num_classes"])
    return index_sbuf, column_sbuf


def gathered_weights(class_weight_hbm: Any, column_sbuf: Any, weights_sbuf: Any) -> None:
    """The class weights of the given columns, into a float32 tile [rows, 1]."""
    elements_hbm = class_weight_hbm.reshape((class_weight_hbm.shape[0], 1))
    nisa.dma_copy(dst=weights_sbuf, src=elements_hbm.vector_select(0, column_sbuf))


def load_targets(targets_hbm: Any, first: int, rows: int, cores: int) -> Any:
    """The targets of a batch, int32 [rows, 1]."""
    targets_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=targets_sbuf, src=strided_rows(targets_hbm, first, rows, cores))
    return targets_sbuf


def clamped(values_sbuf: Any, least_sbuf: Any, most_sbuf: Any) -> Any:
    """int32 values [rows, 1], those outside [least, most] moved to its ends; the constants may have more rows."""
    rows = values_sbuf.shape[0]
    clamped_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    integer_op(clamped_sbuf, values_sbuf, rows_of(least_sbuf, rows), nl.maximum)
    integer_op(clamped_sbuf, clamped_sbuf, rows_of(most_sbuf, rows), nl.minimum)
    return clamped_sbuf


def add_position(index_sbuf: Any, column_sbuf: Any, constants: Any) -> None:
    """Turn 1 for an invalid target, and 0 for another, into an index: the element's, out of range where it was 1."""
    row_start_sbuf, _, _, penalty_sbuf = constants
    rows = index_sbuf.shape[0]
    integer_op(index_sbuf, index_sbuf, rows_of(penalty_sbuf, rows), nl.multiply)
    integer_op(index_sbuf, index_sbuf, column_sbuf, nl.add)
    integer_op(index_sbuf, index_sbuf, rows_of(row_start_sbuf, rows), nl.add)


def target_elements(matrix_hbm: Any, index_sbuf: Any, first: int, rows: int, cores: int) -> Any:
    """The target element of each row of a batch, as an indirect view [rows, 1] to gather from or scatter to."""
    span = row_span(rows, cores)
    elements_hbm = matrix_hbm.slice(0, first, first + span).reshape((span * matrix_hbm.shape[1], 1))
    return elements_hbm.vector_select(0, index_sbuf)
