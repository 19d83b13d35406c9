# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The gradient of softmax along the last axis (:func:`backward_of_rows`), from the saved output y and its gradient dy.

dx is the result, and s a sum over a row. dy stays in SBUF from the first pass, which computes s, to the second, which
computes dx:

- log-softmax: dx = dy - exp(y) * s with s = sum(dy); y is loaded for the second pass only;
- softmax: dx = (dy - s) * y with s = sum(dy * y); y stays in SBUF too.

A *batch* is a set of rows that are in SBUF together, a *piece* the part of a batch that one instruction handles, and
the *parts* of a row are its elements on each of its partitions (:mod:`nkilib.core.rows.row_plan`).
:func:`backward_plan` divides the rows, :class:`BatchSums` computes s, and :mod:`.row_schedule` orders the instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nkilib.core.hardware import FLOAT32_BYTES
from nkilib.core.rows.row_plan import (
    SHORT_ROW,
    RowBatch,
    RowPiece,
    RowPlan,
    Streams,
    batches_of_core,
    off_line,
    on_line,
    row_plan,
)
from nkilib.core.rows.sbuf import Ring, element_bytes, ring_of
from nkilib.experimental.softmax.row_schedule import LOADS_AGAIN_AHEAD, run
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind, Matrices
from nkilib.nki import nisa, nl

# Tiles of a piece's results, if these have a type of their own.
_RESULTS = 3
# Tiles of a piece's products or exponentials.
_PRODUCTS = 2
# Tiles of y that are loaded for the second pass.
_OUTPUTS = LOADS_AGAIN_AHEAD + 1
_JUNK_BYTES = 2
# The longest wide row of softmax, and the bytes of its pieces, if dy and y are float32: too few larger pieces fit on
# chip for loads that wait behind stores in one queue.
_WIDE_ROW, _WIDE_PIECE_BYTES = 2048, 6144


def _has_results(kind: Kind, dtypes: BackwardTypes) -> bool:
    """Return whether dx needs tiles of its own: true if no tile that dx may overwrite has the type of dx."""
    return dtypes.grad_x != dtypes.grad and (kind is Kind.LOG_SOFTMAX or dtypes.grad_x != dtypes.output)


def backward_streams(kind: Kind, dtypes: BackwardTypes) -> Streams:
    """Return the bytes of SBUF that the backward needs for each element of a row and of a piece."""
    of_grad, of_output, of_grad_x = (element_bytes(dtype) for dtype in dtypes)
    scratch = _JUNK_BYTES + _PRODUCTS * FLOAT32_BYTES
    scratch += _RESULTS * of_grad_x if _has_results(kind, dtypes) else 0
    if kind is Kind.SOFTMAX:  # its products are float32: with larger pieces fewer batches would fit
        return Streams(of_grad + of_output, scratch, FLOAT32_BYTES)
    widest = max(of_grad, of_output, of_grad_x)
    scratch += _PRODUCTS * FLOAT32_BYTES // 2  # halves of short rows
    return Streams(of_grad, scratch + _OUTPUTS * of_output, widest)


def backward_plan(
    row_size: int, kind: Kind, dtypes: BackwardTypes, chunk_size: int | None, least_parts: int | None = None
) -> RowPlan:
    """Return the plan by which the backward divides rows of ``row_size`` elements.

    Args:
        row_size: C, the number of elements of a row.
        kind: softmax or log-softmax.
        dtypes: the types of dy, y and dx.
        chunk_size: the kernel's argument: the maximum number of elements of a piece; None for no request.
        least_parts: the kernel's argument ``partitions_per_row``: the minimum number of partitions of a row.
    """
    streams = backward_streams(kind, dtypes)
    is_wide = kind is Kind.SOFTMAX and streams.resident == 2 * FLOAT32_BYTES and SHORT_ROW < row_size <= _WIDE_ROW
    piece_bytes = _WIDE_PIECE_BYTES if is_wide else None
    function = f"{kind.value}_backward"
    return row_plan(function, row_size, streams, chunk_size, piece_bytes=piece_bytes, least_parts=least_parts)


