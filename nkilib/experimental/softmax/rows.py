# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along the last axis (:func:`forward_of_rows`): rows stay in SBUF between two passes over
them.

A *batch* is a set of rows that are in SBUF together, a *piece* the part of a batch that one instruction handles
(:mod:`nkilib.core.rows.row_plan`). :func:`forward_plan` divides the rows; :mod:`.row_schedule` orders the instructions.
Let m be the maximum of a row x, m_k the maximum of piece k, and d the sum of exp(x - m). What the first pass keeps for
the second pass depends on the length and type of the row:

- log-softmax keeps x; the second pass computes ``(x - m) - log d``;
- softmax of rows of one piece keeps exp(x - m) in float32; the second pass multiplies it by 1 / d;
- softmax of longer rows of a 16-bit type keeps exp(x - m_k) in float32; the second pass multiplies it by
  exp(m_k - m) / d;
- softmax of longer rows in float32, or of rows whose exponentials do not fit, keeps x; each pass computes exponentials;
- tiny rows keep x - m (log-softmax) or exp(x - m) in float32, so that one instruction processes many rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nkilib.core.hardware import FLOAT32_BYTES, PARTITIONS
from nkilib.core.rows.row_plan import (
    MOST_PIECES,
    SHORT_ROW,
    RowBatch,
    RowPiece,
    RowPlan,
    Streams,
    batches_of_core,
    kept_plan,
    row_plan,
)
from nkilib.core.rows.sbuf import Ring, element_bytes, ring_of
from nkilib.core.rows.statistics import halved
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, load_table
from nkilib.experimental.softmax.row_schedule import run
from nkilib.experimental.softmax.row_statistics import (
    RowStatistics,
    negated_maximum,
    num_stages,
)
from nkilib.experimental.softmax.tensors import Kind, Matrices
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator

# Tiles of a piece's results, if these have a type of their own.
RING = 3
# The longest row of which softmax keeps exponentials in float32: too few longer ones would fit.
_KEPT_ROW = 2048
# The maximum number of pieces of a batch of short rows of log-softmax: all its logs share one slow load of a table.
_PIECES_OF_LOGS = 8
# Bytes of a piece of short rows of softmax, one piece per batch, for fewer instructions (Scalar has one per row).
_KEPT_PIECE_BYTES = 6144
# Tiles of the halves of a piece, for maxima.
_HALVES = 3
# The share of the products of softmax that Scalar does instead of Vector.
_SCALAR_SHARE = 0.35
# The shares of the products of kept exponentials of pieces that GpSimd and Scalar do instead of Vector.
_KEPT_SHARES = (0.2, 0.35)
# The share that GpSimd does instead of Vector: of the products of recomputed exponentials, of short and of tiny rows.
_GPSIMD_SHARE, _GPSIMD_SHARE_OF_SHORT, _GPSIMD_SHARE_OF_TINY = 0.3, 0.42, 0.3


def forward_keeps_float32(plan: RowPlan, kind: Kind) -> bool:
    """Return whether the first pass keeps x - m or exp(x - m) of whole rows in float32 for the second pass."""
    return (
        plan.is_whole
        and plan.kept_pieces == 0
        and (plan.is_tiny or (kind is Kind.SOFTMAX and plan.columns <= _KEPT_ROW))
    )


def forward_plan(
    row_size: int,
    kind: Kind,
    x_dtype: nl.DType,
    y_dtype: nl.DType,
    chunk_size: int | None,
    least_parts: int | None = None,
) -> RowPlan:
    """Return the plan by which the forward divides rows into partitions, pieces and batches.

    Args:
        row_size: C, the number of elements of a row.
        kind: softmax or log-softmax.
        x_dtype, y_dtype: the types of the input and of the result.
        chunk_size: the kernel's argument: the maximum number of elements of a piece; None for no request.
        least_parts: the kernel's argument ``partitions_per_row``: the minimum number of partitions of a row.
    """
    of_x, of_y = element_bytes(x_dtype), element_bytes(y_dtype)
    scratch = _HALVES * of_x // 2 + (0 if x_dtype == y_dtype else RING * of_y)  # halves; results
    again = 2 if kind is Kind.LOG_SOFTMAX else 2 * FLOAT32_BYTES  # exponentials
    streams = Streams(of_x, scratch + again, max(of_x, of_y))
    has_many_logs = kind is Kind.LOG_SOFTMAX and row_size <= SHORT_ROW
    most_pieces = _PIECES_OF_LOGS if has_many_logs else MOST_PIECES
    function = f"{kind.value}_forward"
    plan = row_plan(function, row_size, streams, chunk_size, most_pieces, least_parts=least_parts)
    if kind is Kind.SOFTMAX and x_dtype != nl.float32 and (row_size > _KEPT_ROW or plan.parts > 1):
        return kept_plan(row_size, Streams(of_x, scratch, max(of_x, of_y)), chunk_size, least_parts) or plan
    if forward_keeps_float32(plan, kind) and x_dtype != nl.float32:
        kept = Streams(of_x + FLOAT32_BYTES, scratch + FLOAT32_BYTES, FLOAT32_BYTES)
        if kind is Kind.SOFTMAX and plan.is_short and not plan.is_tiny:
            return row_plan(function, row_size, kept, chunk_size, 1, _KEPT_PIECE_BYTES)
        return row_plan(function, row_size, kept, chunk_size, most_pieces)
    return plan


