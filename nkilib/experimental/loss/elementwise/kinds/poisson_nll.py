"""Negative log-likelihood of Poisson's distribution, ``torch.nn.functional.poisson_nll_loss(x, t)``.

``exp(x) - t x`` of the logarithm x of the rate, or ``x - t log(x + eps)`` of the rate itself; with ``full`` Stirling's
``t log t - t + log(2 pi t) / 2``, an estimate of ``log t!``, where t > 1. Derivatives ``exp(x) - t`` and ``-x``, or
``1 - t / (x + eps)`` and ``-log(x + eps)``; ``full`` adds ``log t + 1 / (2 t)`` by the target, where t > 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi

from nkilib.core.rows.arithmetic import (
    combine,
    difference,
    multiply_in_turns,
    multiply_on_gpsimd,
    product,
    subtract_on_gpsimd,
    total,
    transform,
)
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class PoissonOfLogRate:
    """The loss of the logarithm of the rate.

    Attributes:
        full: with Stirling's estimate.
    """

    full: bool
    tensors = (INPUT, TARGET)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The gradient of the target is the input, but for Stirling's."""
        return self.tensors if self.full or INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """exp(x) and t x; or their difference, and what Stirling's estimate begins with."""
        rate_sbuf, product_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=rate_sbuf, op=nl.exp, data=piece[INPUT])
        if not self.full:
            multiply_in_turns(piece.number, product_sbuf, piece[TARGET], piece[INPUT])
            return rate_sbuf, product_sbuf
        multiply_on_gpsimd(product_sbuf, piece[TARGET], piece[INPUT])
        subtract_on_gpsimd(rate_sbuf, rate_sbuf, product_sbuf)
        return rate_sbuf, _log_target(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """exp(x) - t x, and Stirling's estimate."""
        rate_sbuf, other_sbuf = prepared
        if self.full:
            losses.scalar_tensor_tensor(rate_sbuf, nl.add, 0.0, nl.add, stirling(piece, other_sbuf))
        else:
            losses.scalar_tensor_tensor(rate_sbuf, nl.add, 0.0, nl.subtract, other_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """exp(x) - t, -x."""
        found = {}
        if INPUT in wanted:
            rate_sbuf = piece.float32()
            nisa.activation(dst=rate_sbuf, op=nl.exp, data=piece[INPUT])
            difference(rate_sbuf, rate_sbuf, piece[TARGET])
            found[INPUT] = Derivative(rate_sbuf, on_scalar=True)
        if TARGET in wanted and not self.full:
            found[TARGET] = Derivative(piece[INPUT], -1.0)
        elif TARGET in wanted:
            slope_sbuf = stirling_slope(piece)
            difference(slope_sbuf, slope_sbuf, piece[INPUT])
            found[TARGET] = Derivative(slope_sbuf)
        return found


@dataclass(frozen=True)
class PoissonOfRate:
    """The loss of the rate.

    Attributes:
        full: with Stirling's estimate.
        eps: that is added to the rate.
    """

    full: bool
    eps: float
    tensors = (INPUT, TARGET)
    scratch_tiles = 5

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The gradient of the target is a function of the input, but for Stirling's."""
        return self.tensors if self.full or INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """t log(x + eps); or x less that, and what Stirling's estimate begins with."""
        log_sbuf = self._logarithm(piece)
        if not self.full:
            multiply_in_turns(piece.number, log_sbuf, log_sbuf, piece[TARGET])
            return (log_sbuf,)
        multiply_on_gpsimd(log_sbuf, log_sbuf, piece[TARGET])
        subtract_on_gpsimd(log_sbuf, piece[INPUT], log_sbuf)
        return log_sbuf, _log_target(piece)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """x - t log(x + eps), and Stirling's estimate."""
        first_sbuf, *others_sbuf = prepared
        if self.full:
            losses.scalar_tensor_tensor(first_sbuf, nl.add, 0.0, nl.add, stirling(piece, others_sbuf[0]))
        else:
            losses.scalar_tensor_tensor(piece[INPUT], nl.add, 0.0, nl.subtract, first_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """1 - t / (x + eps), -log(x + eps)."""
        found = {}
        if INPUT in wanted:
            share_sbuf = piece.float32()
            nisa.activation(dst=share_sbuf, op=nl.copy, data=piece[INPUT], bias=piece.constant(self.eps))
            # Vector's reciprocal takes eight times as long as another instruction
            nisa.activation(dst=share_sbuf, op=nl.reciprocal, data=share_sbuf)
            product(share_sbuf, share_sbuf, piece[TARGET])
            transform(share_sbuf, share_sbuf, nl.subtract, 1.0)
            found[INPUT] = Derivative(share_sbuf, -1.0, on_scalar=True)
        if TARGET in wanted:
            log_sbuf = self._logarithm(piece)
            if self.full:
                difference(log_sbuf, log_sbuf, stirling_slope(piece))
            found[TARGET] = Derivative(log_sbuf, -1.0)
        return found

    def _logarithm(self, piece: Piece) -> nl.NkiTensor:
        log_sbuf = piece.float32()
        nisa.activation(dst=log_sbuf, op=nl.log, data=piece[INPUT], bias=piece.constant(self.eps))
        return log_sbuf


def stirling(piece: Piece, log_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """``(t + 1/2) log t - t + log(2 pi) / 2`` where t > 1, else 0; over log max(t, 1)."""
    combine(log_sbuf, piece[TARGET], nl.add, 0.5, nl.multiply, log_sbuf)
    combine(log_sbuf, log_sbuf, nl.add, 0.5 * log(2.0 * pi), nl.subtract, piece[TARGET])
    _keep_above_one(log_sbuf, piece)
    return log_sbuf


def stirling_slope(piece: Piece) -> nl.NkiTensor:
    """``log t + 1 / (2 t)`` where t > 1, else 0."""
    inverse_sbuf, log_sbuf = piece.float32(), _log_target(piece)
    transform(inverse_sbuf, piece[TARGET], nl.maximum, 1.0, nl.multiply, 2.0)
    nisa.reciprocal(dst=inverse_sbuf, data=inverse_sbuf)
    total(log_sbuf, log_sbuf, inverse_sbuf)
    _keep_above_one(log_sbuf, piece)
    return log_sbuf


def _log_target(piece: Piece) -> nl.NkiTensor:
    """log max(t, 1)."""
    log_sbuf, raised_sbuf = piece.float32(), piece.like(TARGET)
    transform(raised_sbuf, piece[TARGET], nl.maximum, 1.0)
    nisa.activation(dst=log_sbuf, op=nl.log, data=raised_sbuf)
    return log_sbuf


def _keep_above_one(values_sbuf: nl.NkiTensor, piece: Piece) -> None:
    combine(values_sbuf, piece[TARGET], nl.greater, 1.0, nl.multiply, values_sbuf)
