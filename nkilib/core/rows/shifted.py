# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Sums of exponentials under a shift, which is known before most elements are loaded, in place of the maximum.

For a shift c and the maximum m of a row x,

    log(sum over the row of exp(x - c)) + c = log(sum over the row of exp(x - m)) + m,

whatever c is. Here c is the larger of two numbers: the maximum of the row's first chunk, and one element of the row
that the caller knows already. So the sum S of exp(x - c) over a row of finite elements is at least 1. If m is larger
than c, S is up to exp(m - c) times the sum under m. If S is at most :func:`sum_max`, it is accurate enough. A row with
a larger S, or with an infinity or a NaN, has to be recomputed under its maximum: :func:`doubtful` flags such rows.

:class:`ShiftedSums` has the shifts and the sums of a group of batches. The tiles hold -c, which is the ``bias`` of an
activation, clamped to the finite float32 range. Under a scale, z = scale * x: shifts are of x, and exponentials are of
scale * (x - c).

The largest accepted S follows from two errors of log S: the rounding of log S itself, and the rounding of x - c for
elements above c. Each is at most half a unit in the last place of the rounded number.

- bfloat16: a difference of two bfloat16 is exact unless one of them is over 2^16 times the other, so only the rounding
  of log S counts. With S at most 2^23, log S is below 16, and the error is at most 2^-21.
- float32 and float16: both errors count. With S at most 2^11, log S and every x - c are below 8, and each error is at
  most 2^-22. In float16, a factor of 2^12 between two numbers is enough for their difference to be rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.scale import ONE, Scale
from nkilib.core.rows.statistics import Columns, Place
from nkilib.core.rows.tiles import clamp, float32_like
from nkilib.nki import nisa, nl

# A sum is at least 1 but for the rounding of exp(0); it is 0 where the shift had to be clamped.
SUM_MIN = 0.5
_SUM_MAX_OF_BFLOAT16 = 2.0**23
_SUM_MAX_OF_OTHERS = 2.0**11
# With an entropy, from which log S is subtracted again except for the spread of the softmax.
SUM_MAX_BESIDE_ENTROPY = 2.0**11


def sum_max(dtype: nl.DType) -> float:
    """Return the largest accepted sum S for elements of ``dtype``: log S is off by at most 2^-21 more than under the
    maximum.
    """
    return _SUM_MAX_OF_BFLOAT16 if dtype == nl.bfloat16 else _SUM_MAX_OF_OTHERS


def doubtful(sums_sbuf: nl.NkiTensor, most: float) -> nl.NkiTensor:
    """Return 1.0 where a row has to be recomputed, else 0.0: float32, shaped like the sums.

    Args:
        sums_sbuf: the sums S. A sum outside [``SUM_MIN``, ``most``], or NaN, is flagged.
        most: the largest accepted sum.
    """
    trusted_sbuf, doubtful_sbuf = float32_like(sums_sbuf), float32_like(sums_sbuf)
    # A NaN equals nothing, itself included.
    nisa.tensor_scalar(
        dst=trusted_sbuf, data=sums_sbuf, op0=nl.maximum, operand0=SUM_MIN, op1=nl.minimum, operand1=most
    )
    nisa.tensor_tensor(dst=doubtful_sbuf, data1=sums_sbuf, data2=trusted_sbuf, op=nl.not_equal)
    return doubtful_sbuf


