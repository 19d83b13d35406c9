"""Binary cross-entropy of probabilities, ``torch.nn.functional.binary_cross_entropy(x, t)``.

``-(t A + (1 - t) B)`` with the logarithms A of x and B of 1 - x, of which none is below -100. Derivatives
``(x - t) / max(x (1 - x), 1e-12)``, which is PyTorch's, and ``B - A``.

NKI documents ``log`` on [2^-64, 2^64] alone. A number below 2^-32 is raised by 2^81 first, and A is the logarithm of
x + exp(-100): that is -100 at 0, and within float32 the logarithm of x for every normal number. The rounding of
y = 1 - x is known, (y - 1) + x, and subtracted from log y: so small probabilities keep their loss at t = 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from nkilib.core.rows.arithmetic import combine, difference, subtract_on_gpsimd, transform
from nkilib.experimental.loss.elementwise.kind import (
    INPUT,
    TARGET,
    Combination,
    Derivative,
    Losses,
    Piece,
    Prepared,
)
from nkilib.nki import nisa, nl

# The least logarithm, and the least denominator of the derivative.
LEAST_LOG, LEAST_PRODUCT = -100.0, 1e-12
# Numbers below SMALL are multiplied by RAISED; _FLOOR is exp(LEAST_LOG), raised.
SMALL, RAISED = 2.0**-32, 2.0**81
_LOG_RAISED = log(RAISED)
_FLOOR = exp(LEAST_LOG + _LOG_RAISED)
# 1 - x is 0 or at least 2^-24, and so is 1 - x + exp(LEAST_LOG + LOWERED) in float32, but for 0. A bfloat16.
LOWERED = 64.0
_FLOOR_OF_COMPLEMENT = exp(LEAST_LOG + LOWERED)


@dataclass(frozen=True)
class Bce:
    """The loss."""

    tensors = (INPUT, TARGET)
    scratch_tiles = 6

    def needed(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The target is needed for the gradient of the input alone."""
        return self.tensors if INPUT in wanted else (INPUT,)

    def prepare(self, piece: Piece) -> Prepared:
        """A and B, and two tiles that are free again. What GpSimd begins with comes first."""
        columns = piece.shape[1]
        flags_sbuf = piece.float32().view(nl.bfloat16)
        complement_log_sbuf, spare_sbuf = _log_of_complement(piece, flags_sbuf[:, 0:columns])
        log_sbuf, other_spare_sbuf = _log(piece, flags_sbuf[:, columns : 2 * columns])
        return log_sbuf, complement_log_sbuf, spare_sbuf, other_spare_sbuf

    def value(self, piece: Piece, prepared: Prepared, losses: Losses) -> None:
        """-(t A + (1 - t) B)."""
        log_sbuf, complement_log_sbuf, _, _ = prepared
        losses.two_combinations(
            Combination(piece[TARGET], nl.subtract, 1.0, nl.multiply, complement_log_sbuf),
            Combination(piece[TARGET], nl.multiply, -1.0, nl.multiply, log_sbuf),
        )

    def derivative(self, piece: Piece, wanted: tuple[str, ...]) -> dict[str, Derivative]:
        """(x - t) / max(x (1 - x), 1e-12), B - A."""
        found = {}
        if TARGET in wanted:
            log_sbuf, complement_log_sbuf, inverse_sbuf, slope_sbuf = self.prepare(piece)
            difference(complement_log_sbuf, complement_log_sbuf, log_sbuf)
            found[TARGET] = Derivative(complement_log_sbuf, on_scalar=True)
        else:
            inverse_sbuf, slope_sbuf = piece.float32(), piece.float32()
        if INPUT in wanted:
            subtract_on_gpsimd(slope_sbuf, piece[INPUT], piece[TARGET])
            # (x - 1) x
            combine(inverse_sbuf, piece[INPUT], nl.subtract, 1.0, nl.multiply, piece[INPUT])
            transform(inverse_sbuf, inverse_sbuf, nl.multiply, -1.0, nl.maximum, LEAST_PRODUCT)
            nisa.activation(dst=inverse_sbuf, op=nl.rsqrt, data=inverse_sbuf)
            nisa.activation(dst=inverse_sbuf, op=nl.square, data=inverse_sbuf)
            found[INPUT] = Derivative(slope_sbuf, on_scalar=True, times_sbuf=inverse_sbuf)
        return found


def _log(piece: Piece, raised_sbuf: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """A, of small numbers raised, less what that adds; and a tile that is free again."""
    log_sbuf, added_sbuf = piece.float32(), piece.float32()
    # 2^81 is a bfloat16, which Vector writes fast
    transform(raised_sbuf, piece[INPUT], nl.less, SMALL, nl.multiply, RAISED)
    # 1 + 2^81 is 2^81 in float32
    combine(log_sbuf, raised_sbuf, nl.add, 1.0, nl.multiply, piece[INPUT])
    nisa.activation(dst=added_sbuf, op=nl.copy, data=raised_sbuf, scale=_LOG_RAISED / RAISED)
    nisa.activation(dst=log_sbuf, op=nl.log, data=log_sbuf, bias=piece.constant(_FLOOR))
    subtract_on_gpsimd(log_sbuf, log_sbuf, added_sbuf)
    return log_sbuf, added_sbuf


def _log_of_complement(piece: Piece, lowered_sbuf: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    """B, of 0 lowered from the logarithm of a floor; and a tile that is free again."""
    log_sbuf, rounded_sbuf = piece.float32(), piece.float32()
    complement_sbuf = piece.float32()
    transform(lowered_sbuf, piece[INPUT], nl.greater_equal, 1.0, nl.multiply, LOWERED)
    nisa.activation(dst=complement_sbuf, op=nl.copy, data=piece[INPUT], scale=-1.0, bias=piece.constant(1.0))
    combine(rounded_sbuf, complement_sbuf, nl.subtract, 1.0, nl.add, piece[INPUT])
    nisa.activation(dst=log_sbuf, op=nl.log, data=complement_sbuf, bias=piece.constant(_FLOOR_OF_COMPLEMENT))
    subtract_on_gpsimd(log_sbuf, log_sbuf, rounded_sbuf)
    subtract_on_gpsimd(log_sbuf, log_sbuf, lowered_sbuf)
    return log_sbuf, rounded_sbuf
