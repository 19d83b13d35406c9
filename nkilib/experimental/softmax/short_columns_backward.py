# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The backward along a short axis that is not the last one, on short columns like the forward.

With y the saved output, dy its gradient, dx the result, and s the sum over a column of dy (log-softmax) or of y dy
(softmax), in float32,

    log-softmax: dx = dy - exp(y) s        softmax: dx = y (dy - s).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nkilib.core.rows.sbuf import dtype_bytes
from nkilib.core.rows.sizes import FLOAT32_BYTES
from nkilib.experimental.softmax.column_plan import Sizes
from nkilib.experimental.softmax.kind import BackwardTypes, Kind
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
_SUMS, _TERMS, _PRODUCTS = 4, 3, 3


def backward_of_short_columns(
    grad_hbm: nl.NkiTensor,
    output_hbm: nl.NkiTensor,
    grad_x_hbm: nl.NkiTensor,
    kind: Kind,
    chunk_size: int | None,
) -> None:
    """Compute the gradients of the columns of this core.

    Args:
        grad_hbm: dy, [O, C, I].
        output_hbm: y, [O, C, I].
        grad_x_hbm: dx, [O, C, I]; it may be ``grad_hbm``.
        kind: softmax or log-softmax.
        chunk_size: the maximum number of elements per partition that an instruction processes, at least C; or None.
    """
    dtypes = BackwardTypes(grad_hbm.dtype, output_hbm.dtype, grad_x_hbm.dtype)
    plan = backward_short_plan(Sizes(*grad_hbm.shape), kind, dtypes, chunk_size, nl.num_programs(), nl.program_id())
    if not plan.windows:
        return
    grad, output = WindowTiles.make(grad_hbm, plan), WindowTiles.make(output_hbm, plan)
    result = result_tiles(grad_x_hbm, plan, grad)
    pieces = _Pieces.make(kind, plan, grad, output, result)
    ShortLoop(plan, [grad, output], result, pieces.stages()).run()


def backward_short_plan(
    shape: Sizes, kind: Kind, dtypes: BackwardTypes, chunk_size: int | None, cores: int, core: int
) -> ShortPlan:
    """Return the plan by which the backward divides the short columns of a core."""
    of_result = 0 if dtypes.grad == dtypes.grad_x else dtype_bytes(dtypes.grad_x)
    is_log = kind is Kind.LOG_SOFTMAX
    return plan_short(
        shape,
        dtypes,
        window_bytes=dtype_bytes(dtypes.grad) + dtype_bytes(dtypes.output) + of_result,
        piece_bytes=(_SUMS // 2 + _TERMS + (0 if is_log else _PRODUCTS)) * FLOAT32_BYTES,
        chunk_size=chunk_size,
        cores=cores,
        core=core,
    )


@dataclass
class _Pieces:
    """The stages of the backward, and the tiles of pieces in flight; s is that of the module.

    Attributes:
        kind: softmax or log-softmax.
        length: C, the number of elements of a column.
        grad, output, result: the windows of dy, y and dx.
        sums: tiles for partial sums.
        terms: tiles for exp(y), and then exp(y) s, of log-softmax; or for dy - s of softmax.
        products: tiles for y dy of softmax.
        product_sbuf, half_sbuf, sum_sbuf, term_sbuf: the tiles of pieces in flight.
    """

    kind: Kind
    length: int
    grad: WindowTiles
    output: WindowTiles
    result: WindowTiles
    sums: Ring
    terms: Ring
    products: Ring
    product_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    half_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    sum_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)
    term_sbuf: dict[Piece, nl.NkiTensor] = field(default_factory=dict)

    @classmethod
    def make(cls, kind: Kind, plan: ShortPlan, grad: WindowTiles, output: WindowTiles, result: WindowTiles) -> _Pieces:
        return cls(
            kind,
            plan.length,
            grad,
            output,
            result,
            sums=Ring.make(_SUMS, plan.columns * (plan.length // 2), nl.float32),
            terms=Ring.make(_TERMS, plan.piece, nl.float32),
            products=Ring.make(0 if kind is Kind.LOG_SOFTMAX else _PRODUCTS, plan.piece, nl.float32),
        )

    def stages(self) -> list[Stage]:
        """Return the stages: Vector adds up; GpSimd computes exp(y) s or dy - s and, for softmax, half of the sum."""
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

    def take_sum_of_grad(self, piece: Piece) -> None:
        self._halve(self.grad.piece(piece), piece)
        self.take_sum(piece)

    def take_exponentials(self, piece: Piece) -> None:
        output_sbuf = self.output.piece(piece)
        self.term_sbuf[piece] = self.terms.next(output_sbuf.shape)
        nisa.activation(dst=self.term_sbuf[piece], op=nl.exp, data=output_sbuf)

    def scale_exponentials(self, piece: Piece) -> None:
        term_sbuf = self.term_sbuf[piece]
        on_gpsimd(term_sbuf, term_sbuf, nl.multiply, of_columns(self.sum_sbuf.pop(piece), self.length))

    def subtract_term(self, piece: Piece) -> None:
        on_vector(self.result.piece(piece), self.grad.piece(piece), nl.subtract, self.term_sbuf.pop(piece))

    def take_products(self, piece: Piece) -> None:
        grad_sbuf = self.grad.piece(piece)
        self.product_sbuf[piece] = self.products.next(grad_sbuf.shape)
        on_vector(self.product_sbuf[piece], grad_sbuf, nl.multiply, self.output.piece(piece))

    def take_halves(self, piece: Piece) -> None:
        self._halve(self.product_sbuf.pop(piece), piece, is_on_gpsimd=True)

    def take_sum(self, piece: Piece) -> None:
        self.sum_sbuf[piece] = folded(self.half_sbuf.pop(piece), nl.add)

    def take_differences(self, piece: Piece) -> None:
        grad_sbuf = self.grad.piece(piece)
        self.term_sbuf[piece] = self.terms.next(grad_sbuf.shape)
        on_gpsimd(self.term_sbuf[piece], grad_sbuf, nl.subtract, of_columns(self.sum_sbuf.pop(piece), self.length))

    def multiply_term(self, piece: Piece) -> None:
        on_vector(self.result.piece(piece), self.term_sbuf.pop(piece), nl.multiply, self.output.piece(piece))

    def _halve(self, terms_sbuf: nl.NkiTensor, piece: Piece, is_on_gpsimd: bool = False) -> None:
        partitions, outer_each, length, width = terms_sbuf.shape
        self.half_sbuf[piece] = self.sums.next((partitions, outer_each, length // 2, width))
        fold(terms_sbuf, self.half_sbuf[piece], nl.add, on_gpsimd if is_on_gpsimd else on_vector)