def _with_row_scalar(
    dst_sbuf: nl.NkiTensor, data_sbuf: nl.NkiTensor, scalars_sbuf: nl.NkiTensor, op: Operator, share: float
) -> None:
    """Compute ``data <op> scalar`` with one scalar per row, for many rows in an instruction.

    Vector reads the scalars from a copy in PSUM, because an instruction with two operands in SBUF takes longer.

    Args:
        dst_sbuf: the destination, of the shape of the data.
        data_sbuf: the data, [partitions, rows, columns].
        scalars_sbuf: the scalar of each row, float32 [partitions, rows].
        op: the operator.
        share: the share of the rows, from 0 to 1, that GpSimd processes; Vector processes the others.
    """
    partitions, rows, columns = data_sbuf.shape
    split = int(rows * share)
    if split > 0:
        nisa.tensor_tensor(
            dst=dst_sbuf[:, 0:split],
            data1=data_sbuf[:, 0:split],
            data2=scalars_sbuf[:, 0:split].expand_dim(2).broadcast(2, columns),
            op=op,
            engine=nisa.engine.gpsimd,
        )
    scalars_psum = nl.ndarray((partitions, rows - split), dtype=nl.float32, buffer=nl.psum)
    nisa.tensor_copy(dst=scalars_psum, src=scalars_sbuf[:, split:])
    broadcast_psum = scalars_psum.expand_dim(2).broadcast(2, columns)
    nisa.tensor_tensor(dst=dst_sbuf[:, split:], data1=data_sbuf[:, split:], data2=broadcast_psum, op=op)


