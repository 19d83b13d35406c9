# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The scale of z = scale * x: one number (:class:`ConstantScale`), or a number for each row (:class:`RowScale`).

A :class:`ConstantScale` is a constant of the compiled kernel. A :class:`RowScale` is a tile, an operand of the same
instructions, so new values need no compilation. The methods ``take_...`` and ``multiply`` write to ``dst_sbuf``, which
may be the same tile as ``values_sbuf``.
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
        """A lower bound of the scales."""
        return self.number

    @property
    def most(self) -> float:
        """An upper bound of the scales."""
        return self.number

    def of(self, batch: int, rows: int | None = None) -> float | nl.NkiTensor:
        """Return the scale of a batch, as an operand of an instruction on a tile [rows, columns].

        Args:
            batch: the number of the batch in the group.
            rows: the number of rows of the operand; None means all rows of the batch.
        """
        return self.number

    def part(self, start: int, end: int, rows: int | None = None) -> ConstantScale:
        """Return the scale of batches ``start`` to ``end`` of the group, for the first ``rows`` rows (None: all)."""
        return self

    def by(self, factor: float) -> ConstantScale:
        """Return the scale times a factor, which may be negative."""
        return ConstantScale(self.number * factor)

    def squared(self) -> ConstantScale:
        """Return the square of the scale."""
        return ConstantScale(self.number * self.number)

    def times(self, values_sbuf: nl.NkiTensor, factor: float = 1.0, divisor: float = 1.0) -> nl.NkiTensor:
        """Return scale * factor / divisor * values in a new tile, float32 [rows, batches] or [rows, batches,
        columns].
        """
        return scaled(values_sbuf, self.number * factor / divisor)

    def quotients(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return values / scale in a new tile, float32 [rows, batches]."""
        return scaled(values_sbuf, 1.0 / self.number)

    def multiply(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches]."""
        nisa.tensor_scalar(dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number)

    def take_difference(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, subtracted_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values - subtracted into ``dst_sbuf``, [rows, batches] or [rows, batches, columns]."""
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=self.number,
            op1=nl.subtract,
            operand1=subtracted_sbuf,
        )

    def take_sum(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, addend: float | nl.NkiTensor) -> None:
        """Compute scale * values + addend into ``dst_sbuf``, [rows, batches], which may also be the addend."""
        if isinstance(addend, float):
            nisa.tensor_scalar(
                dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number, op1=nl.add, operand1=addend
            )
            return
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf, data=values_sbuf, op0=nl.multiply, operand0=self.number, op1=nl.add, operand1=addend
        )

    def take_limited(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, limit: float) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches], with infinities in place of large values.

        If a value has a magnitude of at least ``limit``, its result is an infinity with the sign of the value.
        ``limit`` must be a power of two, so that the factor 2^128 / limit, which makes such values overflow, is exact.
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
        """Compute scale * values * factors into ``dst_sbuf``, all [rows, batches]."""
        nisa.scalar_tensor_tensor(
            dst=dst_sbuf,
            data=values_sbuf,
            op0=nl.multiply,
            operand0=self.number,
            op1=nl.multiply,
            operand1=factors_sbuf,
        )

    def take_exponentials(self, chunks_sbuf: nl.NkiTensor) -> None:
        """Compute exp(scale * number) in place, for a tile [rows, batches, columns]."""
        nisa.activation(dst=chunks_sbuf, op=nl.exp, data=chunks_sbuf, scale=self.number)


ONE = ConstantScale()


@dataclass(frozen=True)
class RowScale:
    """A positive scale for each row of a group of batches, with the same methods as :class:`ConstantScale`.

    Attributes:
        rows_sbuf: the scales, float32 [rows, batches]. A scale may be NaN, which makes every scaled element of the row
            NaN.
        least, most: a lower and an upper bound of the scales that are not NaN.
    """

    rows_sbuf: nl.NkiTensor
    least: float
    most: float

    @property
    def is_one(self) -> bool:
        """Whether all scales are known to be 1; always False, because scales are not known when a kernel is traced."""
        return False

    def of(self, batch: int, rows: int | None = None) -> float | nl.NkiTensor:
        """Return the scales of the first ``rows`` rows (None: all) of batch number ``batch``, [rows, 1]."""
        return self.rows_sbuf[0 : self.rows_sbuf.shape[0] if rows is None else rows, batch : batch + 1]

    def part(self, start: int, end: int, rows: int | None = None) -> RowScale:
        last = self.rows_sbuf.shape[0] if rows is None else rows
        return RowScale(self.rows_sbuf[0:last, start:end], self.least, self.most)

    def by(self, factor: float) -> RowScale:
        """Return the scales times a factor, which may be negative; ``least`` and ``most`` then bound the magnitudes."""
        return RowScale(scaled(self.rows_sbuf, factor), self.least * abs(factor), self.most * abs(factor))

    def squared(self) -> RowScale:
        return RowScale(product(self.rows_sbuf, self.rows_sbuf), self.least * self.least, self.most * self.most)

    def _like(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        if len(values_sbuf.shape) == 2:
            return self.rows_sbuf
        return self.rows_sbuf.expand_dim(2).broadcast(2, values_sbuf.shape[2])

    def times(self, values_sbuf: nl.NkiTensor, factor: float = 1.0, divisor: float = 1.0) -> nl.NkiTensor:
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
        quotients_sbuf = float32_like(values_sbuf)
        nisa.reciprocal(dst=quotients_sbuf, data=self.rows_sbuf)
        return product(quotients_sbuf, values_sbuf)

    def multiply(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches] or [rows, batches, columns]."""
        nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=self._like(values_sbuf), op=nl.multiply)

    def take_difference(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, subtracted_sbuf: nl.NkiTensor) -> None:
        self.multiply(dst_sbuf, values_sbuf)
        nisa.tensor_tensor(dst=dst_sbuf, data1=dst_sbuf, data2=subtracted_sbuf, op=nl.subtract)

    def take_sum(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, addend: float | nl.NkiTensor) -> None:
        product_sbuf = product(values_sbuf, self.rows_sbuf)
        if isinstance(addend, float):
            nisa.tensor_scalar(dst=dst_sbuf, data=product_sbuf, op0=nl.add, operand0=addend)
        else:
            nisa.tensor_tensor(dst=dst_sbuf, data1=product_sbuf, data2=addend, op=nl.add)

    def take_limited(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, limit: float) -> None:
        """Compute scale * values into ``dst_sbuf``, [rows, batches], with infinities in place of large values.

        See :meth:`ConstantScale.take_limited`. The result is NaN where the scale is NaN.
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
        """Add NaN to the values, [rows, batches], of each row whose scale is NaN, because a maximum may have dropped
        the NaN.
        """
        nisa.scalar_tensor_tensor(
            dst=values_sbuf, data=self.rows_sbuf, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=values_sbuf
        )

    def take_product(self, dst_sbuf: nl.NkiTensor, values_sbuf: nl.NkiTensor, factors_sbuf: nl.NkiTensor) -> None:
        nisa.tensor_tensor(dst=dst_sbuf, data1=values_sbuf, data2=factors_sbuf, op=nl.multiply)
        self.multiply(dst_sbuf, dst_sbuf)

    def take_exponentials(self, chunks_sbuf: nl.NkiTensor) -> None:
        self.multiply(chunks_sbuf, chunks_sbuf)
        nisa.activation(dst=chunks_sbuf, op=nl.exp, data=chunks_sbuf)


Scale = ConstantScale | RowScale
