# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The forward along a short axis that is not the last one: a partition takes whole columns, and nothing is turned.

With m the maximum of a column and d the sum of exp(x - m), in float32,

    log-softmax = (x - m) - log d        softmax = exp(x - m) * (1 / d),

an instruction each for all elements of the columns of a piece. GpSimd takes the differences and the first half of the
maxima; Vector the rest, and the sums; Scalar the exponentials, the logs and the reciprocals.
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

# Tiles of what pieces have on chip: as many as there are steps between the first and the last use, and one.
_HALVES, _MAXIMA, _DISTANCES, _EXPONENTIALS, _SUMS = 2, 2, 5, 2, 3


def forward_of_short_columns(x_hbm: nl.NkiTensor, y_hbm: nl.NkiTensor, kind: Kind, chunk_size: int | None) -> None:
    """The columns of this core.

    Args:
        x_hbm: [O, C, I].
        y_hbm: likewise; its type is that of the result.
        kind: which function.
        chunk_size: elements of a partition that an instruction takes at most, at least C; or None.
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
    """The stages.

    Attributes:
        kind: which function.
        length: C.
        x, y: windows.
        halves: larger ones of two elements.
        maxima: m.
        distances: x - m; and exp(x - m) of softmax.
        exponentials: those of log-softmax.
        sums: partial sums.
        half_sbuf, max_sbuf, distance_sbuf, sum_sbuf: of pieces that are under way; of sums, d and then log d or 1 / d.
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
        partitions, each, length, width = x_sbuf.shape
        self.half_sbuf[piece] = self.halves.next((partitions, each, length // 2, width))
        fold(x_sbuf, self.half_sbuf[piece], nl.maximum, on_gpsimd)

    def take_maxima(self, piece: Piece) -> None:
        half_sbuf = self.half_sbuf.pop(piece)
        partitions, each, half, width = half_sbuf.shape
        self.max_sbuf[piece] = half_sbuf
        if half > 1:
            max_sbuf = self.maxima.next((partitions, each, 1, width))
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
        partitions, each, length, width = exponential_sbuf.shape
        half_sbuf = self.sums.next((partitions, each, length // 2, width))
        fold(exponential_sbuf, half_sbuf, nl.add)
        self.sum_sbuf[piece] = folded(half_sbuf, nl.add)

    def divide(self, piece: Piece) -> None:
        sum_sbuf = self.sum_sbuf[piece]
        # Vector's own reciprocal takes eight times as long as what else it does to a number, and Scalar has the time.
        op = nl.log if self.kind is Kind.LOG_SOFTMAX else nl.reciprocal
        nisa.activation(dst=sum_sbuf, op=op, data=sum_sbuf)

    def finish(self, piece: Piece) -> None:
        of_column_sbuf = of_columns(self.sum_sbuf.pop(piece), self.length)
        op = nl.subtract if self.kind is Kind.LOG_SOFTMAX else nl.multiply
        on_vector(self.y.piece(piece), self.distance_sbuf.pop(piece), op, of_column_sbuf)
