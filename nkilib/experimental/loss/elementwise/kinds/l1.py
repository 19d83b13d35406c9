"""Absolute error: ``|x - t|``, ``torch.nn.functional.l1_loss(x, t)``. Derivatives ``sign(x - t)`` and its negative."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import combine, difference, subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class L1:
    """The absolute error."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Both, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """x - t."""
        difference_sbuf = piece.float32()
        difference(difference_sbuf, piece[INPUT], piece[TARGET])
        return (difference_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """|x - t|."""
        (difference_sbuf,) = prepared
        losses.activation(nl.abs, difference_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """The sign s of x - t as [s > 0] - [s < 0]: a NaN gives 0, as PyTorch has it. Signs are exact in bfloat16."""
        difference_sbuf, sign_sbuf, sound_sbuf = piece.float32(), piece.bfloat16(), piece.bfloat16()
        subtract_on_gpsimd(difference_sbuf, piece[INPUT], piece[TARGET])
        nisa.activation(dst=sign_sbuf, op=nl.sign, data=difference_sbuf)
        transform(sound_sbuf, sign_sbuf, nl.less, 0.0)
        combine(sound_sbuf, sign_sbuf, nl.greater, 0.0, nl.subtract, sound_sbuf)
        return {INPUT: Derivative(sound_sbuf), TARGET: Derivative(sound_sbuf, -1.0)}