@dataclass
class BatchSums:
    """The sums s (see the head of the module) of the rows of a batch, float32.

    Attributes:
        batch: the batch of rows.
        sums_sbuf: [partitions, rows per partition, pieces of a row]: the sum of each piece of a row.
        row_sum_sbuf: [partitions, rows per partition]: s of each row, or -s for log-softmax. Until :meth:`bring_back`,
            for rows on several partitions, the sum of the row's part on each partition instead.
        negates: whether ``row_sum_sbuf`` holds -s.
        line_psum: [1, partitions]: the transpose of the sums of parts; None for rows on one partition.
        back_psum: [partitions, 1]: the sum of the row that each partition has a part of; None for rows on one
            partition.
    """

    batch: RowBatch
    sums_sbuf: nl.NkiTensor
    row_sum_sbuf: nl.NkiTensor
    negates: bool
    line_psum: nl.NkiTensor | None = None
    back_psum: nl.NkiTensor | None = None

    @classmethod
    def make(cls, kind: Kind, batch: RowBatch) -> BatchSums:
        """Allocate the tiles for the sums of a batch; nothing is computed yet."""
        rows = (batch.partitions, batch.rows_each)
        sums_sbuf = nl.ndarray((*rows, batch.plan.pieces_per_row), dtype=nl.float32, buffer=nl.sbuf)
        row_sum_sbuf = nl.ndarray(rows, dtype=nl.float32, buffer=nl.sbuf)
        return cls(batch, sums_sbuf, row_sum_sbuf, kind is Kind.LOG_SOFTMAX)

    def of_piece(self, piece: RowPiece) -> nl.NkiTensor:
        """Return the view of :attr:`sums_sbuf` for a piece's sums, [partitions, rows, 1]."""
        return self.sums_sbuf[:, piece.first : piece.end, piece.column : piece.column + 1]

    def sum_pieces(self) -> None:
        """Add up the sums of pieces on each partition, in :attr:`row_sum_sbuf`.

        For rows on several partitions, also transpose the results to one partition, in :attr:`line_psum`.
        """
        nisa.tensor_reduce(dst=self.row_sum_sbuf, op=nl.add, data=self.sums_sbuf, axis=2, negate=self.negates)
        if self.batch.plan.parts > 1:
            self.line_psum = on_line(self.row_sum_sbuf)

    def sum_parts(self) -> None:
        """Add up the sums of each row's parts in :attr:`back_psum`, for rows on several partitions."""
        if self.line_psum is None:
            return
        lines, parts = self.batch.lines, self.batch.plan.parts
        line_sbuf = nl.ndarray((1, lines), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=line_sbuf, op=nl.add, data=self.line_psum.reshape((1, lines, parts)), axis=2)
        self.back_psum = off_line(line_sbuf, parts)

    def bring_back(self) -> None:
        """Copy :attr:`back_psum` to :attr:`row_sum_sbuf`, for rows on several partitions."""
        if self.back_psum is not None:
            nisa.tensor_copy(dst=self.row_sum_sbuf, src=self.back_psum)


def _stages(plan: RowPlan) -> list[Callable[[BatchSums], None]]:
    if plan.parts == 1:
        return [BatchSums.sum_pieces]
    return [BatchSums.sum_pieces, BatchSums.sum_parts, BatchSums.bring_back]


