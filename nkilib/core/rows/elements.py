# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Gather and scatter of one element per row, and the exact int32 arithmetic that computes where it is.

:func:`row_elements` and :func:`vector_elements` are the views to gather from, with indices of :class:`ElementIndices`
in a matrix. :func:`int32_column`, :func:`integer_op` and :func:`clamped` are the arithmetic; :func:`rows_per_batch`
keeps indices in the range of int32.

The rows of a batch lie within a contiguous span of rows. In the span, seen as ``[span * columns, 1]``, an element has
one index: ``row * columns + column``, where row counts from the first row of the batch. The index is computed in int32
on GpSimd, which is exact; ``tensor_scalar`` would go through float32, which is exact up to 2^24 only.

An invalid column must not read or write a neighbour's row. So the column is clamped into its row, and where that
changed it, ``INDEX_LIMIT`` is added: the index then leaves the span, and the DMA engine reports it.
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
    """Return the number of rows of a batch: ``asked_for``, or fewer for rows of over four million columns.

    With more rows, the int32 index of an element within the batch's span of rows would exceed ``INDEX_LIMIT``.
    """
    require(
        columns <= INDEX_LIMIT,
        f"{function}: a row must have at most {INDEX_LIMIT} columns, the reach of an int32 index, got {columns}",
    )
    return min(int(asked_for), (INDEX_LIMIT // columns - 1) // cores + 1)  # int: True is an int too


def int32_column(rows: int, first: int, step: int) -> nl.NkiTensor:
    """Make an int32 tile [rows, 1] of first, first + step, ... with iota.

    Its integer arithmetic is documented as exact.
    """
    column_sbuf = nl.ndarray((rows, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.iota(dst=column_sbuf, pattern=[[0, 1]], offset=first, channel_multiplier=step)
    return column_sbuf


def integer_op(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, data2_sbuf: nl.NkiTensor, op: Operator) -> None:
    """Compute data1 <op> data2 on GpSimd, the engine with exact int32 arithmetic; the others go through float32.

    Operands may be constants that were made for more rows than ``dst`` has.
    """
    rows = dst_sbuf.shape[0]
    nisa.tensor_tensor(
        dst=dst_sbuf,
        data1=_rows_of(data1_sbuf, rows),
        data2=_rows_of(data2_sbuf, rows),
        op=op,
        engine=nisa.engine.gpsimd,
    )


def _rows_of(operand_sbuf: nl.NkiTensor, rows: int) -> nl.NkiTensor:
    """Return the first rows of an operand [rows, 1].

    Only the last batch of a core may have fewer rows than a constant was made for.
    """
    return operand_sbuf if rows == operand_sbuf.shape[0] else operand_sbuf[0:rows, :]


def clamped(values_sbuf: nl.NkiTensor, least_sbuf: nl.NkiTensor, most_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return int32 values [rows, 1], with those outside [least, most] moved to its ends."""
    clamped_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.int32, buffer=nl.sbuf)
    integer_op(clamped_sbuf, values_sbuf, least_sbuf, nl.maximum)
    integer_op(clamped_sbuf, clamped_sbuf, most_sbuf, nl.minimum)
    return clamped_sbuf


@dataclass(frozen=True)
class ElementIndices:
    """Constants for the index of an element within the rows that a batch spans: int32 [rows, 1].

    Attributes:
        row_start_sbuf: the index of the first element of each row of a batch.
        penalty_sbuf: ``INDEX_LIMIT``.
    """

    row_start_sbuf: nl.NkiTensor
    penalty_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, columns: int, cores: int) -> ElementIndices:
        """Make the constants for batches of at most ``rows`` rows of a matrix [N, columns]."""
        return cls(int32_column(rows, 0, cores * columns), int32_column(rows, INDEX_LIMIT, 0))

    def add_position(self, index_sbuf: nl.NkiTensor, column_sbuf: nl.NkiTensor) -> None:
        """Replace a flag in ``index_sbuf``, 1 for an invalid column and 0 for a valid one, by the index of the element.

        If the flag is 1, the index is out of range.
        """
        integer_op(index_sbuf, index_sbuf, self.penalty_sbuf, nl.multiply)
        integer_op(index_sbuf, index_sbuf, column_sbuf, nl.add)
        integer_op(index_sbuf, index_sbuf, self.row_start_sbuf, nl.add)


def row_elements(matrix_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor, batch: Batch) -> nl.NkiTensor:
    """Return an element of each row of a batch, as an indirect view [rows, 1] to gather from or scatter to."""
    columns = matrix_hbm.shape[1]
    span_hbm = matrix_hbm.slice(0, batch.first, batch.first + batch.span)
    return span_hbm.reshape((batch.span * columns, 1)).vector_select(0, index_sbuf)


def vector_elements(vector_hbm: nl.NkiTensor, index_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the elements of a vector at [rows, 1] indices, as an indirect view to gather from."""
    return vector_hbm.reshape((vector_hbm.shape[0], 1)).vector_select(0, index_sbuf)
