"""Distances of rows, as ``torch.nn.functional.pairwise_distance`` has them: the p-norm of ``left - right + eps``.

A norm sums up a function of the differences, makes the distance of the sum, and has a derivative by the difference: a
tile times a number a row. p = 2, 1 and infinity are here. Other p would take ``power`` of each element, whose precision
NKI documents nowhere, and which GpSimd alone has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from nkilib.core.rows.tiles import constant
from nkilib.experimental.loss.rowwise.kind import Maximum, Statistic, Sum
from nkilib.experimental.loss.rowwise.piece import Piece
from nkilib.experimental.loss.rowwise.row_numbers import inverse_or_zero, square_root
from nkilib.nki import nisa, nl

NORMS = (1.0, 2.0, inf)


class Norm(Protocol):
    """A p-norm."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Of a row of differences."""

    @property
    def derivative_offset(self) -> float:
        """What is added to the tile of :meth:`derivative`."""

    @property
    def needs_distance(self) -> bool:
        """Whether :meth:`derivative` does."""

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Hand on the statistics, whose numbers are ``first`` and the following, of differences, which are lost."""

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Of rows."""

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """What the derivative of a row is multiplied by."""

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, distance_sbuf: nl.NkiTensor | None) -> None:
        """Write the derivative without its factor over differences.

        Args:
            piece: whose.
            difference_sbuf: float32, of its size.
            distance_sbuf: of the rows of the group, where it is needed.
        """


@dataclass(frozen=True)
class Euclidean:
    """p = 2: the root of the sum of squares; d / distance.

    Attributes:
        eps: added to differences.
        eps_sbuf: the same in each partition, float32 [128, 1].
    """

    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    needs_distance = False

    @property
    def derivative_offset(self) -> float:
        """The difference itself has no eps yet."""
        return self.eps

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """(d + eps)^2."""
        piece.add_function(first, nl.square, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """The root of the sum."""
        return square_root(statistics_sbuf[0])

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """1 / distance; 0 at a distance of 0, as PyTorch has it."""
        return inverse_or_zero(distance_sbuf)

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, distance_sbuf: nl.NkiTensor | None) -> None:
        """d, which is there."""


@dataclass(frozen=True)
class Manhattan:
    """p = 1: the sum of magnitudes; the sign of d.

    Attributes:
        eps_sbuf: what is added to differences in each partition, float32 [128, 1].
    """

    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    needs_distance = False

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """abs(d + eps)."""
        piece.add_function(first, nl.abs, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """The sum."""
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """1."""
        return constant(distance_sbuf, 1.0)

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, distance_sbuf: nl.NkiTensor | None) -> None:
        """The sign; 0 of 0."""
        bias_sbuf = self.eps_sbuf[0 : piece.shape[0], :]
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf, bias=bias_sbuf)


@dataclass(frozen=True)
class CountOfMaximum:
    """How often the largest number of a row is there, which the statistic before is."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], made_sbuf: list[nl.NkiTensor]) -> None:
        """The counts of those runs that have it."""
        counts_sbuf = runs_sbuf[-1]
        chosen_sbuf = nl.ndarray(counts_sbuf.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.scalar_tensor_tensor(
            dst=chosen_sbuf,
            data=runs_sbuf[-2],
            op0=nl.equal,
            operand0=made_sbuf[-1],
            op1=nl.multiply,
            operand1=counts_sbuf,
        )
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=chosen_sbuf, axis=1)


@dataclass(frozen=True)
class Chebyshev:
    """p = infinity: the largest magnitude; the sign of d where that is, shared among all such.

    Attributes:
        eps: added to differences.
    """

    eps: float
    statistics = (Maximum(), CountOfMaximum())
    derivative_offset = 0.0
    needs_distance = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """The largest abs(d + eps) of each run or row, and how often it is there."""
        nisa.tensor_scalar(
            dst=difference_sbuf, data=difference_sbuf, op0=nl.add, operand0=self.eps, op1=nl.abs, operand1=None
        )
        piece.take_maximum(first, difference_sbuf)
        piece.count_equal(first + 1, difference_sbuf, piece.numbers_sbuf[first])

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """The maximum."""
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """1 / how many elements share the gradient."""
        return inverse_or_zero(statistics_sbuf[1])

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, distance_sbuf: nl.NkiTensor | None) -> None:
        """sign(d) where abs(d) is the distance, else 0."""
        if distance_sbuf is None:
            raise TypeError("the derivative of a maximum needs it")
        magnitude_sbuf = piece.float32()
        nisa.tensor_scalar(dst=difference_sbuf, data=difference_sbuf, op0=nl.add, operand0=self.eps)
        nisa.tensor_scalar(dst=magnitude_sbuf, data=difference_sbuf, op0=nl.abs, operand0=None)
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf)
        nisa.tensor_tensor(
            dst=piece.by_row(magnitude_sbuf),
            data1=piece.by_row(magnitude_sbuf),
            data2=piece.of_elements(distance_sbuf),
            op=nl.equal,
        )
        nisa.tensor_tensor(dst=difference_sbuf, data1=difference_sbuf, data2=magnitude_sbuf, op=nl.multiply)


def norm_of(p: float, eps: float) -> Euclidean | Manhattan | Chebyshev:
    """The norm with its constants."""
    if p == inf:
        return Chebyshev(eps)
    eps_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=eps_sbuf, value=eps)
    return Euclidean(eps, eps_sbuf) if p == 2.0 else Manhattan(eps_sbuf)