@dataclass
class _Backward:
    """The stages (:class:`.row_schedule.Stages`) of a core's backward loop, and its tiles.

    A batch number is an index of ``batches``. A batch or piece is "in flight" if it is started and not finished.

    Attributes:
        matrices: triples of dy, y and dx.
        kind: softmax or log-softmax.
        plan: the division of rows into batches and pieces.
        batches: the batches of the core.
        grad_buffers_sbuf: tiles for dy of a batch; dx overwrites dy if their types are equal.
        output_buffers_sbuf: tiles for y of a batch, for softmax; empty for log-softmax.
        outputs: tiles for y of a piece, for log-softmax.
        products: float32 tiles of a piece: dy * y for softmax, exp(y) for log-softmax.
        halves: float32 tiles of half a piece, to which pairs of elements of short rows are summed, for log-softmax.
        junk: a tile for the elementwise output of instructions that are run only for their sums; nothing reads it.
        results: tiles for dx of a piece, if dx overwrites neither dy nor y.
        sums: the sums s by batch number, of batches in flight.
        products_sbuf, outputs_sbuf, results_sbuf: the tiles in use, by batch number and piece, of pieces in flight.
    """

    matrices: list[Matrices]
    kind: Kind
    plan: RowPlan
    batches: list[RowBatch]
    grad_buffers_sbuf: list[nl.NkiTensor]
    output_buffers_sbuf: list[nl.NkiTensor]
    outputs: Ring
    products: Ring
    halves: Ring
    junk: Ring
    results: Ring
    sums: dict[int, BatchSums] = field(default_factory=dict)
    products_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)
    outputs_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)
    results_sbuf: dict[tuple[int, RowPiece], nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, matrices: list[Matrices], kind: Kind, plan: RowPlan, batches: list[RowBatch]) -> _Backward:
        grad_hbm, output_hbm, grad_x_hbm = matrices[0].tensors
        count = min(plan.batches_on_chip, len(batches))
        size = max(batch.rows_each for batch in batches) * plan.columns
        of_piece = max(piece.size for batch in batches for piece in batch.pieces)
        is_log = kind is Kind.LOG_SOFTMAX
        has_results = _has_results(kind, BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype))
        return cls(
            matrices,
            kind,
            plan,
            batches,
            ring_of(count, size, grad_hbm.dtype),
            [] if is_log else ring_of(count, size, output_hbm.dtype),
            outputs=Ring(ring_of(_OUTPUTS if is_log else 0, of_piece, output_hbm.dtype)),
            products=Ring(ring_of(_PRODUCTS, of_piece, nl.float32)),
            halves=Ring(ring_of(_PRODUCTS if is_log and plan.is_short else 0, (of_piece + 1) // 2, nl.float32)),
            junk=Ring(ring_of(1, of_piece, nl.bfloat16)),
            results=Ring(ring_of(_RESULTS if has_results else 0, of_piece, grad_x_hbm.dtype)),
        )

    @property
    def batches_on_chip(self) -> int:
        return self.plan.batches_on_chip

    @property
    def combining_stages(self) -> int:
        return len(_stages(self.plan))

    @property
    def most_taken(self) -> int | None:
        return None

    @property
    def loads_again(self) -> bool:
        """Whether y is loaded for the second pass only: true for log-softmax, whose first pass does not need y."""
        return self.kind is Kind.LOG_SOFTMAX

    def load(self, number: int, piece: RowPiece) -> None:
        batch = self.batches[number]
        grad_hbm, output_hbm, _ = self.matrices[batch.matrix].tensors
        batch.load(grad_hbm, piece, self._grad(number, piece), 0.0)
        if self.kind is Kind.SOFTMAX:
            batch.load(output_hbm, piece, self._output(number, piece), 0.0)

    def load_again(self, number: int, piece: RowPiece) -> None:
        batch = self.batches[number]
        output_sbuf = self.outputs.next_shaped((batch.partitions, piece.rows, piece.columns))
        batch.load(self.matrices[batch.matrix].tensors[1], piece, output_sbuf, 0.0)
        self.outputs_sbuf[number, piece] = output_sbuf

    def prepare(self, number: int, piece: RowPiece) -> None:
        """Do nothing: the statistics of the backward need no preparation."""

    def open(self, number: int, piece: RowPiece) -> None:
        if number not in self.sums:
            self.sums[number] = BatchSums.make(self.kind, self.batches[number])
        grad_sbuf = self._grad(number, piece)
        if self.kind is Kind.LOG_SOFTMAX:
            if self._sums_partly(piece):
                self.products_sbuf[number, piece] = self._partial_sums(grad_sbuf)
            return
        products_sbuf = self.products.next_shaped(grad_sbuf.shape)
        nisa.tensor_tensor(
            dst=products_sbuf,
            data1=grad_sbuf,
            data2=self._output(number, piece),
            op=nl.multiply,
            engine=nisa.engine.gpsimd,
        )
        self.products_sbuf[number, piece] = products_sbuf

    def _sums_partly(self, piece: RowPiece) -> bool:
        return self.plan.is_short and piece.columns % 2 == 0

    def _partial_sums(self, grad_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        partitions, rows, columns = grad_sbuf.shape
        half = columns // 2
        halves_sbuf = self.halves.next_shaped((partitions, rows, half))
        nisa.tensor_tensor(
            dst=halves_sbuf,
            data1=grad_sbuf[:, :, 0:half],
            data2=grad_sbuf[:, :, half:columns],
            op=nl.add,
            engine=nisa.engine.gpsimd,
        )
        if half % 2 == 1:
            return halves_sbuf
        quarters_sbuf = halves_sbuf[:, :, 0 : half // 2]
        nisa.tensor_tensor(
            dst=quarters_sbuf,
            data1=quarters_sbuf,
            data2=halves_sbuf[:, :, half // 2 : half],
            op=nl.add,
            engine=nisa.engine.gpsimd,
        )
        return quarters_sbuf

    def take(self, number: int, piece: RowPiece) -> None:
        sums_sbuf = self.sums[number].of_piece(piece)
        summed_sbuf = self.products_sbuf.pop((number, piece), None)
        if summed_sbuf is None:
            summed_sbuf = self._grad(number, piece)
        if self.plan.is_short and (self.loads_again or self.plan.is_tiny):
            nisa.tensor_reduce(dst=sums_sbuf, op=nl.add, data=summed_sbuf, axis=2, keepdims=True)
            return
        junk_sbuf = self.junk.next_shaped(summed_sbuf.shape)
        for row in range(piece.rows):
            nisa.activation(
                dst=junk_sbuf[:, row],
                op=nl.copy,
                data=summed_sbuf[:, row],
                reduce_op=nl.add,
                reduce_res=sums_sbuf[:, row],
                reduce_cmd=nisa.reduce_cmd.reset_reduce,
            )

    def combine(self, number: int, stage: int) -> None:
        _stages(self.plan)[stage](self.sums[number])

    def finish(self, number: int, piece: RowPiece) -> None:
        grad_sbuf, output_sbuf = self._grad(number, piece), self._output(number, piece)
        result_sbuf = self._result(number, grad_sbuf, output_sbuf)
        sum_sbuf = self.sums[number].row_sum_sbuf[:, piece.first : piece.end]
        if self.kind is Kind.LOG_SOFTMAX:
            first_sbuf, second_sbuf, op0, op1 = output_sbuf, grad_sbuf, nl.multiply, nl.add
            first_sbuf = self.products.next_shaped(output_sbuf.shape)
            nisa.activation(dst=first_sbuf, op=nl.exp, data=output_sbuf)
        else:
            first_sbuf, second_sbuf, op0, op1 = grad_sbuf, output_sbuf, nl.subtract, nl.multiply
        for row in range(piece.rows):
            nisa.scalar_tensor_tensor(
                dst=result_sbuf[:, row],
                data=first_sbuf[:, row],
                op0=op0,
                operand0=sum_sbuf[:, row : row + 1],
                op1=op1,
                operand1=second_sbuf[:, row],
            )
        self.results_sbuf[number, piece] = result_sbuf
        self.outputs_sbuf.pop((number, piece), None)
        if piece == self.batches[number].pieces[-1]:
            del self.sums[number]

    def store(self, number: int, piece: RowPiece) -> None:
        grad_x_hbm = self.matrices[self.batches[number].matrix].tensors[2]
        self.batches[number].store(grad_x_hbm, piece, self.results_sbuf.pop((number, piece)))

    def _grad(self, number: int, piece: RowPiece) -> nl.NkiTensor:
        return self._of_piece(self.grad_buffers_sbuf, number, piece)

    def _output(self, number: int, piece: RowPiece) -> nl.NkiTensor:
        if self.kind is Kind.LOG_SOFTMAX:
            return self.outputs_sbuf[number, piece]
        return self._of_piece(self.output_buffers_sbuf, number, piece)

    def _of_piece(self, buffers_sbuf: list[nl.NkiTensor], number: int, piece: RowPiece) -> nl.NkiTensor:
        tile_sbuf = self.batches[number].tile_of(buffers_sbuf[number % self.plan.batches_on_chip])
        return tile_sbuf[:, piece.first : piece.end, piece.start : piece.stop]

    def _result(self, number: int, grad_sbuf: nl.NkiTensor, output_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        dtype = self.matrices[self.batches[number].matrix].tensors[2].dtype
        if grad_sbuf.dtype == dtype:
            return grad_sbuf
        if output_sbuf.dtype == dtype and self.kind is Kind.SOFTMAX:
            return output_sbuf
        return self.results.next_shaped(grad_sbuf.shape)


def backward_of_rows(matrices: list[Matrices], kind: Kind, chunk_size: int | None, least_parts: int | None) -> None:
    """Compute the gradients dx of the rows that this core processes.

    Args:
        matrices: triples of dy, y and dx, [O, C, 1], of one shape; dx may be dy.
        kind: softmax or log-softmax.
        chunk_size: the kernel's argument.
        least_parts: the kernel's argument ``partitions_per_row``.
    """
    matrices = [triple.squeezed() for triple in matrices]
    grad_hbm, output_hbm, grad_x_hbm = matrices[0].tensors
    dtypes = BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype)
    plan = backward_plan(grad_hbm.shape[1], kind, dtypes, chunk_size, least_parts)
    batches = batches_of_core(plan, len(matrices), grad_hbm.shape[0], nl.num_programs(), nl.program_id())
    if batches:
        run(_Backward.make(matrices, kind, plan, batches))
