"""Squared error: ``(x - t)^2``, ``torch.nn.functional.mse_loss(x, t)``. Derivatives ``2 (x - t)`` and its negative."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import difference
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nl


@dataclass(frozen=True)
class Mse:
    """The squared error."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 1

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Both, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """x - t."""
        difference_sbuf = piece.float32()
        difference(difference_sbuf, piece[INPUT], piece[TARGET])
        return (difference_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """(x - t)^2."""
        (difference_sbuf,) = prepared
        losses.activation(nl.square, difference_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """2 (x - t) and -2 (x - t)."""
        (difference_sbuf,) = self.prepare(piece)
        return {
            INPUT: Derivative(difference_sbuf, 2.0, on_scalar=True),
            TARGET: Derivative(difference_sbuf, -2.0, on_scalar=True),
        }
