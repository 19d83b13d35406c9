# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax forward and backward along a short axis that is not the last one, where a partition holds whole columns.

A tensor is viewed as [O, C, I], with C elements in a column. A *window* is the set of columns that are loaded together,
and a *piece* is the part of a window that is computed together (:mod:`.short_plan`); a partition holds columns of
``outer_each`` outer indices and ``width`` inner indices. Nothing is transposed, and each instruction processes all
elements of a piece.

The loop (:class:`ShortLoop`) runs in steps, and starts a piece in each step. A *stage* is one operation on a piece; it
is issued a fixed number of steps after the piece started. A stage that needs the result of another engine is issued a
step later than this result, so that no engine waits. :func:`forward_of_short_columns` and
:func:`backward_of_short_columns` run the loop with their stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from nkilib.core.hardware import FLOAT32_BYTES, div_ceil
from nkilib.core.rows.sbuf import Ring, dtype_bytes, ring_of
from nkilib.experimental.softmax.columns.plan import Sizes
from nkilib.experimental.softmax.columns.short_plan import ShortPiece, ShortPlan, ShortWindow, plan_short
from nkilib.experimental.softmax.tensors import BackwardTypes, Kind
from nkilib.nki import nisa, nl

if TYPE_CHECKING:
    from nkilib.nki import Operator


# Tiles for the intermediate values of pieces: one more than the steps between the first and the last use.
_HALVES, _MAXIMA, _DISTANCES, _EXPONENTIALS, _FORWARD_SUMS = 2, 2, 5, 2, 3
_TERMS, _PRODUCTS, _BACKWARD_SUMS = 3, 3, 4
# The step of a stage, counted from the step in which the piece starts, and its function.
Stage = tuple[int, Callable[[ShortPiece], None]]


