"""Error of an order: ``max(margin - t (x1 - x2), 0)``, ``torch.nn.functional.margin_ranking_loss(x1, x2, t)``.

Where it is not below 0, 0 included, the derivatives are ``-t``, ``t`` and ``-(x1 - x2)``; else 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import combine, product, subtract_on_gpsimd
from nkilib.experimental.loss.elementwise.kind import TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nl

INPUT1, INPUT2 = "input1", "input2"


@dataclass(frozen=True)
class MarginRanking:
    """The error of an order.

    Attributes:
        margin: by which the numbers are to differ; finite.
    """

    margin: float

    tensors = (INPUT1, INPUT2, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """All, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """x1 - x2 on GpSimd, and t (x1 - x2)."""
        difference_sbuf, product_sbuf = piece.float32(), piece.float32()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT1], piece[INPUT2])
        product(product_sbuf, difference_sbuf, piece[TARGET])
        return difference_sbuf, product_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """max(margin - t (x1 - x2), 0)."""
        _, product_sbuf = prepared
        losses.activation(nl.relu, product_sbuf, scale=-1.0, bias_sbuf=piece.constant(self.margin))

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """[t (x1 - x2) <= margin] times t, or times the difference."""
        difference_sbuf, product_sbuf = self.prepare(piece)
        found = {}
        if TARGET in wanted:
            self._where_it_counts(difference_sbuf, product_sbuf, difference_sbuf)
            found[TARGET] = Derivative(difference_sbuf, -1.0, on_scalar=True)
        if INPUT1 in wanted or INPUT2 in wanted:
            target_sbuf = piece.float32()
            self._where_it_counts(target_sbuf, product_sbuf, piece[TARGET])
            found[INPUT1] = Derivative(target_sbuf, -1.0, on_scalar=True)
            found[INPUT2] = Derivative(target_sbuf, on_scalar=True)
        return found

    def _where_it_counts(self, dst_sbuf: nl.NkiTensor, product_sbuf: nl.NkiTensor, factor_sbuf: nl.NkiTensor) -> None:
        combine(dst_sbuf, product_sbuf, nl.less_equal, self.margin, nl.multiply, factor_sbuf)
