# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward along a short axis that is not the last one: a partition holds whole columns, and nothing is transposed.

With m the maximum of a column and d the sum of exp(x - m), in float32,

    log-softmax = (x - m) - log d        softmax = exp(x - m) * (1 / d),

with one instruction per operation for all elements of the columns of a piece. GpSimd computes the differences and the
first half of the maxima; Vector the rest, and the sums; Scalar the exponentials, the logs and the reciprocals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.core.tiling import div_ceil
from nkilib.experimental.softmax.column_plan import Sizes
from nkilib.experimental.softmax.kind import Kind
from nkilib.experimental.softmax.row_tiles import Ring
from nkilib.experimental.softmax.short_plan import Piece, ShortPlan, plan_short
from nkilib.experimental.softmax.short_steps import (
    ShortLoop,
    Stage,
    WindowTiles,
    fold,
    folded,
    of_columns,
    on_gpsimd,
    on_vector,
    result_tiles,
)
from nkilib.nki import nisa, nl

# Tiles for the intermediate values of pieces: one more than the steps between the first and the last use.
_HALVES, _MAXIMA, _DISTANCES, _EXPONENTIALS, _SUMS = 2, 2, 5, 2, 3


def forward_of_short_columns(x_hbm: nl.NkiTensor, y_hbm: nl.NkiTensor, kind: Kind, chunk_size: int | None) -> None:
    """Compute the results of the columns of this core.

    Args:
        x_hbm: the input, [O, C, I].
        y_hbm: the output, [O, C, I]; its type is the type of the result.
        kind: softmax or log-softmax.
        chunk_size: the maximum number of elements per partition that an instruction processes, at least C; or None.
    """
    plan = forward_short_plan(
        Sizes(*x_hbm.shape), kind, x_hbm.dtype, y_hbm.dtype, chunk_size, nl.num_programs(), nl.program_id()
    )
    if not plan.windows:
        return
    x = WindowTiles.make(x_hbm, plan)
    y = result_tiles(y_hbm, plan, x)
    pieces = _Pieces.make(kind, plan, x, y)
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


def forward_short_plan(
    shape: Sizes, kind: Kind, x_dtype: nl.DType, y_dtype: nl.DType, chunk_size: int | None, cores: int, core: int
) -> ShortPlan:
    """Return the plan by which the forward divides the short columns of a core."""
    of_x, of_y = dtype_bytes(x_dtype), dtype_bytes(y_dtype)
    # Halves, sums and maxima have at most half as many elements as a piece.
    float32_tiles = _DISTANCES + div_ceil(_MAXIMA + _SUMS, 2) + (_EXPONENTIALS if kind is Kind.LOG_SOFTMAX else 0)
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
class _Pieces:
    """The stages of the forward, and the tiles of pieces in flight; m and d are those of the module.

    Attributes:
        kind: softmax or log-softmax.
        length: C, the number of elements of a column.
        x, y: the windows of x and y.
        halves: tiles for the maxima of pairs of elements.
        maxima: tiles for m.
        distances: tiles for x - m, over which softmax writes exp(x - m).
        exponentials: tiles for the exponentials of log-softmax.
        sums: tiles for partial sums.
        half_sbuf, max_sbuf, distance_sbuf, exponential_sbuf: the tiles of pieces in flight.
        sum_sbuf: d of pieces in flight, and then log d, or 1 / d for softmax.
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
    half_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    max_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    distance_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    exponential_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    sum_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, kind: Kind, plan: ShortPlan, x: WindowTiles, y: WindowTiles) -> _Pieces:
        half = plan.columns * (plan.length // 2)
        return cls(
            kind,
            plan.length,
            x,
            y,
            halves=Ring.make(_HALVES, half, x.tensor_hbm.dtype),
            maxima=Ring.make(_MAXIMA, plan.columns, nl.float32),
            distances=Ring.make(_DISTANCES, plan.piece, nl.float32),
            exponentials=Ring.make(_EXPONENTIALS if kind is Kind.LOG_SOFTMAX else 0, plan.piece, nl.float32),
            sums=Ring.make(_SUMS, half, nl.float32),
        )

    def take_halves(self, piece: Piece) -> None:
        x_sbuf = self.x.piece(piece)
        partitions, outer_each, length, width = x_sbuf.shape
        self.half_sbuf[piece] = self.halves.next((partitions, outer_each, length // 2, width))
        fold(x_sbuf, self.half_sbuf[piece], nl.maximum, on_gpsimd)

    def take_maxima(self, piece: Piece) -> None:
        half_sbuf = self.half_sbuf.pop(piece)
        partitions, outer_each, half, width = half_sbuf.shape
        self.max_sbuf[piece] = half_sbuf
        if half > 1:
            max_sbuf = self.maxima.next((partitions, outer_each, 1, width))
            nisa.tensor_reduce(dst=max_sbuf.squeeze_dim(2), op=nl.maximum, data=half_sbuf.permute([0, 1, 3, 2]), axis=3)
            self.max_sbuf[piece] = max_sbuf

    def take_distances(self, piece: Piece) -> None:
        x_sbuf = self.x.piece(piece)
        distance_sbuf = self.distance_sbuf[piece] = self.distances.next(x_sbuf.shape)
        on_gpsimd(distance_sbuf, x_sbuf, nl.subtract, of_columns(self.max_sbuf.pop(piece), self.length))

    def take_exponentials(self, piece: Piece) -> None:
        distance_sbuf = self.distance_sbuf[piece]
        is_log = self.kind is Kind.LOG_SOFTMAX
        dst_sbuf = self.exponentials.next(distance_sbuf.shape) if is_log else distance_sbuf
        nisa.activation(dst=dst_sbuf, op=nl.exp, data=distance_sbuf)
        self.exponential_sbuf[piece] = dst_sbuf

    def take_sums(self, piece: Piece) -> None:
        exponential_sbuf = self.exponential_sbuf.pop(piece)
        partitions, outer_each, length, width = exponential_sbuf.shape
        half_sbuf = self.sums.next((partitions, outer_each, length // 2, width))
        fold(exponential_sbuf, half_sbuf, nl.add)
        self.sum_sbuf[piece] = folded(half_sbuf, nl.add)

    def divide(self, piece: Piece) -> None:
        sum_sbuf = self.sum_sbuf[piece]
        # Vector's reciprocal takes eight times as long as its other operations, and Scalar has the time.
        op = nl.log if self.kind is Kind.LOG_SOFTMAX else nl.reciprocal
        nisa.activation(dst=sum_sbuf, op=op, data=sum_sbuf)

    def finish(self, piece: Piece) -> None:
        of_column_sbuf = of_columns(self.sum_sbuf.pop(piece), self.length)
        op = nl.subtract if self.kind is Kind.LOG_SOFTMAX else nl.multiply
        on_vector(self.y.piece(piece), self.distance_sbuf.pop(piece), op, of_column_sbuf)
