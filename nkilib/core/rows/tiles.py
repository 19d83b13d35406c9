# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small tiles with one or a few float32 numbers for each row, and arithmetic on them.

Most functions return a new tile, unlike those of :mod:`nkilib.core.arithmetic`, which write to a tile of the caller:
constants (:func:`constant`, :func:`log_of_constant`), arithmetic (:func:`scaled`, :func:`product`, :func:`difference`),
masks (:func:`selected`), NaN (:func:`with_nan_of_infinite`) and types (:func:`float32_like`, :func:`cast`).
:func:`clamp` and :func:`finite_limit` keep numbers finite. :func:`sum_in_place` sums each row of one tile;
:class:`RowSums` sums rows that are processed in parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

FLOAT32_HIGHEST = 3.4028234663852886e38
FLOAT32_LOWEST = -FLOAT32_HIGHEST


def finite_limit(scale: float) -> float:
    """Return a limit for float32 numbers: numbers clamped to [-limit, limit] stay finite when they are multiplied by
    ``scale``.
    """
    return FLOAT32_HIGHEST if scale <= 1.0 else 0.5 * FLOAT32_HIGHEST / scale


def clamp(dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, scale: float) -> None:
    """Write the data to ``dst_sbuf``, clamped so that they, and their products with ``scale``, are finite. ``dst_sbuf``
    may be ``data_sbuf``.
    """
    limit = finite_limit(scale)
    nisa.tensor_scalar(dst=dst_sbuf, data=data_sbuf, op0=nl.minimum, operand0=limit, op1=nl.maximum, operand1=-limit)


def float32_like(like_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return a new float32 tile of the shape of another tile."""
    return nl.ndarray(like_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)


def constant(like_sbuf: nl.NkiTensor, value: float) -> nl.NkiTensor:
    """Return a new float32 tile, of the shape of another tile, that holds ``value`` everywhere."""
    constant_sbuf = float32_like(like_sbuf)
    nisa.memset(dst=constant_sbuf, value=value)
    return constant_sbuf


def scaled(values_sbuf: nl.NkiTensor, factor: float | nl.NkiTensor) -> nl.NkiTensor:
    """Return values * factor, float32, in a new tile; the factor is a number or a float32 tile [rows, 1]."""
    scaled_sbuf = float32_like(values_sbuf)
    nisa.tensor_scalar(dst=scaled_sbuf, data=values_sbuf, op0=nl.multiply, operand0=factor)
    return scaled_sbuf


def product(values_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return values * factors, element by element, float32, in a new tile."""
    product_sbuf = float32_like(values_sbuf)
    nisa.tensor_tensor(dst=product_sbuf, data1=values_sbuf, data2=factors_sbuf, op=nl.multiply)
    return product_sbuf


def difference(values_sbuf: nl.NkiTensor, subtracted_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return values - subtracted, element by element, float32, in a new tile."""
    difference_sbuf = float32_like(values_sbuf)
    nisa.tensor_tensor(dst=difference_sbuf, data1=values_sbuf, data2=subtracted_sbuf, op=nl.subtract)
    return difference_sbuf


def selected(values_sbuf: nl.NkiTensor, is_wanted_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the values where the mask is not 0, and 0 elsewhere, also where a value is NaN.

    Args:
        values_sbuf: the values, float32.
        is_wanted_sbuf: the mask, uint32, of the same shape.
    """
    selected_sbuf = constant(values_sbuf, 0.0)
    nisa.tensor_copy_predicated(dst=selected_sbuf, src=values_sbuf, predicate=is_wanted_sbuf)
    return selected_sbuf


def with_nan_of_infinite(values_sbuf: nl.NkiTensor, suspects_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Return a copy of the values in ``dtype``, with NaN where ``suspects_sbuf`` is infinite or NaN (suspects * 0 is
    added).
    """
    marked_sbuf = nl.ndarray(values_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=marked_sbuf, data=suspects_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=values_sbuf
    )
    return marked_sbuf


def cast(tile_sbuf: nl.NkiTensor, dtype: nl.DType) -> nl.NkiTensor:
    """Return the tile itself if it has the type ``dtype``, else a copy of that type."""
    if tile_sbuf.dtype == dtype:
        return tile_sbuf
    cast_sbuf = nl.ndarray(tile_sbuf.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=cast_sbuf, src=tile_sbuf)
    return cast_sbuf


def sum_in_place(tile_sbuf: nl.NkiTensor, total_sbuf: nl.NkiTensor) -> None:
    """Write the sum of each row of a tile to ``total_sbuf``, [rows, 1], on Scalar, which needs no scratch and leaves
    Vector free.
    """
    nisa.activation(
        dst=tile_sbuf,
        op=nl.copy,
        data=tile_sbuf,
        reduce_op=nl.add,
        reduce_res=total_sbuf,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )


def log_of_constant(value: float, rows: int) -> nl.NkiTensor:
    """Return log(value) as a new float32 tile [rows, 1].

    A kernel should call this once, since log and exp need different activation tables.
    """
    log_sbuf = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=log_sbuf, value=value)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    return log_sbuf


def load_table(op: Operator) -> None:
    """Let Scalar load the table of an activation function before its data is ready."""
    unused_sbuf = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=unused_sbuf, value=1.0)
    nisa.activation(dst=unused_sbuf, op=op, data=unused_sbuf)


@dataclass(frozen=True)
class RowSums:
    """The float32 sums of rows that are processed in parts: one sum for each part of each row.

    Attributes:
        parts_sbuf: the sums, [rows, parts].
    """

    parts_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, rows: int, parts: int) -> RowSums:
        """Return new, unwritten sums of ``rows`` rows with ``parts`` parts each."""
        return cls(nl.ndarray((rows, parts), dtype=nl.float32, buffer=nl.sbuf))

    def part(self, number: int, rows: int) -> nl.NkiTensor:
        """Return the column for the sums of part ``number``, as a view [rows, 1] for the caller to write."""
        return self.parts_sbuf[0:rows, number : number + 1]

    def total(self, dst_sbuf: nl.NkiTensor, parts: int) -> None:
        """Write the sum over the first ``parts`` parts of each row to ``dst_sbuf``, [rows, 1]."""
        rows = dst_sbuf.shape[0]
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=self.parts_sbuf[0:rows, 0:parts], axis=1)
