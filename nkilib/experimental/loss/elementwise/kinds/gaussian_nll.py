"""Negative log-likelihood of the normal distribution, ``torch.nn.functional.gaussian_nll_loss(x, t, var)``.

With ``s = 1 / sqrt(max(var, eps))`` and ``q = (x - t) s``: ``q^2 / 2 - log s``, and ``full`` adds ``log(2 pi) / 2``, so
that one function gives the logarithm and the quotient. Derivatives ``q s``, its negative and ``s^2 (1 - q^2) / 2``, the
last one as if ``var`` had been ``max(var, eps)``, as PyTorch has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

from nkilib.core.rows.arithmetic import combine, multiply_on_gpsimd, product, subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, VARIANCE, Derivative, Losses, Piece, Prepared
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class GaussianNll:
    """The loss.

    Attributes:
        full: with the constant.
        eps: the least variance.
    """

    full: bool
    eps: float
    tensors = (INPUT, TARGET, VARIANCE)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """All, whatever is wanted."""
        return self.tensors

    def prepare(self, piece: Piece) -> Prepared:
        """q and log(s k), where k = 1 / sqrt(2 pi) adds the constant."""
        quotient_sbuf, inverse_sbuf = self._quotient(piece)
        log_sbuf = piece.float32()
        scale = 1.0 / sqrt(2.0 * pi) if self.full else 1.0
        nisa.activation(dst=log_sbuf, op=nl.log, data=inverse_sbuf, scale=scale)
        return quotient_sbuf, log_sbuf

    def _quotient(self, piece: Piece) -> tuple[nl.NkiTensor, nl.NkiTensor]:
        """q and s."""
        quotient_sbuf, inverse_sbuf = piece.float32(), piece.float32()
        transform(inverse_sbuf, piece[VARIANCE], nl.maximum, self.eps)
        nisa.activation(dst=inverse_sbuf, op=nl.rsqrt, data=inverse_sbuf)
        subtract_on_gpsimd(quotient_sbuf, piece[INPUT], piece[TARGET])
        multiply_on_gpsimd(quotient_sbuf, quotient_sbuf, inverse_sbuf)
        return quotient_sbuf, inverse_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """q^2 / 2 - log(s k)."""
        square_sbuf, log_sbuf = prepared
        product(square_sbuf, square_sbuf, square_sbuf)
        losses.scalar_tensor_tensor(square_sbuf, nl.multiply, 0.5, nl.subtract, log_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """q s, -q s, s^2 (1 - q^2) / 2."""
        quotient_sbuf, inverse_sbuf = self._quotient(piece)
        found = {}
        if VARIANCE in wanted:
            slope_sbuf = piece.float32()
            nisa.activation(dst=slope_sbuf, op=nl.square, data=quotient_sbuf)
            combine(slope_sbuf, slope_sbuf, nl.subtract, 1.0, nl.multiply, inverse_sbuf)
            product(slope_sbuf, slope_sbuf, inverse_sbuf)
            found[VARIANCE] = Derivative(slope_sbuf, -0.5, on_scalar=True)
        times_sbuf: nl.NkiTensor | None = inverse_sbuf
        if INPUT in wanted and TARGET in wanted:
            product(quotient_sbuf, quotient_sbuf, inverse_sbuf)
            times_sbuf = None
        found[INPUT] = Derivative(quotient_sbuf, 1.0, on_scalar=True, times_sbuf=times_sbuf)
        found[TARGET] = Derivative(quotient_sbuf, -1.0, on_scalar=True, times_sbuf=times_sbuf)
        return found
