# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distances of rows, as in ``torch.nn.functional.pairwise_distance``: the p-norm of ``left - right + eps``.

A norm sums up a function of the differences and computes the distance from the sum. Its derivative with respect to the
difference is a tile times a per-row scalar. The norms for p = 2, 1 and infinity have instructions of their own; any
other p > 1 is :class:`Minkowski`, which uses logarithms and exponentials.

NKI does not document the precision of ``power``, and only GpSimd has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from nkilib.core.host.function_domains import LIMIT_OF_LOG
from nkilib.core.rows.arithmetic import multiply_on_gpsimd
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, constant, scaled
from nkilib.experimental.loss.skeletons.rowwise.definition import Maximum, Statistic, Sum
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.experimental.loss.skeletons.rowwise.row_scalars import (
    combined,
    compared,
    inverse_or_zero,
    root,
    square_root,
    take_logarithm,
)
from nkilib.nki import nisa, nl

# Distances from here on are infinite, where p has logarithms: a little below the limit, for the roundings.
_INFINITE = 0.999 * LIMIT_OF_LOG


@dataclass(frozen=True)
class Minkowski:
    """The p-th root of the sum of ``exp(p log |d|)``; derivative ``sign(d) exp((p - 1) log(|d| / distance))``.

    Logarithms are documented on [2^-64, 2^64]. Smaller magnitudes, also 0, count as the least of these, and larger ones
    make the distance infinite. Shares of the distance below 2^-64 count as 2^-64, too.

    Attributes:
        p: exponent of the norm.
        eps: added to differences.
        eps_sbuf: the same in each partition, float32 [128, 1].
    """

    p: float
    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    keeps_row_scalar = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add abs(d + eps)^p."""
        take_magnitude(difference_sbuf, difference_sbuf, self.eps)
        take_logarithm(difference_sbuf)
        piece.add_function(first, nl.exp, difference_sbuf, difference_sbuf, scale=self.p)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the root of the sum; infinity where a magnitude may have exceeded the limit of the logarithm."""
        root_sbuf = root(statistics_sbuf[0], self.p)
        beyond_sbuf = scaled(compared(root_sbuf, nl.greater_equal, _INFINITE), FLOAT32_HIGHEST)
        return combined(combined(root_sbuf, beyond_sbuf, nl.add), beyond_sbuf, nl.add)

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1, and 0 at a distance of 0, as in PyTorch."""
        return compared(distance_sbuf, nl.not_equal, 0.0)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return 1 / distance."""
        return inverse_or_zero(distance_sbuf)

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Compute sign(d) share^(p - 1), share = |d| / distance.

        Unlike separate powers of |d| and distance, it neither overflows nor vanishes.
        """
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
    """Write abs(d + eps) to ``dst_sbuf``."""
    nisa.tensor_scalar(dst=dst_sbuf, data=difference_sbuf, op0=nl.add, operand0=eps, op1=nl.abs, operand1=None)


class Norm(Protocol):
    """The interface of a p-norm."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of a row of differences."""

    @property
    def derivative_offset(self) -> float:
        """The number that is added to the tile of :meth:`derivative`."""

    @property
    def keeps_row_scalar(self) -> bool:
        """Whether :meth:`derivative` takes a scalar of its row."""

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add differences, which are overwritten, to the statistics ``first`` and following."""

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the distances of rows."""

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the factor of the derivative of each row."""

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scalar of each row that :meth:`derivative` takes if :attr:`keeps_row_scalar`."""

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Write the derivative without its factor over differences.

        Args:
            piece: the piece that the differences belong to.
            difference_sbuf: the differences, float32, of the size of the piece.
            number_sbuf: the result of :meth:`row_scalar` for the rows of the group.
        """


@dataclass(frozen=True)
class Euclidean:
    """The norm for p = 2: the root of the sum of squares; derivative d / distance.

    Attributes:
        eps: added to differences.
        eps_sbuf: the same in each partition, float32 [128, 1].
    """

    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    keeps_row_scalar = False

    @property
    def derivative_offset(self) -> float:
        """The number eps, which the differences do not contain yet."""
        return self.eps

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add (d + eps)^2."""
        piece.add_function(first, nl.square, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the root of the sum."""
        return square_root(statistics_sbuf[0])

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 / distance; 0 at a distance of 0, as in PyTorch."""
        return inverse_or_zero(distance_sbuf)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Leave d unchanged, because it is the derivative without its factor."""


@dataclass(frozen=True)
class Manhattan:
    """The norm for p = 1: the sum of magnitudes; derivative sign(d).

    Attributes:
        eps_sbuf: the number that is added to differences, in each partition, float32 [128, 1].
    """

    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    keeps_row_scalar = False

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add abs(d + eps)."""
        piece.add_function(first, nl.abs, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the sum."""
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return a factor of 1."""
        return constant(distance_sbuf, 1.0)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Compute the sign of d; 0 for 0."""
        bias_sbuf = self.eps_sbuf[0 : piece.shape[0], :]
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf, bias=bias_sbuf)


@dataclass(frozen=True)
class CountOfMaximum:
    """The number of occurrences of the largest number of a row, which is the previous statistic."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Add up the counts of the runs whose maximum is the maximum of the row."""
        counts_sbuf = runs_sbuf[-1]
        chosen_sbuf = nl.ndarray(counts_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=chosen_sbuf,
            data=runs_sbuf[-2],
            op0=nl.equal,
            operand0=earlier_sbuf[-1],
            op1=nl.multiply,
            operand1=counts_sbuf,
        )
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=chosen_sbuf, axis=1)


@dataclass(frozen=True)
class Chebyshev:
    """The norm for p = infinity: the largest magnitude; derivative sign(d) at the largest magnitude, shared among ties.

    Attributes:
        eps: added to differences.
    """

    eps: float
    statistics = (Maximum(), CountOfMaximum())
    derivative_offset = 0.0
    keeps_row_scalar = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Take the largest abs(d + eps) of each run or row, and count how often it occurs."""
        take_magnitude(difference_sbuf, difference_sbuf, self.eps)
        piece.take_maximum(first, difference_sbuf)
        piece.count_equal(first + 1, difference_sbuf, piece.numbers_sbuf[first])

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the maximum."""
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 / the number of elements that share the gradient."""
        return inverse_or_zero(statistics_sbuf[1])

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Compute sign(d) where abs(d) is the distance, else 0."""
        if number_sbuf is None:
            raise TypeError("the derivative of a maximum takes the distance")
        magnitude_sbuf = piece.float32()
        nisa.tensor_scalar(dst=difference_sbuf, data=difference_sbuf, op0=nl.add, operand0=self.eps)
        nisa.tensor_scalar(dst=magnitude_sbuf, data=difference_sbuf, op0=nl.abs, operand0=None)
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf)
        nisa.tensor_tensor(
            dst=piece.by_row(magnitude_sbuf),
            data1=piece.by_row(magnitude_sbuf),
            data2=piece.of_elements(number_sbuf),
            op=nl.equal,
        )
        nisa.tensor_tensor(dst=difference_sbuf, data1=difference_sbuf, data2=magnitude_sbuf, op=nl.multiply)


def norm_of(p: float, eps: float) -> Norm:
    """Return the norm for a p of at least 1, with its constants."""
    if p == inf:
        return Chebyshev(eps)
    eps_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=eps_sbuf, value=eps)
    if p == 1.0:
        return Manhattan(eps_sbuf)
    return Euclidean(eps, eps_sbuf) if p == 2.0 else Minkowski(p, eps, eps_sbuf)
