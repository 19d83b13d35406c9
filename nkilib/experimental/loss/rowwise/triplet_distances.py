# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The distances that the triplet margin loss compares: the pairs of tensors, and the p-norms of the differences of
rows.

A pair (:data:`PAIRS`, :func:`pairs_of`) is two of the tensors :data:`ANCHOR`, :data:`POSITIVE` and :data:`NEGATIVE`;
tensors and pairs are identified by numbers. :func:`needed_pairs` and :func:`needed_tensors` return what the requested
gradients need. A *piece* is the part of a tile of rows that is processed at a time.

A distance is the p-norm of a row of d + eps with the differences d = left - right, as in
``torch.nn.functional.pairwise_distance``. A :class:`Norm` accumulates statistics of a row, such as the sum of
(d + eps)^2, and computes the distance from them. The derivative of the distance with respect to an element of d is the
product of two parts: an elementwise part (:meth:`Norm.derivative`, :attr:`Norm.derivative_offset`) and a factor of the
row (:meth:`Norm.row_factor`). :func:`norm_of` chooses the norm: p = 2, 1 and infinity have classes of their own, and
any other p > 1 is :class:`Minkowski`, which uses logarithms and exponentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Protocol

from nkilib.core.arithmetic import multiply_on_gpsimd
from nkilib.core.hardware import LIMIT_OF_LOG
from nkilib.core.rows.tiles import FLOAT32_HIGHEST, constant, scaled
from nkilib.experimental.loss.skeletons.rowwise.definition import (
    Maximum,
    Statistic,
    Sum,
    combined,
    compared,
    inverse_or_zero,
    root,
    square_root,
    take_logarithm,
)
from nkilib.experimental.loss.skeletons.rowwise.stream import Piece
from nkilib.nki import nisa, nl

# The numbers of the tensors.
ANCHOR, POSITIVE, NEGATIVE = 0, 1, 2
# Tensors whose distance is taken, in order; the last one for ``swap`` alone.
PAIRS: Final = ((ANCHOR, POSITIVE), (ANCHOR, NEGATIVE), (POSITIVE, NEGATIVE))
# Distances from here on are infinite, where p has logarithms: a little below the limit, for the roundings.
_INFINITE = 0.999 * LIMIT_OF_LOG


def take_magnitude(dst_sbuf: nl.NkiTensor, difference_sbuf: nl.NkiTensor, eps: float) -> None:
    """Write |d + eps| to ``dst_sbuf``, with the differences d from ``difference_sbuf``."""
    nisa.tensor_scalar(dst=dst_sbuf, data=difference_sbuf, op0=nl.add, operand0=eps, op1=nl.abs, operand1=None)


