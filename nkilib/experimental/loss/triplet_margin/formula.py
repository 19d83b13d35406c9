# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The triplet margin loss of a row: its distance to a positive example should be less than to a negative one
by a margin.

With anchor a, positive example p, negative example n and distance d, the loss is
``max(0, margin + d(a, p) - d(a, n))``, ``torch.nn.functional.triplet_margin_loss(a, p, n)``. With ``swap``
the smaller of d(a, n) and d(p, n) replaces d(a, n).

The gradients are computed from differences of the tensors, which the backward recomputes, not from products
with the tensors; so nothing cancels that does not cancel in the reference too. The forward returns the
coefficients of the gradients, one for each row and distance, such as 1 / d(a, p) where the loss is not 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import difference
from nkilib.core.rows.tiles import product, scaled
from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.combination import Term, combine
from nkilib.experimental.loss.skeletons.rowwise.definition import RowResults, Statistic
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.experimental.loss.skeletons.rowwise.row_scalars import at_least_zero, combined, compared, shifted
from nkilib.experimental.loss.triplet_margin.host.pairs import (
    ANCHOR,
    NEGATIVE,
    PAIRS,
    POSITIVE,
    backward_tiles,
    forward_tiles,
    needed_pairs,
    needed_tensors,
    pairs_of,
)
from nkilib.experimental.loss.triplet_margin.norm import Norm
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class TripletFactors:
    """The factors by which the derivatives of distances are multiplied, for each row: float32 [partitions, rows]
    each.

    A distance is that of a pair of tensors, see :mod:`.host.pairs`.

    Attributes:
        of_first, of_second: by the number of the distance, the factor of its derivative in the gradient of the
            first and of the second tensor of its pair.
        row_scalars_sbuf: by the number of the distance, the result of :meth:`.norm.Norm.row_scalar`; empty if
            derivatives need none.
        biases_sbuf: by tensor, the sum of offset * factor of the terms of its gradient.
    """

    of_first: list[nl.NkiTensor]
    of_second: list[nl.NkiTensor]
    row_scalars_sbuf: list[nl.NkiTensor]
    biases_sbuf: dict[int, nl.NkiTensor]

    def of(self, number: int, tensor: int) -> nl.NkiTensor:
        """Return the factor of distance ``number`` in the gradient of a tensor of its pair."""
        return (self.of_first if PAIRS[number][0] == tensor else self.of_second)[number]


