"""Squared error near 0 and absolute error beyond: ``torch.nn.functional.smooth_l1_loss`` and ``huber_loss``.

With d = x - t and c = d, clipped to [-b, b]: ``f (c^2 / (2 b) + max(|d| - b, 0))``, in which nothing cancels. The
smooth error has f = 1 and b = beta, Huber's f = b = delta. Derivatives ``f c / b`` and its negative.

Vector makes c and |d| - b. Of every fifth piece Scalar takes ``max(d - b, 0) + max(-d - b, 0)`` from d, which is the
same number: in 16 bits both engines then have as much to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from nkilib.core.rows.arithmetic import subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Activation, Derivative, Losses, Piece, Prepared
from nkilib.nki import nl

# Of so many pieces Scalar makes what is beyond of one, in two passes more, and Vector in one pass less.
_SHARE = 5


@dataclass(frozen=True)
class SmoothL1:
    """The smooth error.

    Attributes:
        width: b, up to which an error is squared; positive.
        factor: f, of the losses.
    """

    width: float
    factor: float = 1.0

    tensors = (INPUT, TARGET)
    scratch_tiles = 4  # one more than a piece takes, so that GpSimd does not wait for Scalar

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Both, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """c, and d, or |d| - b in its place."""
        difference_sbuf, clipped_sbuf = piece.float32(), piece.float32()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, difference_sbuf)
        if not self._is_of_scalar(piece):
            transform(difference_sbuf, difference_sbuf, nl.abs, None, nl.subtract, self.width)
        return clipped_sbuf, difference_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """The square of c, and what is beyond: Scalar keeps one table, since a square needs none."""
        clipped_sbuf, other_sbuf = prepared
        square = Activation(nl.square, clipped_sbuf, sqrt(0.5 * self.factor / self.width))
        if self._is_of_scalar(piece):
            bias_sbuf = piece.constant(-self.width)
            scratch_sbuf = piece.float32() if losses.are_kept else None
            above = Activation(nl.relu, other_sbuf, scratch_sbuf=scratch_sbuf, bias_sbuf=bias_sbuf)
            losses.activations(square, above, Activation(nl.relu, other_sbuf, -1.0, bias_sbuf=bias_sbuf))
        else:
            losses.activations(square, Activation(nl.relu, other_sbuf, self.factor))

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """f c / b, and its negative."""
        clipped_sbuf = piece.float32()
        subtract_on_gpsimd(clipped_sbuf, piece[INPUT], piece[TARGET])
        self._clip(clipped_sbuf, clipped_sbuf)
        slope = self.factor / self.width
        return {
            INPUT: Derivative(clipped_sbuf, slope, on_scalar=True),
            TARGET: Derivative(clipped_sbuf, -slope, on_scalar=True),
        }

    def _is_of_scalar(self, piece: Piece) -> bool:
        """What is beyond is made on Scalar, from d; where f is 1, so that nothing cancels."""
        return self.factor == 1.0 and piece.number % _SHARE == 0

    def _clip(self, dst_sbuf: nl.NkiTensor, difference_sbuf: nl.NkiTensor) -> None:
        transform(dst_sbuf, difference_sbuf, nl.minimum, self.width, nl.maximum, -self.width)