@dataclass
class _Forward:
    """The stages (:class:`.row_schedule.Stages`) of a core's forward loop, and its tiles. "In flight" means started and
    not finished.

    Attributes:
        matrices: pairs of input x and result y in HBM.
        kind: softmax or log-softmax.
        plan: the plan of the rows.
        batches: the batches of the core.
        x_buffers_sbuf: tiles for x, one per batch on chip; results overwrite x if the types are equal.
        kept_buffers_sbuf: tiles, one per batch on chip, for the float32 values of :func:`forward_keeps_float32`; the
            tiles of x if x is float32; empty if no such values are kept.
        kept: tiles for kept exponentials of pieces, exp(x - m_k), float32.
        results: tiles for results of pieces that cannot overwrite x or kept values, because the types differ.
        junk: scratch tiles: an instruction that sums exponentials also writes the exponentials, which nothing reads.
        halves: tiles for the maxima of pairs of elements (:func:`.halved`).
        exponentials: tiles for exponentials that the second pass computes again.
        ceiling_sbuf: the largest finite float32 number, [128, 1].
        statistics: the statistics of the batches in flight, by the index of the batch.
        kept_sbuf: the tile of ``kept`` of each piece in flight, by the index of the batch and the piece.
        halved_sbuf: the tile of ``halves`` of each piece whose maxima are not computed yet, likewise.
        results_sbuf: the results of each piece that are not stored yet, likewise.
    """

    matrices: list[Matrices]
    kind: Kind
    plan: RowPlan
    batches: list[RowBatch]
    x_buffers_sbuf: list[nl.NkiTensor]
    kept_buffers_sbuf: list[nl.NkiTensor]
    kept: Ring
    results: Ring
    junk: Ring
    halves: Ring
    exponentials: Ring
    ceiling_sbuf: nl.NkiTensor
    statistics: dict[int, RowStatistics] = field(default_factory=dict)
    kept_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)
    halved_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)
    results_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, matrices: list[Matrices], kind: Kind, plan: RowPlan, batches: list[RowBatch]) -> _Forward:
        x_hbm, y_hbm = matrices[0].tensors
        count = min(plan.batches_on_chip, len(batches))
        size = max(batch.rows_each for batch in batches) * plan.columns
        of_piece = max(piece.size for batch in batches for piece in batch.pieces)
        keeps = forward_keeps_float32(plan, kind)
        x_buffers_sbuf = ring_of(count, size, x_hbm.dtype)
        kept_buffers_sbuf = []
        if keeps:
            is_float32 = x_hbm.dtype == nl.float32
            kept_buffers_sbuf = x_buffers_sbuf if is_float32 else ring_of(count, size, nl.float32)
        is_stored_from_chip = y_hbm.dtype == x_hbm.dtype or (keeps and y_hbm.dtype == nl.float32)
        junk_dtype = nl.float32 if plan.is_tiny else nl.bfloat16
        keeps_pieces = plan.kept_pieces > 0
        has_junk = kind is Kind.LOG_SOFTMAX or not (keeps or keeps_pieces)
        ceiling_sbuf = nl.ndarray((PARTITIONS, 1), dtype=nl.float32, buffer=nl.sbuf)
        nisa.memset(dst=ceiling_sbuf, value=FLOAT32_HIGHEST)
        load_table(nl.exp)  # while the first rows are loaded, and not after that
        second_pass = not (keeps or keeps_pieces) and kind is Kind.SOFTMAX
        return cls(
            matrices,
            kind,
            plan,
            batches,
            x_buffers_sbuf,
            kept_buffers_sbuf,
            kept=Ring(ring_of(plan.kept_pieces, of_piece if keeps_pieces else 0, nl.float32)),
            results=Ring(ring_of(0 if is_stored_from_chip else RING, of_piece, y_hbm.dtype)),
            junk=Ring(ring_of(1 if has_junk else 0, of_piece, junk_dtype)),
            halves=Ring(ring_of(_HALVES, of_piece // 2 + PARTITIONS, x_hbm.dtype)),
            exponentials=Ring(ring_of(2 if second_pass else 0, of_piece, nl.float32)),
            ceiling_sbuf=ceiling_sbuf,
        )

    @property
    def batches_on_chip(self) -> int:
        return self.plan.batches_on_chip

    @property
    def combining_stages(self) -> int:
        return num_stages(self.plan)

    @property
    def most_taken(self) -> int | None:
        return self.plan.kept_pieces or None

    def load(self, number: int, piece: RowPiece) -> None:
        x_hbm = self.matrices[self.batches[number].matrix].tensors[0]
        self.batches[number].load(x_hbm, piece, self._x(number, piece), float("-inf"))

    @property
    def loads_again(self) -> bool:
        return False

    def load_again(self, number: int, piece: RowPiece) -> None:
        """Do nothing: the second pass of the forward loads nothing."""

    def prepare(self, number: int, piece: RowPiece) -> None:
        rows = self._halved_rows(piece)
        if rows > 0:
            self.halved_sbuf[number, piece] = halved(self._x(number, piece)[:, 0:rows], self.halves)

    def open(self, number: int, piece: RowPiece) -> None:
        if number not in self.statistics:
            self.statistics[number] = RowStatistics.make(self.kind, self.batches[number])
        neg_max_sbuf = self.statistics[number].neg_max_of(piece)
        x_sbuf = self._x(number, piece)
        negated_maximum(neg_max_sbuf, x_sbuf, self.halved_sbuf.pop((number, piece), None))
        ceiling_sbuf = self.ceiling_sbuf[0 : x_sbuf.shape[0]].expand_dim(1).broadcast(1, piece.rows)
        nisa.tensor_tensor(
            dst=neg_max_sbuf, data1=neg_max_sbuf, data2=ceiling_sbuf, op=nl.minimum, engine=nisa.engine.gpsimd
        )

    def take(self, number: int, piece: RowPiece) -> None:
        statistics = self.statistics[number]
        neg_max_sbuf, sums_sbuf = statistics.neg_max_of(piece), statistics.sums_of(piece)
        x_sbuf = self._x(number, piece)
        kept_sbuf = self._kept(number, piece)
        if self.plan.is_tiny and kept_sbuf is not None:
            self._take_tiny(number, piece, x_sbuf, kept_sbuf)
            return
        dst_sbuf = kept_sbuf
        if self.plan.kept_pieces > 0:
            dst_sbuf = self.kept_sbuf[number, piece] = self.kept.next_shaped(x_sbuf.shape)
        elif dst_sbuf is None:
            dst_sbuf = self.junk.next_shaped(x_sbuf.shape)
        for row in range(piece.rows):
            nisa.activation(
                dst=dst_sbuf[:, row],
                op=nl.exp,
                data=x_sbuf[:, row],
                bias=neg_max_sbuf[:, row],
                reduce_op=nl.add,
                reduce_res=sums_sbuf[:, row],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def _take_tiny(self, number: int, piece: RowPiece, x_sbuf: nl.NkiTensor, kept_sbuf: nl.NkiTensor) -> None:
        statistics = self.statistics[number]
        neg_max_sbuf = statistics.neg_max_of(piece)[:, :, 0]
        _with_row_scalar(kept_sbuf, x_sbuf, neg_max_sbuf, nl.add, _GPSIMD_SHARE_OF_TINY)
        is_log = self.kind is Kind.LOG_SOFTMAX
        exponentials_sbuf = self.junk.next_shaped(x_sbuf.shape) if is_log else kept_sbuf
        nisa.activation(dst=exponentials_sbuf, op=nl.exp, data=kept_sbuf)
        nisa.tensor_reduce(dst=statistics.sums_of(piece), op=nl.add, data=exponentials_sbuf, axis=2, keepdims=True)

    def combine(self, number: int, stage: int) -> None:
        self.statistics[number].combine(stage)

    def finish(self, number: int, piece: RowPiece) -> None:
        statistics = self.statistics[number]
        x_sbuf, kept_sbuf = self._x(number, piece), self._kept(number, piece)
        result_sbuf = self._result(number, piece, x_sbuf, kept_sbuf)
        neg_max_sbuf = statistics.row_neg_max_sbuf[:, piece.first : piece.end]
        divisor_sbuf = statistics.divisor_sbuf[:, piece.first : piece.end]
        if self.plan.kept_pieces > 0:
            scales_sbuf = divisor_sbuf if self.plan.is_whole else statistics.neg_max_of(piece)[:, 0]
            self._scale(result_sbuf, self.kept_sbuf.pop((number, piece)), scales_sbuf)
        elif kept_sbuf is not None and (self.plan.is_short or self.kind is Kind.LOG_SOFTMAX):
            self._finish_rows_at_once(result_sbuf, kept_sbuf, divisor_sbuf)
        elif kept_sbuf is not None:
            self._multiply(result_sbuf, kept_sbuf, divisor_sbuf)
        elif self.kind is Kind.LOG_SOFTMAX:
            for row in range(piece.rows):
                nisa.tensor_scalar(
                    dst=result_sbuf[:, row],
                    data=x_sbuf[:, row],
                    op0=nl.add,
                    operand0=neg_max_sbuf[:, row : row + 1],
                    op1=nl.subtract,
                    operand1=divisor_sbuf[:, row : row + 1],
                )
        else:
            self._exponentials_again(result_sbuf, x_sbuf, neg_max_sbuf, divisor_sbuf)
        self.results_sbuf[number, piece] = result_sbuf
        if piece == self.batches[number].pieces[-1]:
            del self.statistics[number]

    def _finish_rows_at_once(
        self, result_sbuf: nl.NkiTensor, kept_sbuf: nl.NkiTensor, divisor_sbuf: nl.NkiTensor
    ) -> None:
        op = nl.subtract if self.kind is Kind.LOG_SOFTMAX else nl.multiply
        share = _GPSIMD_SHARE_OF_TINY if self.plan.is_tiny else _GPSIMD_SHARE_OF_SHORT
        _with_row_scalar(result_sbuf, kept_sbuf, divisor_sbuf, op, share)

    def _multiply(self, result_sbuf: nl.NkiTensor, kept_sbuf: nl.NkiTensor, divisor_sbuf: nl.NkiTensor) -> None:
        for row in range(kept_sbuf.shape[1]):
            split = int(kept_sbuf.shape[2] * _SCALAR_SHARE)
            scale_sbuf = divisor_sbuf[:, row : row + 1]
            nisa.activation(
                dst=result_sbuf[:, row, 0:split], op=nl.copy, data=kept_sbuf[:, row, 0:split], scale=scale_sbuf
            )
            nisa.tensor_scalar(
                dst=result_sbuf[:, row, split:], data=kept_sbuf[:, row, split:], op0=nl.multiply, operand0=scale_sbuf
            )

    def _scale(self, result_sbuf: nl.NkiTensor, kept_sbuf: nl.NkiTensor, scale_sbuf: nl.NkiTensor) -> None:
        columns = kept_sbuf.shape[2]
        of_gpsimd, of_scalar = _KEPT_SHARES
        first, second = int(columns * of_gpsimd), int(columns * (of_gpsimd + of_scalar))
        if first > 0:
            nisa.tensor_tensor(
                dst=result_sbuf[:, 0, 0:first],
                data1=kept_sbuf[:, 0, 0:first],
                data2=scale_sbuf.broadcast(1, first),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )
        if second > first:
            nisa.activation(
                dst=result_sbuf[:, 0, first:second], op=nl.copy, data=kept_sbuf[:, 0, first:second], scale=scale_sbuf
            )
        nisa.tensor_scalar(
            dst=result_sbuf[:, 0, second:], data=kept_sbuf[:, 0, second:], op0=nl.multiply, operand0=scale_sbuf
        )

    def _exponentials_again(
        self,
        result_sbuf: nl.NkiTensor,
        x_sbuf: nl.NkiTensor,
        neg_max_sbuf: nl.NkiTensor,
        divisor_sbuf: nl.NkiTensor,
    ) -> None:
        exponentials_sbuf = self.exponentials.next_shaped(x_sbuf.shape)
        for row in range(x_sbuf.shape[1]):
            of_row_sbuf = exponentials_sbuf[:, row]
            bias_sbuf = neg_max_sbuf[:, row : row + 1]
            nisa.activation(dst=of_row_sbuf, op=nl.exp, data=x_sbuf[:, row], bias=bias_sbuf)
            scale_sbuf = divisor_sbuf[:, row : row + 1]
            split = max(1, int(x_sbuf.shape[2] * _GPSIMD_SHARE))
            nisa.tensor_tensor(
                dst=result_sbuf[:, row, 0:split],
                data1=of_row_sbuf[:, 0:split],
                data2=scale_sbuf.broadcast(1, split),
                op=nl.multiply,
                engine=nisa.engine.gpsimd,
            )
            if split < x_sbuf.shape[2]:
                nisa.tensor_scalar(
                    dst=result_sbuf[:, row, split:], data=of_row_sbuf[:, split:], op0=nl.multiply, operand0=scale_sbuf
                )

    def store(self, number: int, piece: RowPiece) -> None:
        y_hbm = self.matrices[self.batches[number].matrix].tensors[1]
        self.batches[number].store(y_hbm, piece, self.results_sbuf.pop((number, piece)))

    def _halved_rows(self, piece: RowPiece) -> int:
        if self.plan.is_tiny:
            return 0
        if self.plan.is_short or self.kind is Kind.SOFTMAX or self.plan.parts > 1:
            return piece.rows
        return piece.rows // 2 if self.plan.pieces_per_row == 1 else piece.column % 2

    def _x(self, number: int, piece: RowPiece) -> nl.NkiTensor:
        return self._of_piece(self.x_buffers_sbuf, number, piece)

    def _kept(self, number: int, piece: RowPiece) -> nl.NkiTensor | None:
        return self._of_piece(self.kept_buffers_sbuf, number, piece) if self.kept_buffers_sbuf else None

    def _of_piece(self, buffers_sbuf: list[nl.NkiTensor], number: int, piece: RowPiece) -> nl.NkiTensor:
        tile_sbuf = self.batches[number].tile_of(buffers_sbuf[number % self.plan.batches_on_chip])
        return tile_sbuf[:, piece.first : piece.end, piece.start : piece.stop]

    def _result(
        self, number: int, piece: RowPiece, x_sbuf: nl.NkiTensor, kept_sbuf: nl.NkiTensor | None
    ) -> nl.NkiTensor:
        dtype = self.matrices[self.batches[number].matrix].tensors[1].dtype
        if x_sbuf.dtype == dtype:
            return x_sbuf
        if kept_sbuf is not None and kept_sbuf.dtype == dtype:
            return kept_sbuf
        return self.results.next_shaped(x_sbuf.shape)


def forward_of_rows(matrices: list[Matrices], kind: Kind, chunk_size: int | None, least_parts: int | None) -> None:
    """Compute softmax or log-softmax of the rows that this core processes.

    Args:
        matrices: pairs of x and y, [O, C, 1], of one shape.
        kind: softmax or log-softmax.
        chunk_size: the kernel's argument.
        least_parts: the kernel's argument ``partitions_per_row``.
    """
    matrices = [pair.squeezed() for pair in matrices]
    x_hbm, y_hbm = matrices[0].tensors
    plan = forward_plan(x_hbm.shape[1], kind, x_hbm.dtype, y_hbm.dtype, chunk_size, least_parts)
    batches = batches_of_core(plan, len(matrices), x_hbm.shape[0], nl.num_programs(), nl.program_id())
    if batches:
        run(_Forward.make(matrices, kind, plan, batches))
