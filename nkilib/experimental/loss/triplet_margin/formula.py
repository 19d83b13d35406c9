# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Triplet margin: a row's distance to a positive example should be smaller than to a negative one by the margin.

The loss is ``max(0, margin + d(a, p) - d(a, n))``, ``torch.nn.functional.triplet_margin_loss(a, p, n)``. With ``swap``
the smaller of d(a, n) and d(p, n) replaces d(a, n).

The gradient is computed from recomputed differences of the tensors, not from the tensors; so nothing cancels that does
not cancel in the reference too. The forward returns its coefficients, one for each row and distance, such as
1 / d(a, p) where the loss is not 0.
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
    """The factors of the derivatives of distances, for rows: float32 [partitions, rows] each.

    Attributes:
        of_first, of_second: the factors by distance, in the gradients of the first and the second tensor of the pair.
        row_scalars_sbuf: the per-row scalars by distance, if derivatives need them.
        biases_sbuf: the total offset of the terms of a gradient, by tensor.
    """

    of_first: list[nl.NkiTensor]
    of_second: list[nl.NkiTensor]
    row_scalars_sbuf: list[nl.NkiTensor]
    biases_sbuf: dict[int, nl.NkiTensor]

    def of(self, number: int, tensor: int) -> nl.NkiTensor:
        """Return the factor of a distance in the gradient of a tensor of its pair."""
        return (self.of_first if PAIRS[number][0] == tensor else self.of_second)[number]


@dataclass(frozen=True)
class Triplet:
    """The definition of the loss with its options.

    Attributes:
        norm: the norm of the differences.
        margin: a number.
        swap: whether the distance of the positive and the negative example counts too.
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
        """The statistics of the norm, for each pair."""
        return self.norm.statistics * len(pairs_of(self.swap))

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the needed tensors; see :func:`.pairs.needed_tensors`."""
        return needed_tensors(wanted, self.swap)

    def prepare(self, piece: Piece) -> Prepared:
        """Compute the differences of the pairs."""
        return tuple(_difference(piece, number) for number in range(len(pairs_of(self.swap))))

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add to the statistics of the norm, for each pair."""
        for number, difference_sbuf in enumerate(prepared):
            self.norm.accumulate(piece, number * len(self.norm.statistics), difference_sbuf)

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Return the loss of each row, and for each distance the signed factor of its derivative."""
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
        """Return the factors of rows: coefficients times upstream gradients."""
        pairs = pairs_of(self.swap)
        of_first = [product(upstream_sbuf, coefficient) for coefficient in coefficients_sbuf[: len(pairs)]]
        of_second = [scaled(factor, -1.0) for factor in of_first]
        factors = TripletFactors(of_first, of_second, coefficients_sbuf[len(pairs) :], {})
        for tensor in (ANCHOR, POSITIVE, NEGATIVE):
            numbers = [factors.of(number, tensor) for number, pair in enumerate(pairs) if tensor in pair]
            factors.biases_sbuf[tensor] = self._bias(numbers)
        return factors

    def _bias(self, factors_sbuf: list[nl.NkiTensor]) -> nl.NkiTensor:
        """Return the total offset of the terms of a gradient."""
        total_sbuf, *others = (scaled(factor_sbuf, self.norm.derivative_offset) for factor_sbuf in factors_sbuf)
        for factor_sbuf in others:
            total_sbuf = combined(total_sbuf, factor_sbuf, nl.add)
        return total_sbuf

    def gradients(self, piece: Piece, factors: TripletFactors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Compute each gradient as the sum of the derivatives of the distances that contain the tensor."""
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
    """Return the difference of a pair, rounded once.

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
    """Return the first distance's share in the gradient of a minimum: 1, 0, or 1/2 if both are equal, as in PyTorch."""
    is_less_sbuf = combined(first_sbuf, second_sbuf, nl.less)
    is_equal_sbuf = combined(first_sbuf, second_sbuf, nl.equal)
    return combined(is_less_sbuf, scaled(is_equal_sbuf, 0.5), nl.add)
