"""The p-norm of any p > 1 that has no instructions of its own, by logarithms and exponentials.

NKI documents the precision of ``power`` nowhere, and GpSimd alone has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.rows.arithmetic import multiply_on_gpsimd
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, scaled
from nkilib.experimental.loss.rowwise.kind import Sum
from nkilib.experimental.loss.rowwise.piece import Piece
from nkilib.experimental.loss.rowwise.row_numbers import combined, compared, inverse_or_zero, root, take_logarithm
from nkilib.nki import nisa, nl

# Distances from here on are infinite, where p has logarithms: a little below the limit, for the roundings.
_INFINITE = 0.999 * LIMIT_OF_LOG


@dataclass(frozen=True)
class Minkowski:
    """The p-th root of the sum of ``exp(p log |d|)``; ``sign(d) exp((p - 1) log(|d| / distance))``.

    Logarithms are documented on [2^-64, 2^64]: smaller magnitudes, also 0, count as the least of it, and larger ones
    make the distance infinite. Shares of the distance below 2^-64 count as that, too.

    Attributes:
        p: of the norm.
        eps: added to differences.
        eps_sbuf: the same in each partition, float32 [128, 1].
    """

    p: float
    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    keeps_row_number = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """abs(d + eps)^p."""
        take_magnitude(difference_sbuf, difference_sbuf, self.eps)
        take_logarithm(difference_sbuf)
        piece.add_function(first, nl.exp, difference_sbuf, difference_sbuf, scale=self.p)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """The root of the sum; infinity where a magnitude may have been larger than what it counted as."""
        root_sbuf = root(statistics_sbuf[0], self.p)
        beyond_sbuf = scaled(compared(root_sbuf, nl.greater_equal, _INFINITE), FLOAT32_HIGHEST)
        return combined(combined(root_sbuf, beyond_sbuf, nl.add), beyond_sbuf, nl.add)

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """1, and 0 at a distance of 0, as PyTorch has it."""
        return compared(distance_sbuf, nl.not_equal, 0.0)

    def row_number(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """1 / distance."""
        return inverse_or_zero(distance_sbuf)

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Of what an element has of the distance, which neither overflows nor vanishes as powers of each would."""
        if number_sbuf is None:
            raise TypeError("the derivative of a norm takes 1 / distance")
        share_sbuf, bias_sbuf = piece.float32(), self.eps_sbuf[0 : piece.shape[0], :]
        take_magnitude(share_sbuf, difference_sbuf, self.eps)
        nisa.tensor_tensor(
            dst=piece.by_row(share_sbuf),
            data1=piece.by_row(share_sbuf),
            data2=piece.of_elements(number_sbuf),
            op=nl.multiply,
        )
        take_logarithm(share_sbuf)
        nisa.activation(dst=share_sbuf, op=nl.exp, data=share_sbuf, scale=self.p - 1.0)
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf, bias=bias_sbuf)
        multiply_on_gpsimd(difference_sbuf, difference_sbuf, share_sbuf)


def take_magnitude(dst_sbuf: nl.NkiTensor, difference_sbuf: nl.NkiTensor, eps: float) -> None:
    """abs(d + eps)."""
    nisa.tensor_scalar(dst=dst_sbuf, data=difference_sbuf, op0=nl.add, operand0=eps, op1=nl.abs, operand1=None)