@dataclass
class WindowTiles:
    """The windows of a tensor, and the tiles that hold them in SBUF.

    Attributes:
        tensor_hbm: the tensor, [O, C, I].
        tiles_sbuf: the tiles, [128, elements], which windows use round-robin.
        windows: the windows of the core.
    """

    tensor_hbm: nl.NkiTensor
    tiles_sbuf: list[nl.NkiTensor]
    windows: list[ShortWindow]

    @classmethod
    def make(cls, tensor_hbm: nl.NkiTensor, plan: ShortPlan) -> WindowTiles:
        """Allocate the tiles for the windows that ``plan`` gives a core."""
        return cls(tensor_hbm, ring_of(plan.buffers, plan.window, tensor_hbm.dtype), plan.windows)

    def of(self, number: int) -> nl.NkiTensor:
        """Return window number ``number`` as a view of its tile, [partitions, outer_each, C, width]."""
        shape = self.windows[number].shape(self.tensor_hbm.shape[1])
        tile_sbuf = self.tiles_sbuf[number % len(self.tiles_sbuf)]
        return tile_sbuf[0 : shape[0], 0 : prod(shape[1:])].reshape(shape)

    def piece(self, piece: ShortPiece) -> nl.NkiTensor:
        """Return a piece as a view of its window's tile, [partitions, outer_each, C, width]."""
        return piece.of(self.of(piece.window))

    def load(self, number: int) -> None:
        """Issue the transfers that load window number ``number`` into its tile."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=window_sbuf[first : first + part_hbm.shape[0]], src=part_hbm)

    def store(self, number: int) -> None:
        """Issue the transfers that store window number ``number`` from its tile."""
        window_sbuf = self.of(number)
        for first, part_hbm in self.windows[number].runs(self.tensor_hbm):
            nisa.dma_copy(dst=part_hbm, src=window_sbuf[first : first + part_hbm.shape[0]])


@dataclass
class ShortLoop:
    """The loop of a core over the pieces of short columns.

    Attributes:
        plan: the plan of the core.
        inputs: the tiles of the tensors that are loaded.
        result: the tiles of the result, which may be the tiles of the first input.
        stages: the stages in the order in which a step issues them, each as (steps after the start of the piece,
            function that issues the stage for a piece).
        loaded: the number of windows whose loads have been issued.
        stored: the number of windows whose stores have been issued.
        under_way: at index i, the piece that started i steps ago; None if no piece started then.
    """

    plan: ShortPlan
    inputs: list[WindowTiles]
    result: WindowTiles
    stages: list[Stage]
    loaded: int = 0
    stored: int = 0
    under_way: list[ShortPiece | None] = field(default_factory=list)

    def run(self) -> None:
        """Run the loop: issue all loads, stages and stores of the core."""
        waiting = [piece for window in self.plan.windows for piece in window.pieces(self.plan.columns)]
        depth = 1 + max(step for step, _ in self.stages)
        self.under_way = [None] * depth
        while waiting or any(self.under_way):
            self._load()
            comes = bool(waiting) and waiting[0].window < self.loaded
            self.under_way = [waiting.pop(0) if comes else None, *self.under_way[:-1]]
            for step, do in self.stages:
                piece = self.under_way[step]
                if piece is not None:
                    do(piece)
            ended = self.under_way[-1]
            if ended is not None and ended.ends:
                self.result.store(ended.window)
                self.stored += 1

    def _load(self) -> None:
        while self.loaded < min(len(self.plan.windows), self.stored + self.plan.buffers):
            for tiles in self.inputs:
                tiles.load(self.loaded)
            self.loaded += 1


def result_tiles(result_hbm: nl.NkiTensor, plan: ShortPlan, overwritten: WindowTiles) -> WindowTiles:
    """Return the tiles for the result: those of the input ``overwritten`` if the types are equal, else new tiles."""
    if result_hbm.dtype == overwritten.tensor_hbm.dtype:
        return WindowTiles(result_hbm, overwritten.tiles_sbuf, plan.windows)
    return WindowTiles.make(result_hbm, plan)


def of_columns(values_sbuf: nl.NkiTensor, length: int) -> nl.NkiTensor:
    """Broadcast one value per column, [partitions, outer_each, 1, width], to each element of the column."""
    return values_sbuf.broadcast(2, length)


def on_vector(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """Compute ``data1 <op> data2`` on Vector, by ``scalar_tensor_tensor``, which is faster than ``tensor_tensor``."""
    nisa.scalar_tensor_tensor(dst=dst_sbuf, data=data1_sbuf, op0=nl.multiply, operand0=1.0, op1=op, operand1=data2_sbuf)


def on_gpsimd(dst_sbuf: nl.NkiTensor, data1_sbuf: nl.NkiTensor, op: Operator, data2_sbuf: nl.NkiTensor) -> None:
    """Compute ``data1 <op> data2`` on GpSimd, by ``tensor_tensor``."""
    nisa.tensor_tensor(dst=dst_sbuf, data1=data1_sbuf, data2=data2_sbuf, op=op, engine=nisa.engine.gpsimd)


def fold(data_sbuf: nl.NkiTensor, dst_sbuf: nl.NkiTensor, op: Operator, issue: Callable[..., None] = on_vector) -> None:
    """Compute ``element i <op> element (i + C // 2)`` of each column, for i from 0 to C // 2 - 1.

    If C is odd, the last element is then combined with result 0.

    Args:
        data_sbuf: the columns, [partitions, outer_each, C, width].
        dst_sbuf: the destination, [partitions, outer_each, C // 2, width]; it may be the first half of ``data_sbuf``.
        op: the operator.
        issue: :func:`on_vector` or :func:`on_gpsimd`.
    """
    length = data_sbuf.shape[2]
    half = length // 2
    issue(dst_sbuf, data_sbuf[:, :, 0:half], op, data_sbuf[:, :, half : 2 * half])
    if length % 2:
        issue(dst_sbuf[:, :, 0:1], dst_sbuf[:, :, 0:1], op, data_sbuf[:, :, length - 1 : length])


def folded(half_sbuf: nl.NkiTensor, op: Operator) -> nl.NkiTensor:
    """Reduce columns to one value each by repeated :func:`fold` in place, and return [partitions, outer_each, 1,
    width].

    The order of the operations depends on C only, and rounding errors grow with log C.
    """
    while half_sbuf.shape[2] > 1:
        first_sbuf = half_sbuf[:, :, 0 : half_sbuf.shape[2] // 2]
        fold(half_sbuf, first_sbuf, op)
        half_sbuf = first_sbuf
    return half_sbuf


def forward_short_plan(
    shape: Sizes, kind: Kind, x_dtype: nl.DType, y_dtype: nl.DType, chunk_size: int | None, cores: int, core: int
) -> ShortPlan:
    """Return the plan by which core number ``core`` of ``cores`` divides its short columns in the forward."""
    of_x, of_y = dtype_bytes(x_dtype), dtype_bytes(y_dtype)
    # Halves, sums and maxima have at most half as many elements as a piece.
    float32_tiles = (
        _DISTANCES + div_ceil(_MAXIMA + _FORWARD_SUMS, 2) + (_EXPONENTIALS if kind is Kind.LOG_SOFTMAX else 0)
    )
    return plan_short(
        shape,
        (x_dtype, y_dtype),
        window_bytes=of_x + (0 if x_dtype == y_dtype else of_y),
        piece_bytes=float32_tiles * FLOAT32_BYTES + _HALVES * of_x // 2,
        chunk_size=chunk_size,
        cores=cores,
        core=core,
    )


@dataclass
class _ForwardPieces:
    """The stages of the forward, and the tiles of pieces in flight (started and not finished).

    With m the maximum of a column and d the sum of exp(x - m), in float32,

        log-softmax = (x - m) - log d        softmax = exp(x - m) * (1 / d).

    GpSimd computes the maxima of pairs of elements (:func:`fold`) and the differences x - m; Vector the maxima of these
    pairs, the sums and the results; Scalar the exponentials, the logs and the reciprocals.

    Attributes:
        kind: softmax or log-softmax.
        length: C, the number of elements of a column.
        x, y: the windows of x and y.
        halves, maxima, distances, exponentials, sums: rings of tiles, from which pieces take those below.
        half_sbuf: the maxima of pairs of elements, by piece.
        max_sbuf: m, by piece.
        distance_sbuf: x - m, by piece; softmax overwrites it with exp(x - m).
        exponential_sbuf: exp(x - m), by piece; a tile of ``exponentials`` for log-softmax only.
        sum_sbuf: d, then log d, or 1 / d for softmax, by piece.
    """

    kind: Kind
    length: int
    x: WindowTiles
    y: WindowTiles
    halves: Ring
    maxima: Ring
    distances: Ring
    exponentials: Ring
    sums: Ring
    half_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    max_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    distance_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    exponential_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    sum_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, kind: Kind, plan: ShortPlan, x: WindowTiles, y: WindowTiles) -> _ForwardPieces:
        half = plan.columns * (plan.length // 2)
        return cls(
            kind,
            plan.length,
            x,
            y,
            halves=Ring(ring_of(_HALVES, half, x.tensor_hbm.dtype)),
            maxima=Ring(ring_of(_MAXIMA, plan.columns, nl.float32)),
            distances=Ring(ring_of(_DISTANCES, plan.piece, nl.float32)),
            exponentials=Ring(ring_of(_EXPONENTIALS if kind is Kind.LOG_SOFTMAX else 0, plan.piece, nl.float32)),
            sums=Ring(ring_of(_FORWARD_SUMS, half, nl.float32)),
        )

    def take_halves(self, piece: ShortPiece) -> None:
        x_sbuf = self.x.piece(piece)
        partitions, outer_each, length, width = x_sbuf.shape
        self.half_sbuf[piece] = self.halves.next_shaped((partitions, outer_each, length // 2, width))
        fold(x_sbuf, self.half_sbuf[piece], nl.maximum, on_gpsimd)

    def take_maxima(self, piece: ShortPiece) -> None:
        half_sbuf = self.half_sbuf.pop(piece)
        partitions, outer_each, half, width = half_sbuf.shape
        self.max_sbuf[piece] = half_sbuf
        if half > 1:
            max_sbuf = self.maxima.next_shaped((partitions, outer_each, 1, width))
            nisa.tensor_reduce(dst=max_sbuf.squeeze_dim(2), op=nl.maximum, data=half_sbuf.permute([0, 1, 3, 2]), axis=3)
            self.max_sbuf[piece] = max_sbuf

    def take_distances(self, piece: ShortPiece) -> None:
        x_sbuf = self.x.piece(piece)
        distance_sbuf = self.distance_sbuf[piece] = self.distances.next_shaped(x_sbuf.shape)
        on_gpsimd(distance_sbuf, x_sbuf, nl.subtract, of_columns(self.max_sbuf.pop(piece), self.length))

    def take_exponentials(self, piece: ShortPiece) -> None:
        distance_sbuf = self.distance_sbuf[piece]
        is_log = self.kind is Kind.LOG_SOFTMAX
        dst_sbuf = self.exponentials.next_shaped(distance_sbuf.shape) if is_log else distance_sbuf
        nisa.activation(dst=dst_sbuf, op=nl.exp, data=distance_sbuf)
        self.exponential_sbuf[piece] = dst_sbuf

    def take_sums(self, piece: ShortPiece) -> None:
        exponential_sbuf = self.exponential_sbuf.pop(piece)
        partitions, outer_each, length, width = exponential_sbuf.shape
        half_sbuf = self.sums.next_shaped((partitions, outer_each, length // 2, width))
        fold(exponential_sbuf, half_sbuf, nl.add)
        self.sum_sbuf[piece] = folded(half_sbuf, nl.add)

    def divide(self, piece: ShortPiece) -> None:
        sum_sbuf = self.sum_sbuf[piece]
        # Vector's reciprocal takes eight times as long as its other operations, and Scalar has the time.
        op = nl.log if self.kind is Kind.LOG_SOFTMAX else nl.reciprocal
        nisa.activation(dst=sum_sbuf, op=op, data=sum_sbuf)

    def finish(self, piece: ShortPiece) -> None:
        of_column_sbuf = of_columns(self.sum_sbuf.pop(piece), self.length)
        op = nl.subtract if self.kind is Kind.LOG_SOFTMAX else nl.multiply
        on_vector(self.y.piece(piece), self.distance_sbuf.pop(piece), op, of_column_sbuf)


def forward_of_short_columns(x_hbm: nl.NkiTensor, y_hbm: nl.NkiTensor, kind: Kind, chunk_size: int | None) -> None:
    """Compute softmax or log-softmax of the short columns that this core processes.

    Args:
        x_hbm: the input, [O, C, I].
        y_hbm: the output, [O, C, I].
        kind: softmax or log-softmax.
        chunk_size: the maximum number of elements per partition of an instruction, at least C; None for no maximum.
    """
    plan = forward_short_plan(
        Sizes(*x_hbm.shape), kind, x_hbm.dtype, y_hbm.dtype, chunk_size, nl.num_programs(), nl.program_id()
    )
    if not plan.windows:
        return
    x = WindowTiles.make(x_hbm, plan)
    y = result_tiles(y_hbm, plan, x)
    pieces = _ForwardPieces.make(kind, plan, x, y)
    stages: list[Stage] = [
        (0, pieces.take_halves),
        (1, pieces.take_maxima),
        (1, pieces.take_distances),
        (2, pieces.take_exponentials),
        (3, pieces.take_sums),
        (3, pieces.divide),
        (5, pieces.finish),
    ]
    ShortLoop(plan, [x], y, stages).run()


def backward_short_plan(
    shape: Sizes, kind: Kind, dtypes: BackwardTypes, chunk_size: int | None, cores: int, core: int
) -> ShortPlan:
    """Return the plan by which core number ``core`` of ``cores`` divides its short columns in the backward."""
    of_result = 0 if dtypes.grad == dtypes.grad_x else dtype_bytes(dtypes.grad_x)
    is_log = kind is Kind.LOG_SOFTMAX
    return plan_short(
        shape,
        dtypes,
        window_bytes=dtype_bytes(dtypes.grad) + dtype_bytes(dtypes.output) + of_result,
        piece_bytes=(_BACKWARD_SUMS // 2 + _TERMS + (0 if is_log else _PRODUCTS)) * FLOAT32_BYTES,
        chunk_size=chunk_size,
        cores=cores,
        core=core,
    )


@dataclass
class _BackwardPieces:
    """The stages of the backward, and the tiles of pieces in flight (started and not finished).

    With y the saved output, dy its gradient, dx the result, and s the sum over a column of dy (log-softmax) or of y dy
    (softmax), in float32,

        log-softmax: dx = dy - exp(y) s        softmax: dx = y (dy - s).

    Attributes:
        kind: softmax or log-softmax.
        length: C, the number of elements of a column.
        grad, output, result: the windows of dy, y and dx.
        sums, terms, products: rings of tiles, from which pieces take those below.
        product_sbuf: y dy, by piece, for softmax.
        half_sbuf: the sums of pairs of elements (:func:`fold`), by piece.
        sum_sbuf: s, by piece.
        term_sbuf: for log-softmax exp(y), then exp(y) s, for softmax dy - s, by piece.
    """

    kind: Kind
    length: int
    grad: WindowTiles
    output: WindowTiles
    result: WindowTiles
    sums: Ring
    terms: Ring
    products: Ring
    product_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    half_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    sum_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)
    term_sbuf: dict[ShortPiece, nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(
        cls, kind: Kind, plan: ShortPlan, grad: WindowTiles, output: WindowTiles, result: WindowTiles
    ) -> _BackwardPieces:
        return cls(
            kind,
            plan.length,
            grad,
            output,
            result,
            sums=Ring(ring_of(_BACKWARD_SUMS, plan.columns * (plan.length // 2), nl.float32)),
            terms=Ring(ring_of(_TERMS, plan.piece, nl.float32)),
            products=Ring(ring_of(0 if kind is Kind.LOG_SOFTMAX else _PRODUCTS, plan.piece, nl.float32)),
        )

    def stages(self) -> list[Stage]:
        """Return the stages in the order of issue, as :attr:`ShortLoop.stages`."""
        if self.kind is Kind.LOG_SOFTMAX:
            return [
                (2, self.subtract_term),
                (0, self.take_sum_of_grad),
                (0, self.take_exponentials),
                (1, self.scale_exponentials),
            ]
        return [
            (4, self.multiply_term),
            (0, self.take_products),
            (1, self.take_halves),
            (2, self.take_sum),
            (3, self.take_differences),
        ]

    def take_sum_of_grad(self, piece: ShortPiece) -> None:
        self._halve(self.grad.piece(piece), piece)
        self.take_sum(piece)

    def take_exponentials(self, piece: ShortPiece) -> None:
        output_sbuf = self.output.piece(piece)
        self.term_sbuf[piece] = self.terms.next_shaped(output_sbuf.shape)
        nisa.activation(dst=self.term_sbuf[piece], op=nl.exp, data=output_sbuf)

    def scale_exponentials(self, piece: ShortPiece) -> None:
        term_sbuf = self.term_sbuf[piece]
        on_gpsimd(term_sbuf, term_sbuf, nl.multiply, of_columns(self.sum_sbuf.pop(piece), self.length))

    def subtract_term(self, piece: ShortPiece) -> None:
        on_vector(self.result.piece(piece), self.grad.piece(piece), nl.subtract, self.term_sbuf.pop(piece))

    def take_products(self, piece: ShortPiece) -> None:
        grad_sbuf = self.grad.piece(piece)
        self.product_sbuf[piece] = self.products.next_shaped(grad_sbuf.shape)
        on_vector(self.product_sbuf[piece], grad_sbuf, nl.multiply, self.output.piece(piece))

    def take_halves(self, piece: ShortPiece) -> None:
        self._halve(self.product_sbuf.pop(piece), piece, is_on_gpsimd=True)

    def take_sum(self, piece: ShortPiece) -> None:
        self.sum_sbuf[piece] = folded(self.half_sbuf.pop(piece), nl.add)

    def take_differences(self, piece: ShortPiece) -> None:
        grad_sbuf = self.grad.piece(piece)
        self.term_sbuf[piece] = self.terms.next_shaped(grad_sbuf.shape)
        on_gpsimd(self.term_sbuf[piece], grad_sbuf, nl.subtract, of_columns(self.sum_sbuf.pop(piece), self.length))

    def multiply_term(self, piece: ShortPiece) -> None:
        on_vector(self.result.piece(piece), self.term_sbuf.pop(piece), nl.multiply, self.output.piece(piece))

    def _halve(self, terms_sbuf: nl.NkiTensor, piece: ShortPiece, is_on_gpsimd: bool = False) -> None:
        partitions, outer_each, length, width = terms_sbuf.shape
        self.half_sbuf[piece] = self.sums.next_shaped((partitions, outer_each, length // 2, width))
        fold(terms_sbuf, self.half_sbuf[piece], nl.add, on_gpsimd if is_on_gpsimd else on_vector)


def backward_of_short_columns(
    grad_hbm: nl.NkiTensor,
    output_hbm: nl.NkiTensor,
    grad_x_hbm: nl.NkiTensor,
    kind: Kind,
    chunk_size: int | None,
) -> None:
    """Compute the gradients of the short columns that this core processes.

    Args:
        grad_hbm: dy, [O, C, I].
        output_hbm: y, [O, C, I].
        grad_x_hbm: dx, [O, C, I]; it may be ``grad_hbm``.
        kind: softmax or log-softmax.
        chunk_size: the maximum number of elements per partition of an instruction, at least C; None for no maximum.
    """
    dtypes = BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype)
    plan = backward_short_plan(Sizes(*grad_hbm.shape), kind, dtypes, chunk_size, nl.num_programs(), nl.program_id())
    if not plan.windows:
        return
    grad, output = WindowTiles.make(grad_hbm, plan), WindowTiles.make(output_hbm, plan)
    result = result_tiles(grad_x_hbm, plan, grad)
    pieces = _BackwardPieces.make(kind, plan, grad, output, result)
    ShortLoop(plan, [grad, output], result, pieces.stages()).run()
