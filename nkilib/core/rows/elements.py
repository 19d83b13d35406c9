# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gather and scatter of one element per row, and the exact int32 arithmetic for its index.

:func:`row_elements` and :func:`vector_elements` return the views to gather from. :class:`ElementIndices` computes the
indices of elements of a matrix. :func:`int32_column`, :func:`integer_op` and :func:`clamped` are the arithmetic.
:func:`rows_per_batch` keeps indices in the range of int32.

The rows of a batch lie within a contiguous span of rows. In the span, seen as ``[span * columns, 1]``, an element has
one index: ``row * columns + column``, where row counts from the first row of the batch. The index is computed in int32
on GpSimd, which is exact; ``tensor_scalar`` would go through float32, which is exact up to 2^24 only.

An invalid column must not read or write another row. So the column is clamped into its row. If clamping changed it,
``INDEX_LIMIT`` is added: the index then leaves the span, and the DMA engine reports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.core.rows.batches import Batch
from nkilib.core.rows.checks import require
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Indices are int32; this leaves room to push the index of an invalid column out of range.
INDEX_LIMIT = 2**30


def rows_per_batch(function: str, asked_for: int, columns: int, cores: int) -> int:
    """Return the number of rows of a batch: ``asked_for``, or fewer if a row has over four million columns.

    With more rows, the int32 index of an element within the batch's span of rows would exceed ``INDEX_LIMIT``.
    """
    require(
        columns <= INDEX_LIMIT,
        f"{function}: a row must have at most {INDEX_LIMIT} columns, the reach of an int32 index, got {columns}",
    )
    return min(int(asked_for), (INDEX_LIMIT // columns - 1) // cores + 1)  # int: True is an int too


def int32_column(rows: int, first: int, step: int) -> nl.NkiTensor:
    """Return a new int32 tile [rows, 1] with first, first + step, ...; ``nisa.iota`` is documented as exact."""
    column_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=column_sbuf, pattern=[[0, 1]], offset=first, channel_multiplier=step)
    return column_sbuf


def integer_op(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, data2_sbuf: nl.NkiTensor, op: Operator) -> None:
    """Compute data1 <op> data2 on GpSimd. Its int32 arithmetic is exact; the other engines compute in float32.

    If an operand has more rows than ``dst``, its first rows are used. If an operand has one column, this column is used
    for every column of ``dst``.
    """
    nisa.tensor_tensor(
        dst=dst_sbuf,
        data1=_fitting(data1_sbuf, dst_sbuf.shape),
        data2=_fitting(data2_sbuf, dst_sbuf.shape),
        op=op,
        engine=nisa.engine.gpsimd,
    )


def _fitting(operand_sbuf: nl.NkiTensor, shape: tuple[int, ...]) -> nl.NkiTensor:
    """Return the first rows of an operand [rows, 1] or [rows, columns], as a view of the shape ``shape`` of the result.

    Constants have the rows of a full batch; the last batch of a core may have fewer.
    """
    rows, columns = shape
    if rows != operand_sbuf.shape[0]:
        operand_sbuf = operand_sbuf[0:rows, :]
    return operand_sbuf if columns == operand_sbuf.shape[1] else operand_sbuf.broadcast(1, columns)


def clamped(values_sbuf: nl.NkiTensor, least_sbuf: nl.NkiTensor, most_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return int32 values [rows, 1] clamped to [least, most]."""
    clamped_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    integer_op(clamped_sbuf, values_sbuf, least_sbuf, nl.maximum)
    integer_op(clamped_sbuf, clamped_sbuf, most_sbuf, nl.minimum)
    return clamped_sbuf


@dataclass(frozen=True)
class ElementIndices:
    """Constants for the index of an element within the span of rows of a batch: int32 [rows, 1].

    Attributes:
        row_start_sbuf: the index of the first element of each row of a batch.
        penalty_sbuf: ``INDEX_LIMIT`` in all rows.
    """

    row_start_sbuf: nl.NkiTensor
    penalty_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, columns: int, cores: int) -> ElementIndices:
        """Make the constants for batches of at most ``rows`` rows of a matrix [N, columns]."""
        return cls(int32_column(rows, 0, cores * columns), int32_column(rows, INDEX_LIMIT, 0))

    def add_position(self, index_sbuf: nl.NkiTensor, column_sbuf: nl.NkiTensor) -> None:
        """Replace a flag in ``index_sbuf`` (1 for an invalid column, 0 for a valid one) by the index of the element in
        the span, which is out of range for an invalid column.
        """
        self.add_column(index_sbuf, column_sbuf)
        self.add_row(index_sbuf, index_sbuf)

    def add_column(self, flag_sbuf: nl.NkiTensor, column_sbuf: nl.NkiTensor) -> None:
        """Replace a flag in ``flag_sbuf`` (1 for an invalid column, 0 for a valid one) by the column, plus
        ``INDEX_LIMIT`` if the flag is 1.
        """
        integer_op(flag_sbuf, flag_sbuf, self.penalty_sbuf, nl.multiply)
        integer_op(flag_sbuf, flag_sbuf, column_sbuf, nl.add)

    def add_row(self, index_sbuf: nl.NkiTensor, in_row_sbuf: nl.NkiTensor) -> None:
        """Write the indices of elements in the span to ``index_sbuf``, int32 [rows, 1], from their columns
        ``in_row_sbuf``.
        """
        integer_op(index_sbuf, in_row_sbuf, self.row_start_sbuf, nl.add)


def row_elements(matrix_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor, batch: Batch) -> nl.NkiTensor:
    """Return one element of each row of a batch, as an indirect view [rows, 1] to gather from or scatter to.

    Args:
        matrix_hbm: the matrix.
        index_sbuf: the index of each element in the batch's span, int32 [rows, 1].
        batch: the batch.
    """
    columns = matrix_hbm.shape[1]
    span_hbm = matrix_hbm.slice(0, batch.first, batch.first + batch.span)
    return span_hbm.reshape((batch.span * columns, 1)).vector_select(0, index_sbuf)


def vector_elements(vector_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the elements of a vector at the indices [rows, 1], as an indirect view to gather from."""
    return vector_hbm.reshape((vector_hbm.shape[0], 1)).vector_select(0, index_sbuf)
