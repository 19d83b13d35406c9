# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The scale of z = scale * x: one number (:class:`ConstantScale`), or a number for each row (:class:`RowScale`).

As a number it is a constant of the compiled kernel. The scales of rows are tiles, operands of the same instructions, so
that no value compiles anew.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.tiles import float32_like, product, scaled
from nkilib.nki import nisa, nl

# A number that float32 does not hold: what reaches it is infinite.
OVERFLOW = 2.0**128


@dataclass(frozen=True)
class ConstantScale:
    """The same positive scale for all rows.

    Attributes:
        number: the scale.
    """

    number: float = 1.0

    @property
    def is_one(self) -> bool:
        """Whether the scale is 1, so that z = scale * x is x."""
        return self.number == 1.0

    @property
    def least(self) -> float:
        """A number that no scale is below."""
        return self.number

    @property
    def most(self) -> float:
        """A number that no scale is above."""
        return self.number

    def of(self, batch: int, rows: int | None = None) -> float | nl.NkiTensor:
        """Return the scale of the first rows of a batch (None: all), as an operand of an instruction on a tile [rows,
        columns].
        """
        return self.number

    def part(self, start: int, end: int, rows: int | None = None) -> ConstantScale:
        """Return the scale of the first rows (None: all) of a range of batches."""
        return self

    def by(self, factor: float) -> ConstantScale:
        """Return the scale times a factor, of any sign."""
        return ConstantScale(self.number * factor)

    def squared(self) -> ConstantScale:
        """Return the square of the scale."""
        return ConstantScale(self.number * self.number)

    def times(self, values_sbuf: nl.NkiTensor, factor: float = 1.0, divisor: float = 1.0) -> nl.NkiTensor:
        """Compute scale * factor / divisor * values, float32 [rows, batches] or [rows, batches, columns]."""
        return scaled(values_sbuf, self.number * factor / divisor)

    def quotients(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Compute values / scale, float32 [rows, batches]."""
        return scaled(values_sbuf, 1.0 / self.number)

    def multiply(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches]; it may be the values."""
        nisa.tensor_scalar(dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number)

    def take_difference(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, subtracted_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values - subtracted into ``dst_sbuf``, [rows, batches] or [rows, batches, columns]; it may
        be the values.
        """
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=self.number,
            op1=nl.subtract,
            operand1=subtracted_sbuf,
        )

    def take_sum(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, addend: float | nl.NkiTensor) -> None:
        """Compute scale * values + addend into ``dst_sbuf``, [rows, batches]; it may be the values or the addend."""
        if isinstance(addend, float):
            nisa.tensor_scalar(
                dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number, op1=nl.add, operand1=addend
            )
            return
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number, op1=nl.add, operand1=addend
        )

    def take_limited(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, limit: float) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches]; it may be the values.

        A value whose magnitude, before scaling, is at least ``limit`` becomes infinite with its sign. ``limit`` must
        be a power of two, so that the factor 2^128 / limit, which makes such values overflow, is exact.
        """
        factor = OVERFLOW / limit
        nisa.tensor_scalar(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=factor,
            op1=nl.multiply,
            operand1=self.number / factor,
        )

    def add_nan(self, values_sbuf: nl.NkiTensor) -> None:
        """Do nothing, because a constant scale is never NaN; see :meth:`RowScale.add_nan`."""

    def take_product(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values * factors into ``dst_sbuf``, all [rows, batches]; it may be the values."""
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=self.number,
            op1=nl.multiply,
            operand1=factors_sbuf,
        )

    def take_exponentials(self, chunks_sbuf: nl.NkiTensor) -> None:
        """Replace numbers of chunks, [rows, batches, columns], by exp(scale * number)."""
        nisa.activation(dst=chunks_sbuf, op=nl.exp, data=chunks_sbuf, scale=self.number)


ONE = ConstantScale()


@dataclass(frozen=True)
class RowScale:
    """A positive scale for each row of a group of batches; the methods are those of :class:`ConstantScale`.

    Attributes:
        rows_sbuf: the scales, float32 [rows, batches]. A scale may be NaN: then every scaled element of the row is NaN.
        least, most: numbers that no scale is below, or above, except NaN.
    """

    rows_sbuf: nl.NkiTensor
    least: float
    most: float

    @property
    def is_one(self) -> bool:
        """Whether the scales are known to be 1: always False, because they are not known when a kernel is traced."""
        return False

    def of(self, batch: int, rows: int | None = None) -> float | nl.NkiTensor:
        """Return the scales of the first rows of a batch (None: all), [rows, 1], as an operand of an instruction."""
        return self.rows_sbuf[0 : self.rows_sbuf.shape[0] if rows is None else rows, batch : batch + 1]

    def part(self, start: int, end: int, rows: int | None = None) -> RowScale:
        """Return the scales of the first rows (None: all) of a range of batches."""
        last = self.rows_sbuf.shape[0] if rows is None else rows
        return RowScale(self.rows_sbuf[0:last, start:end], self.least, self.most)

    def by(self, factor: float) -> RowScale:
        """Compute the scales times a factor, of any sign; ``least`` and ``most`` are then limits of the magnitudes."""
        return RowScale(scaled(self.rows_sbuf, factor), self.least * abs(factor), self.most * abs(factor))

    def squared(self) -> RowScale:
        """Compute the squares of the scales."""
        return RowScale(product(self.rows_sbuf, self.rows_sbuf), self.least * self.least, self.most * self.most)

    def _like(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scales in the shape of values, [rows, batches] or [rows, batches, columns]."""
        if len(values_sbuf.shape) == 2:
            return self.rows_sbuf
        return self.rows_sbuf.expand_dim(2).broadcast(2, values_sbuf.shape[2])

    def times(self, values_sbuf: nl.NkiTensor, factor: float = 1.0, divisor: float = 1.0) -> nl.NkiTensor:
        """Compute scale * factor / divisor * values, float32 [rows, batches] or [rows, batches, columns]."""
        product_sbuf = float32_like(values_sbuf)
        nisa.scalar_tensor_tensor(
            dst=product_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=factor / divisor,
            op1=nl.multiply,
            operand1=self._like(values_sbuf),
        )
        return product_sbuf

    def quotients(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Compute values / scale, float32 [rows, batches]."""
        quotients_sbuf = float32_like(values_sbuf)
        nisa.reciprocal(dst=quotients_sbuf, data=self.rows_sbuf)
        return product(quotients_sbuf, values_sbuf)

    def multiply(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches] or [rows, batches, columns]; it may be the
        values.
        """
        nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=self._like(values_sbuf), op=nl.multiply)

    def take_difference(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, subtracted_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values - subtracted into ``dst_sbuf``, [rows, batches] or [rows, batches, columns]; it may
        be the values.
        """
        self.multiply(dst_sbuf, values_sbuf)
        nisa.tensor_tensor(dst=dst_sbuf, data1=dst_sbuf, data2=subtracted_sbuf, op=nl.subtract)

    def take_sum(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, addend: float | nl.NkiTensor) -> None:
        """Compute scale * values + addend into ``dst_sbuf``, [rows, batches]; it may be the values or the addend."""
        product_sbuf = product(values_sbuf, self.rows_sbuf)
        if isinstance(addend, float):
            nisa.tensor_scalar(dst=dst_sbuf, data=product_sbuf, op0=nl.add, operand0=addend)
        else:
            nisa.tensor_tensor(dst=dst_sbuf, data1=product_sbuf, data2=addend, op=nl.add)

    def take_limited(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, limit: float) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches]; it may be the values.

        A value whose magnitude, before scaling, is at least ``limit`` becomes infinite with its sign (NaN if the scale
        is NaN). ``limit`` must be a power of two, so that the factor 2^128 / limit, which makes such values overflow,
        is exact.
        """
        factor = OVERFLOW / limit
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=factor,
            op1=nl.multiply,
            operand1=scaled(self.rows_sbuf, 1.0 / factor),
        )

    def add_nan(self, values_sbuf: nl.NkiTensor) -> None:
        """Add NaN to the values, [rows, batches], of each row whose scale is NaN: a maximum may have dropped it."""
        nisa.scalar_tensor_tensor(
            dst=values_sbuf, data=self.rows_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=values_sbuf
        )

    def take_product(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values * factors into ``dst_sbuf``, all [rows, batches]; it may be the values."""
        nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=factors_sbuf, op=nl.multiply)
        self.multiply(dst_sbuf, dst_sbuf)

    def take_exponentials(self, chunks_sbuf: nl.NkiTensor) -> None:
        """Replace numbers of chunks, [rows, batches, columns], by exp(scale * number)."""
        self.multiply(chunks_sbuf, chunks_sbuf)
        nisa.activation(dst=chunks_sbuf, op=nl.exp, data=chunks_sbuf)


Scale = ConstantScale | RowScale