class Norm(Protocol):
    """The interface of a p-norm of rows of differences d: the *distance* is the norm of d + eps.

    The derivative of the distance with respect to an element of d is (result of :meth:`derivative` +
    :attr:`derivative_offset`) * :meth:`row_factor`.
    """

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that are accumulated over a row of differences."""

    @property
    def derivative_offset(self) -> float:
        """The number that the caller must add to each result of :meth:`derivative`."""

    @property
    def keeps_row_scalar(self) -> bool:
        """Whether :meth:`derivative` needs :meth:`row_scalar`, which the forward then stores for the backward."""

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add a tile of differences to the statistics; the tile is overwritten.

        Args:
            piece: the piece that the differences belong to.
            first: the index of this norm's first statistic in ``piece.numbers_sbuf``.
            difference_sbuf: the differences d, float32 [partitions, elements].
        """

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the distance of each row from the row's statistics, float32 [partitions, rows]."""

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the row factor of the derivative, float32 [partitions, rows]."""

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the scalar of each row for :meth:`derivative`, float32 [partitions, rows]; unused if not
        :attr:`keeps_row_scalar`.
        """

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Replace each difference by the elementwise part of its derivative.

        Args:
            piece: the piece that the differences belong to.
            difference_sbuf: the differences d, float32 [partitions, elements].
            number_sbuf: the result of :meth:`row_scalar`; None if not :attr:`keeps_row_scalar`.
        """


@dataclass(frozen=True)
class Euclidean:
    """The norm for p = 2, the root of the sum of (d + eps)^2; its derivative is (d + eps) / distance.

    Attributes:
        eps: the number that is added to each difference d.
        eps_sbuf: eps in each partition, float32 [128, 1].
    """

    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    keeps_row_scalar = False

    @property
    def derivative_offset(self) -> float:
        """The number eps, because :meth:`derivative` returns d, and the elementwise part is d + eps."""
        return self.eps

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add (d + eps)^2 to the sum of each row."""
        piece.add_function(first, nl.square, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        return square_root(statistics_sbuf[0])

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 / distance; 0 at a distance of 0, as in PyTorch."""
        return inverse_or_zero(distance_sbuf)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance, which :meth:`derivative` does not use."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Do nothing: the derivative is (d + eps) / distance, and eps and 1 / distance are applied later."""


@dataclass(frozen=True)
class Manhattan:
    """The norm for p = 1, the sum of |d + eps|; its derivative is sign(d + eps).

    Attributes:
        eps_sbuf: the number eps in each partition, float32 [128, 1].
    """

    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    keeps_row_scalar = False

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add |d + eps| to the sum of each row."""
        piece.add_function(first, nl.abs, difference_sbuf, difference_sbuf, self.eps_sbuf)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 for each row."""
        return constant(distance_sbuf, 1.0)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance, which :meth:`derivative` does not use."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Replace d by the sign of d + eps; the sign of 0 is 0."""
        bias_sbuf = self.eps_sbuf[0 : piece.shape[0], :]
        nisa.activation(dst=difference_sbuf, op=nl.sign, data=difference_sbuf, bias=bias_sbuf)


@dataclass(frozen=True)
class CountOfMaximum:
    """The statistic that counts how often the maximum of a row occurs; a :class:`Maximum` must precede it."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Add up the counts of the runs (ranges of columns of a row) whose maximum is also that of the whole row."""
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
    """The norm for p = infinity: the largest |d + eps|.

    Its derivative is sign(d + eps) / count at the elements with the largest |d + eps|, where count is the number of
    these elements, and 0 elsewhere.

    Attributes:
        eps: the number that is added to each difference d.
    """

    eps: float
    statistics = (Maximum(), CountOfMaximum())
    derivative_offset = 0.0
    keeps_row_scalar = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Compute the largest |d + eps| and the number of its occurrences, for each short row or each run of a long
        row.
        """
        take_magnitude(difference_sbuf, difference_sbuf, self.eps)
        piece.take_maximum(first, difference_sbuf)
        piece.count_equal(first + 1, difference_sbuf, piece.numbers_sbuf[first])

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the largest magnitude of each row."""
        return statistics_sbuf[0]

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 over the number of elements that have the largest magnitude."""
        return inverse_or_zero(statistics_sbuf[1])

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return the distance, with which :meth:`derivative` compares the magnitudes."""
        return distance_sbuf

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Replace d by sign(d + eps) where |d + eps| is the distance, else by 0."""
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


@dataclass(frozen=True)
class Minkowski:
    """The norm for any other p > 1: the p-th root of the sum of ``exp(p log |d + eps|)``.

    Its derivative is ``sign(d + eps) exp((p - 1) log(|d + eps| / distance))``. NKI documents logarithms on [2^-64,
    2^64]. Therefore |d + eps| and |d + eps| / distance count as 2^-64 where they are smaller, and |d + eps| above 2^64
    makes the distance infinite. The instruction ``power`` is not used: NKI does not document its precision.

    Attributes:
        p: the exponent of the norm.
        eps: the number that is added to each difference d.
        eps_sbuf: eps in each partition, float32 [128, 1].
    """

    p: float
    eps: float
    eps_sbuf: nl.NkiTensor
    statistics = (Sum(),)
    derivative_offset = 0.0
    keeps_row_scalar = True

    def accumulate(self, piece: Piece, first: int, difference_sbuf: nl.NkiTensor) -> None:
        """Add |d + eps|^p to the sum of each row."""
        take_magnitude(difference_sbuf, difference_sbuf, self.eps)
        take_logarithm(difference_sbuf)
        piece.add_function(first, nl.exp, difference_sbuf, difference_sbuf, scale=self.p)

    def distance(self, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the p-th root of the sum of each row; infinity where the root is 0.999 * 2^64 or more."""
        root_sbuf = root(statistics_sbuf[0], self.p)
        beyond_sbuf = scaled(compared(root_sbuf, nl.greater_equal, _INFINITE), FLOAT32_HIGHEST)
        return combined(combined(root_sbuf, beyond_sbuf, nl.add), beyond_sbuf, nl.add)

    def row_factor(self, distance_sbuf: nl.NkiTensor, statistics_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return 1 for each row; 0 where the distance is 0, as in PyTorch."""
        return compared(distance_sbuf, nl.not_equal, 0.0)

    def row_scalar(self, distance_sbuf: nl.NkiTensor) -> nl.NkiTensor:
        """Return 1 / distance, which multiplies the magnitudes in :meth:`derivative`."""
        return inverse_or_zero(distance_sbuf)

    def derivative(self, piece: Piece, difference_sbuf: nl.NkiTensor, number_sbuf: nl.NkiTensor | None) -> None:
        """Replace d by sign(d + eps) (|d + eps| / distance)^(p - 1).

        The power of the quotient, unlike separate powers of magnitude and distance, neither overflows nor vanishes.
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


def norm_of(p: float, eps: float) -> Norm:
    """Return the norm for an exponent p of at least 1, also infinity; allocate its tile of eps, if it has one."""
    if p == inf:
        return Chebyshev(eps)
    eps_sbuf = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=eps_sbuf, value=eps)
    if p == 1.0:
        return Manhattan(eps_sbuf)
    return Euclidean(eps, eps_sbuf) if p == 2.0 else Minkowski(p, eps, eps_sbuf)


def pairs_of(swap: bool) -> tuple[tuple[int, int], ...]:
    """Return the pairs of tensors, by their numbers, whose distances the loss uses: (anchor, positive), (anchor,
    negative), and with ``swap`` (positive, negative).
    """
    return PAIRS if swap else PAIRS[:2]


def needed_pairs(wanted: tuple[int, ...], swap: bool) -> list[int]:
    """Return the numbers of the pairs that contain one of ``wanted``, the tensors whose gradients are requested."""
    return [number for number, pair in enumerate(pairs_of(swap)) if set(pair) & set(wanted)]


def needed_tensors(wanted: tuple[int, ...], swap: bool) -> tuple[int, ...]:
    """Return the numbers of all tensors that occur in :func:`needed_pairs`, in rising order."""
    return tuple(sorted({tensor for number in needed_pairs(wanted, swap) for tensor in PAIRS[number]}))


def num_coefficients(p: float, swap: bool) -> int:
    """Return the number of coefficients that the forward keeps for each row.

    There is one coefficient for each distance, and for a p other than 1 and 2 one row scalar for each distance.
    """
    return len(pairs_of(swap)) * (1 if p in (1.0, 2.0) else 2)


def forward_tiles(swap: bool) -> int:
    """Return the number of float32 tiles that a piece needs in the forward: one for the difference of each pair."""
    return len(pairs_of(swap))


def backward_tiles(swap: bool) -> int:
    """Return the argument ``scratch_tiles`` of the backward, which allocates twice as many float32 tiles.

    One piece may use all: up to two for each pair of tensors, and two for each gradient that is a sum of two terms.
    """
    return 6 if swap else 4
