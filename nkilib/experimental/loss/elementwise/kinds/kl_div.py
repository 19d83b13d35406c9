"""Kullback-Leibler divergence of elements: input x are log-probabilities, target t probabilities or their logarithms.

``t * (log t - x)``, or ``exp(t) * (t - x)`` for ``log_target``: ``torch.nn.functional.kl_div(x, t)``. Both factor what
PyTorch writes as a difference of products, so that nothing cancels but what cancels in the truth.

The logarithm is that of t + 2^-64: exact in float32 from t = 2^-40 on, finite at 0, and off by at most 2^-64 in
``t * log t``. NKI documents ``log`` on [2^-64, 2^64] alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.rows.arithmetic import add_on_gpsimd, combine, subtract_in_turns, subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, Derivative, Losses, Piece, Prepared
from nkilib.nki import nisa, nl

# Added to a target before its logarithm is taken.
LEAST_TARGET = 1.0 / LIMIT_OF_LOG
# Below it a target is multiplied by 2^64 before its logarithm is taken exactly.
_SMALL, _RAISED = 2.0**-32, LIMIT_OF_LOG


def needed_tensors(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """What gradients are made of: that of the input of the target alone."""
    return (INPUT, TARGET) if TARGET in wanted else (TARGET,)


@dataclass(frozen=True)
class KlDiv:
    """The divergence from targets that are probabilities."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 4

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """As :func:`needed_tensors`."""
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """log(t + 2^-64) - x."""
        log_sbuf = piece.float32()
        nisa.activation(dst=log_sbuf, op=nl.log, data=piece[TARGET], bias=piece.constant(LEAST_TARGET))
        subtract_in_turns(piece.number, log_sbuf, log_sbuf, piece[INPUT])
        return (log_sbuf,)

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """(log t - x) * t; NaN where t is 0 and x infinite, as PyTorch has it."""
        (log_sbuf,) = prepared
        losses.product(log_sbuf, piece[TARGET])

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """-t, or log t + 1 - x, which is NaN at t = 0 as in PyTorch."""
        found = {INPUT: Derivative(piece[TARGET], -1.0)}
        if TARGET in wanted:
            log_sbuf = _logarithm(piece)
            combine(log_sbuf, log_sbuf, nl.add, 1.0, nl.subtract, piece[INPUT])
            found[TARGET] = Derivative(log_sbuf, on_scalar=True)
        return found


def _logarithm(piece: Piece) -> nl.NkiTensor:
    """log t of every normal number, NaN of 0: small targets are raised into the documented range of ``log`` first."""
    target_sbuf = piece[TARGET]
    raised_sbuf, log_sbuf, none_sbuf = piece.bfloat16(), piece.float32(), piece.float32()
    # 2^64 is a bfloat16, which Vector writes fast
    transform(raised_sbuf, target_sbuf, nl.less, _SMALL, nl.multiply, _RAISED)
    # 1 + 2^64 is 2^64 in float32
    combine(log_sbuf, raised_sbuf, nl.add, 1.0, nl.multiply, target_sbuf)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf)
    nisa.activation(dst=none_sbuf, op=nl.copy, data=log_sbuf, scale=0.0)
    combine(log_sbuf, raised_sbuf, nl.multiply, -log(_RAISED) / _RAISED, nl.add, log_sbuf)
    add_on_gpsimd(log_sbuf, log_sbuf, none_sbuf)
    return log_sbuf


@dataclass(frozen=True)
class KlDivOfLogTarget:
    """The divergence from targets that are log-probabilities."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 3

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """As :func:`needed_tensors`."""
        return needed_tensors(wanted)

    def prepare(self, piece: Piece) -> Prepared:
        """exp(t) and t - x, on Scalar and mostly on GpSimd, which leaves Vector little more than one pass."""
        exponential_sbuf, difference_sbuf = piece.float32(), piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece[TARGET])
        subtract_in_turns(piece.number, difference_sbuf, piece[TARGET], piece[INPUT])
        return exponential_sbuf, difference_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """(t - x) * exp(t); NaN where t is -inf, as PyTorch has it. Vector sums it: Scalar has the exponentials."""
        exponential_sbuf, difference_sbuf = prepared
        losses.scalar_tensor_tensor(difference_sbuf, nl.multiply, 1.0, nl.multiply, exponential_sbuf)

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """-exp(t), or exp(t) * (t - x + 1)."""
        exponential_sbuf = piece.float32()
        nisa.activation(dst=exponential_sbuf, op=nl.exp, data=piece[TARGET])
        found = {INPUT: Derivative(exponential_sbuf, -1.0)}
        if TARGET in wanted:
            sum_sbuf = piece.float32()
            subtract_on_gpsimd(sum_sbuf, piece[TARGET], piece[INPUT])
            combine(sum_sbuf, sum_sbuf, nl.add, 1.0, nl.multiply, exponential_sbuf)
            found[TARGET] = Derivative(sum_sbuf, on_scalar=True)
        return found
