# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The values gathered for the rows of a core: one per row, float32 [128, batches]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from nkilib.core.rows.batches import Batch, BatchGroup
from nkilib.core.rows.tiles import clamp
from nkilib.experimental.loss.distillation.options import LOWEST, POSITIONS, Part
from nkilib.nki import nisa, nl

# A factor whose product with LOWEST is -inf, and whose product with any other logit is not.
_BEYOND = 2.0**20


def row_tile(count: int, value: float = 0.0) -> nl.NkiTensor:
    """Allocate a tile with one number for each row of ``count`` batches, set to ``value``."""
    tile_sbuf = nl.ndarray((POSITIONS, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=value)
    return tile_sbuf


def column(tile_sbuf: nl.NkiTensor, batch: int, rows: int) -> nl.NkiTensor:
    """Return the values of one batch: a view [rows, 1]."""
    return tile_sbuf[0:rows, batch : batch + 1]


@dataclass(frozen=True)
class Exponentials:
    """The shifts and sums of the rows of one of the two distributions.

    The logits x of a row are shifted by a number c of about their maximum before their exponentials are summed.

    Attributes:
        scale: 1 / T.
        neg_shift_sbuf: -c, in units of logits.
        bias_sbuf: -c / T; the same tile where T is 1.
        sums_sbuf: S, the sum of exp((x - c) / T).
    """

    scale: float
    neg_shift_sbuf: nl.NkiTensor
    bias_sbuf: nl.NkiTensor
    sums_sbuf: nl.NkiTensor

    @classmethod
    def make(cls, batches: int, scale: float) -> Exponentials:
        """Allocate the tiles of ``batches`` batches; unused rows of the last batch have c = 0 and S = 1."""
        neg_shift_sbuf = row_tile(batches)
        bias_sbuf = neg_shift_sbuf if scale == 1.0 else row_tile(batches)
        return cls(scale, neg_shift_sbuf, bias_sbuf, row_tile(batches, 1.0))

    def take_shift(self, sample_sbuf: nl.NkiTensor, batch: int, is_further: bool = False) -> None:
        """Set c of a batch to the maximum of a sample of each row, or of the old c and a further sample."""
        rows, _ = sample_sbuf.shape
        shift_sbuf = column(self.neg_shift_sbuf, batch, rows)
        exact_sbuf = nl.ndarray((rows, 1), dtype=sample_sbuf.dtype, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=exact_sbuf, op=nl.maximum, data=sample_sbuf, axis=1, negate=True)
        if is_further:
            nisa.tensor_tensor(dst=shift_sbuf, data1=shift_sbuf, data2=exact_sbuf, op=nl.minimum)
        else:
            clamp(shift_sbuf, exact_sbuf, 1.0)
        self.set_bias(batch, rows)

    def set_bias(self, batch: int, rows: int) -> None:
        """Compute the bias -c / T."""
        if self.scale != 1.0:
            nisa.tensor_scalar(
                dst=column(self.bias_sbuf, batch, rows),
                data=column(self.neg_shift_sbuf, batch, rows),
                op0=nl.multiply,
                operand0=self.scale,
            )

    def take(
        self, dst: nl.NkiTensor, logits_sbuf: nl.NkiTensor, batch: int, sum_sbuf: nl.NkiTensor | None = None
    ) -> None:
        """Compute exp((x - c) / T) of a range of columns and, if requested, their sum, [rows, 1]."""
        bias_sbuf = column(self.bias_sbuf, batch, logits_sbuf.shape[0])
        if sum_sbuf is None:
            nisa.activation(dst=dst, op=nl.exp, data=logits_sbuf, bias=bias_sbuf, scale=self.scale)
            return
        nisa.activation(
            dst=dst,
            op=nl.exp,
            data=logits_sbuf,
            bias=bias_sbuf,
            scale=self.scale,
            reduce_op=nl.add,
            reduce_res=sum_sbuf,
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        )


def raise_lowest(logits_sbuf: nl.NkiTensor) -> None:
    """Replace -inf by ``LOWEST``, in place; then the differences of two logits are numbers."""
    nisa.tensor_scalar(dst=logits_sbuf, data=logits_sbuf, op0=nl.maximum, operand0=LOWEST)


def raise_to(logits_sbuf: nl.NkiTensor, floor_sbuf: nl.NkiTensor) -> None:
    """Raise logits below the floor of their row, float32 [rows, 1], to the floor.

    If the logits are float32, GpSimd processes half of the columns.
    """
    columns = logits_sbuf.shape[1]
    half = columns // 2 if logits_sbuf.dtype == nl.float32 else 0
    first_sbuf = logits_sbuf[:, 0 : columns - half]
    nisa.tensor_scalar(dst=first_sbuf, data=first_sbuf, op0=nl.maximum, operand0=floor_sbuf)
    if half > 0:
        second_sbuf = logits_sbuf[:, columns - half : columns]
        nisa.tensor_tensor(
            dst=second_sbuf,
            data1=second_sbuf,
            data2=floor_sbuf.broadcast(1, half),
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )


def raise_half(logits_sbuf: nl.NkiTensor, lowest_sbuf: nl.NkiTensor) -> None:
    """Replace -inf by ``LOWEST``, like :func:`raise_lowest`; if the logits are float32, GpSimd processes half of them.

    Args:
        logits_sbuf: the logits, [rows, columns].
        lowest_sbuf: ``LOWEST``, float32 [128, 1].
    """
    rows, columns = logits_sbuf.shape
    half = columns // 2 if logits_sbuf.dtype == nl.float32 else 0
    raise_lowest(logits_sbuf[:, 0 : columns - half])
    if half > 0:
        second_sbuf = logits_sbuf[:, columns - half : columns]
        nisa.tensor_tensor(
            dst=second_sbuf,
            data1=second_sbuf,
            data2=lowest_sbuf[0:rows, :].broadcast(1, half),
            op=nl.maximum,
            engine=nisa.engine.gpsimd,
        )


def add_nan_of_empty(values_sbuf: nl.NkiTensor, neg_shift_sbuf: nl.NkiTensor) -> None:
    """Add NaN to rows whose logits are all -inf, as in PyTorch, and to rows with a +inf or NaN; add 0 to the others."""
    suspect_sbuf = nl.ndarray(values_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=suspect_sbuf, data=neg_shift_sbuf, op0=nl.multiply, operand0=_BEYOND, op1=nl.multiply, operand1=0.0
    )
    nisa.tensor_tensor(dst=values_sbuf, data1=values_sbuf, data2=suspect_sbuf, op=nl.add)


@dataclass(frozen=True)
class Vectors:
    """Results of the forward in HBM, float32 [N] each, in the order of its return value."""

    loss_hbm: nl.NkiTensor
    moment_hbm: nl.NkiTensor
    student_shift_hbm: nl.NkiTensor
    student_sum_hbm: nl.NkiTensor
    teacher_shift_hbm: nl.NkiTensor
    teacher_sum_hbm: nl.NkiTensor

    @classmethod
    def make(cls, positions: int) -> Vectors:
        """Allocate the vectors; their contents are not initialised."""
        vectors = [
            nl.ndarray((positions,), dtype=nl.float32, buffer=nl.shared_hbm, name=vector.name) for vector in fields(cls)
        ]
        return cls(*vectors)

    def of_part(self, part: Part) -> Vectors:
        """Return views of the positions of a part."""
        return Vectors(*(part.of(vector_hbm) for vector_hbm in self.returned()))

    def returned(self) -> tuple[nl.NkiTensor, ...]:
        """Return all vectors, in their order."""
        return tuple(getattr(self, vector.name) for vector in fields(self))


def groups_of(batches: Sequence[Batch]) -> list[BatchGroup]:
    """Return the batches of a core as groups of batches with equally many rows: the full ones, and the last one."""
    last = len(batches) - 1
    starts = [0] if last == 0 or batches[last].rows == batches[0].rows else [0, last]
    return [
        BatchGroup(start, end, batches[start].first, batches[start].rows, batches[start].cores)
        for start, end in zip(starts, [*starts[1:], last + 1], strict=True)
    ]


def loaded_rows(vector_hbm: nl.NkiTensor, batches: Sequence[Batch], dtype: nl.DType = nl.float32) -> nl.NkiTensor:
    """Load a vector [N] of the rows of a core into a tile, [128, batches]; 0 in unused rows of a batch."""
    tile_sbuf = nl.ndarray((POSITIONS, len(batches)), dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile_sbuf, value=0)
    for group in groups_of(batches):
        rows_hbm = vector_hbm.slice(
            0, group.first, group.first + (group.rows * group.batches - 1) * group.cores + 1, group.cores
        )
        nisa.dma_copy(
            dst=tile_sbuf[0 : group.rows, group.start : group.end],
            src=rows_hbm.reshape_dim(0, (group.batches, group.rows)).permute((1, 0)),
        )
    return tile_sbuf