@dataclass(frozen=True)
class ShiftedSums:
    """Shifts c and sums S (see the module) of a group of batches, float32 except for ``exact_neg_max_sbuf``.

    Attributes:
        columns: the layout of the tiles of chunks.
        scale: the positive scale of z = scale * x.
        bias_sbuf: scale * -c of rows, [rows, batches]; the same tile as -c if the scale is 1.
        sums_sbuf: the sums of chunks, [rows, batches, columns].
        exact_neg_max_sbuf: minus the maximum of a row's first chunk, in the type of the chunk, [rows, 1].
        row_neg_max_sbuf: -c of rows, [rows, batches]; named like the tile of minus the maximum in
            :class:`.statistics.Statistics`, so that code can take either of the two.
        row_sum_sbuf, log_sum_sbuf: S and log S of rows, [rows, batches].
    """

    columns: Columns
    scale: Scale
    bias_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor
    exact_neg_max_sbuf: nl.NkiTensor
    row_neg_max_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor
    log_sum_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, columns: Columns, dtype: nl.DType, scale: Scale = ONE) -> ShiftedSums:
        """Return new tiles for chunks x of ``dtype``, where z = ``scale`` * x."""
        row_neg_max_sbuf = columns.row_tile()
        return cls(
            columns,
            scale,
            bias_sbuf=row_neg_max_sbuf if scale.is_one else columns.row_tile(),
            sums_sbuf=columns.tile(),
            exact_neg_max_sbuf=nl.ndarray((columns.rows, 1), dtype=dtype, buffer=nl.sbuf),
            row_neg_max_sbuf=row_neg_max_sbuf,
            row_sum_sbuf=columns.row_tile(),
            log_sum_sbuf=columns.row_tile(),
        )

    def shift_of(self, batch: int) -> nl.NkiTensor:
        """Return -c (minus the shift) of a batch of the group, as a view [rows, 1]."""
        return self.row_neg_max_sbuf[:, batch : batch + 1]

    def bias_of(self, batch: int) -> nl.NkiTensor:
        """Return scale * -c (scale times minus the shift) of a batch of the group, as a view [rows, 1]."""
        return self.bias_sbuf[:, batch : batch + 1]

    def scaled(self, values_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the values times the scale; the tile itself if the scale is 1."""
        return values_sbuf if self.scale.is_one else self.scale.times(values_sbuf)

    def take_shift(self, chunk_sbuf: nl.NkiTensor, element_sbuf: nl.NkiTensor, batch: int) -> None:
        """Compute -c, minus the shift of each row of a batch, before the first chunk is summed.

        The shift is the larger of the maximum of the first chunk and one more element that is already known.

        Args:
            chunk_sbuf: the first chunk, or a part of it, [rows, columns].
            element_sbuf: the further element of each row, in the type of the chunk, [rows, 1].
            batch: the number of the batch in the group.
        """
        shift_sbuf = self.shift_of(batch)
        nisa.tensor_reduce(dst=self.exact_neg_max_sbuf, op=nl.maximum, data=chunk_sbuf, axis=1, negate=True)
        nisa.scalar_tensor_tensor(
            dst=shift_sbuf,
            data=element_sbuf,
            op0=nl.multiply,
            operand0=-1.0,
            op1=nl.minimum,
            operand1=self.exact_neg_max_sbuf,
        )
        clamp(shift_sbuf, shift_sbuf, self.scale.most)
        if not self.scale.is_one:
            nisa.tensor_scalar(dst=self.bias_of(batch), data=shift_sbuf, op0=nl.multiply, operand0=self.scale.of(batch))

    def take_sum(self, exponentials_sbuf: nl.NkiTensor, chunk_sbuf: nl.NkiTensor, place: Place) -> None:
        """Compute exp(scale * (x - c)) of one chunk into ``exponentials_sbuf``, which may be the chunk, and record its
        sum.
        """
        nisa.activation(
            dst=exponentials_sbuf,
            op=nl.exp,
            data=chunk_sbuf,
            bias=self.bias_of(place.batch),
            scale=self.scale.of(place.batch),
            reduce_op=nl.add,
            reduce_res=place.of(self.sums_sbuf),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )

    def combine_sums(self, chunks: int) -> None:
        """Compute the sums S of the rows from ``chunks`` chunks of each row."""
        nisa.tensor_reduce(dst=self.row_sum_sbuf, op=nl.add, data=self.columns.in_use(self.sums_sbuf, chunks), axis=2)

    def restart(self, chunks: int) -> None:
        """Combine the sums of the first ``chunks`` chunks of each row, which fill the columns, into column 0."""
        self.combine_sums(chunks)
        self.columns.restart(self.sums_sbuf, self.row_sum_sbuf)

    def take_logs(self) -> None:
        """Compute log S. Scalar has to load the table of log, and for the next chunk the table of exp again."""
        nisa.activation(dst=self.log_sum_sbuf, op=nl.log, data=self.row_sum_sbuf)