@dataclass(frozen=True)
class Triplet:
    """The definition of the loss with its options.

    Attributes:
        norm: the norm that gives the distances.
        margin: the amount by which the distance to the negative example should exceed that to the positive one.
        swap: whether d(positive, negative) replaces d(anchor, negative) where it is smaller.
    """

    norm: Norm
    margin: float
    swap: bool

    @property
    def forward_tiles(self) -> int:
        """The float32 tiles of a piece; see :func:`.pairs.forward_tiles`."""
        return forward_tiles(self.swap)

    @property
    def backward_tiles(self) -> int:
        """Half of the float32 tiles of a piece; see :func:`.pairs.backward_tiles`."""
        return backward_tiles(self.swap)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that the norm needs, for each pair of tensors with a distance."""
        return self.norm.statistics * len(pairs_of(self.swap))

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the needed tensors; see :func:`.pairs.needed_tensors`."""
        return needed_tensors(wanted, self.swap)

    def prepare(self, piece: Piece) -> Prepared:
        """Compute the difference of each pair of tensors with a distance."""
        return tuple(_difference(piece, number) for number in range(len(pairs_of(self.swap))))

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the differences of each pair to the statistics of the norm."""
        for number, difference_sbuf in enumerate(prepared):
            self.norm.accumulate(piece, number * len(self.norm.statistics), difference_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Return the loss of each row, and as coefficients the signed factor of each distance's derivative and, if
        the norm keeps them, the row scalars.
        """
        size = len(self.norm.statistics)
        parts = [statistics_sbuf[start : start + size] for start in range(0, len(statistics_sbuf), size)]
        distances = [self.norm.distance(part) for part in parts]
        factors = [self.norm.row_factor(*pair) for pair in zip(distances, parts, strict=True)]
        farther_sbuf = combined(distances[1], distances[2], nl.minimum) if self.swap else distances[1]
        # margin first, as PyTorch has it
        open_sbuf = combined(shifted(distances[0], self.margin), farther_sbuf, nl.subtract)
        is_open_sbuf = compared(open_sbuf, nl.greater_equal, 0.0)
        shut_sbuf = scaled(is_open_sbuf, -1.0)
        signed = [product(factors[0], is_open_sbuf), product(factors[1], shut_sbuf)]
        if self.swap:
            share_sbuf = _share_of_first(distances[1], distances[2])
            signed[1] = product(signed[1], share_sbuf)
            rest_sbuf = shifted(scaled(share_sbuf, -1.0), 1.0)
            signed.append(product(product(factors[2], shut_sbuf), rest_sbuf))
        kept = [self.norm.row_scalar(distance) for distance in distances] if self.norm.keeps_row_scalar else []
        return RowResults(at_least_zero(open_sbuf), [*signed, *kept])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> TripletFactors:
        """Return the factors of the gradients of each row: coefficients times upstream gradients."""
        pairs = pairs_of(self.swap)
        of_first = [product(upstream_sbuf, coefficient) for coefficient in coefficients_sbuf[: len(pairs)]]
        of_second = [scaled(factor, -1.0) for factor in of_first]
        factors = TripletFactors(of_first, of_second, coefficients_sbuf[len(pairs) :], {})
        for tensor in (ANCHOR, POSITIVE, NEGATIVE):
            numbers = [factors.of(number, tensor) for number, pair in enumerate(pairs) if tensor in pair]
            factors.biases_sbuf[tensor] = self._bias(numbers)
        return factors

    def _bias(self, factors_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the sum of offset * factor over the terms of a gradient, where the offset is that of the norm's
        derivative.
        """
        total_sbuf, *others = (scaled(factor_sbuf, self.norm.derivative_offset) for factor_sbuf in factors_sbuf)
        for factor_sbuf in others:
            total_sbuf = combined(total_sbuf, factor_sbuf, nl.add)
        return total_sbuf

    def gradients(self, piece: Piece, factors: TripletFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Compute the gradient of each tensor, the sum of the derivatives of its distances times their factors."""
        offset, derivatives = self.norm.derivative_offset, {}
        for number in needed_pairs(tuple(dst_sbuf), self.swap):
            derivatives[number] = _difference(piece, number)
            number_sbuf = factors.row_scalars_sbuf[number] if self.norm.keeps_row_scalar else None
            self.norm.derivative(piece, derivatives[number], number_sbuf)
        for tensor, gradient_sbuf in dst_sbuf.items():
            terms = [
                Term(derivatives[number], factors.of(number, tensor), offset)
                for number, pair in enumerate(pairs_of(self.swap))
                if tensor in pair
            ]
            combine(piece, gradient_sbuf, terms, factors.biases_sbuf[tensor] if offset else None)


def _difference(piece: Piece, number: int) -> nl.NkiTensor:
    """Return the difference of the two tensors of pair ``number``, rounded once.

    GpSimd computes the difference of the second pair, because Vector alone would take longer than the loads.
    """
    first, second = (piece.tensors[tensor] for tensor in PAIRS[number])
    difference_sbuf = piece.float32()
    if number == 1:
        nisa.tensor_tensor(dst=difference_sbuf, data1=first, data2=second, op=nl.subtract, engine=nisa.engine.gpsimd)
    else:
        difference(difference_sbuf, first, second)
    return difference_sbuf


def _share_of_first(first_sbuf: nl.NkiTensor, second_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Return the share of the first distance in the gradient of the smaller of two: 1, 0, or 1/2 if both are
    equal.

    PyTorch has the same shares.
    """
    is_less_sbuf = combined(first_sbuf, second_sbuf, nl.less)
    is_equal_sbuf = combined(first_sbuf, second_sbuf, nl.equal)
    return combined(is_less_sbuf, scaled(is_equal_sbuf, 0.5), nl.add)
