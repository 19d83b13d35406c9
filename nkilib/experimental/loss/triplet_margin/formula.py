# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Triplet margin: a row's distance to a positive example, less that to a negative one, may be -margin at most.

``max(0, margin + d(a, p) - d(a, n))``: ``torch.nn.functional.triplet_margin_loss(a, p, n)``. With ``swap`` d(a, n) is
the smaller of it and d(p, n).

The gradient is made of differences of the tensors again, not of the tensors: so nothing cancels but what cancels in the
truth. Its coefficients, such as 1 / d(a, p) where the loss is not 0, are the forward's, one a row and distance.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.rows.arithmetic import difference
from nkilib.core.rows.tiles import product, scaled
from nkilib.experimental.loss.skeletons.elementwise.kind import Prepared
from nkilib.experimental.loss.skeletons.rowwise.combination import Term, combine
from nkilib.experimental.loss.skeletons.rowwise.kind import RowResults, Statistic
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.experimental.loss.skeletons.rowwise.row_numbers import at_least_zero, combined, compared, shifted
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
    """What derivatives of distances are multiplied by, of rows: float32 [partitions, rows] each.

    Attributes:
        of_first, of_second: by distance, in the gradients of the first and the second tensor of the pair.
        row_numbers_sbuf: by distance, where derivatives take them.
        biases_sbuf: by tensor, what offsets of the terms of its gradient come to.
    """

    of_first: list[nl.NkiTensor]
    of_second: list[nl.NkiTensor]
    row_numbers_sbuf: list[nl.NkiTensor]
    biases_sbuf: dict[int, nl.NkiTensor]

    def of(self, number: int, tensor: int) -> nl.NkiTensor:
        """Of a distance, in the gradient of a tensor of its pair."""
        return (self.of_first if PAIRS[number][0] == tensor else self.of_second)[number]


@dataclass(frozen=True)
class Triplet:
    """The loss with its options.

    Attributes:
        norm: of differences.
        margin: a number.
        swap: also take the distance of the positive and the negative example.
    """

    norm: Norm
    margin: float
    swap: bool

    @property
    def forward_tiles(self) -> int:
        """As :func:`.pairs.forward_tiles`."""
        return forward_tiles(self.swap)

    @property
    def backward_tiles(self) -> int:
        """As :func:`.pairs.backward_tiles`."""
        return backward_tiles(self.swap)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Those of the norm, of each pair."""
        return self.norm.statistics * len(pairs_of(self.swap))

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """As :func:`.pairs.needed_tensors`."""
        return needed_tensors(wanted, self.swap)

    def prepare(self, piece: Piece) -> Prepared:
        """The differences."""
        return tuple(_difference(piece, number) for number in range(len(pairs_of(self.swap))))

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """As the norm has it."""
        for number, difference_sbuf in enumerate(prepared):
            self.norm.accumulate(piece, number * len(self.norm.statistics), difference_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Losses of rows; of each distance the signed number that its derivative is multiplied by."""
        each = len(self.norm.statistics)
        parts = [statistics_sbuf[start : start + each] for start in range(0, len(statistics_sbuf), each)]
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
        kept = [self.norm.row_number(each) for each in distances] if self.norm.keeps_row_number else []
        return RowResults(at_least_zero(open_sbuf), [*signed, *kept])

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> TripletFactors:
        """Of rows: coefficients times upstream gradients."""
        pairs = pairs_of(self.swap)
        of_first = [product(upstream_sbuf, each) for each in coefficients_sbuf[: len(pairs)]]
        of_second = [scaled(each, -1.0) for each in of_first]
        factors = TripletFactors(of_first, of_second, coefficients_sbuf[len(pairs) :], {})
        for tensor in (ANCHOR, POSITIVE, NEGATIVE):
            numbers = [factors.of(number, tensor) for number, pair in enumerate(pairs) if tensor in pair]
            factors.biases_sbuf[tensor] = self._bias(numbers)
        return factors

    def _bias(self, factors_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """What offsets of the terms of a gradient come to."""
        total_sbuf, *rest = (scaled(each, self.norm.derivative_offset) for each in factors_sbuf)
        for each in rest:
            total_sbuf = combined(total_sbuf, each, nl.add)
        return total_sbuf

    def gradients(self, piece: Piece, factors: TripletFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Sums of derivatives of the distances that a tensor is in."""
        offset, derivatives = self.norm.derivative_offset, {}
        for number in needed_pairs(tuple(dst_sbuf), self.swap):
            derivatives[number] = _difference(piece, number)
            number_sbuf = factors.row_numbers_sbuf[number] if self.norm.keeps_row_number else None
            self.norm.derivative(piece, derivatives[number], number_sbuf)
        for tensor, gradient_sbuf in dst_sbuf.items():
            terms = [
                Term(derivatives[number], factors.of(number, tensor), offset)
                for number, pair in enumerate(pairs_of(self.swap))
                if tensor in pair
            ]
            combine(piece, gradient_sbuf, terms, factors.biases_sbuf[tensor] if offset else None)


def _difference(piece: Piece, number: int) -> nl.NkiTensor:
    """Of a pair, rounded once. The second one is GpSimd's: Vector alone would take longer than the loads."""
    first, second = (piece.tensors[tensor] for tensor in PAIRS[number])
    difference_sbuf = piece.float32()
    if number == 1:
        nisa.tensor_tensor(dst=difference_sbuf, data1=first, data2=second, op=nl.subtract, engine=nisa.engine.gpsimd)
    else:
        difference(difference_sbuf, first, second)
    return difference_sbuf


def _share_of_first(first_sbuf: nl.NkiTensor, second_sbuf: nl.NkiTensor) -> nl.NkiTensor:
    """Of the gradient of a minimum: 1, 0, or 1/2 where both are equal, as PyTorch has it."""
    is_less_sbuf = combined(first_sbuf, second_sbuf, nl.less)
    is_equal_sbuf = combined(first_sbuf, second_sbuf, nl.equal)
    return combined(is_less_sbuf, scaled(is_equal_sbuf, 0.5), nl.add)
