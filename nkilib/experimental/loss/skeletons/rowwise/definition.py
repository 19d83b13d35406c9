# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of a row-wise loss definition: a few functions of tiles.

The skeleton streams tensors [N, D] through SBUF, tile by tile, and cuts each tile into pieces. A loss definition
computes statistics of the rows of a piece, float32 sums or maxima; from the statistics of whole rows it computes the
losses, and coefficients; and it computes gradients of a piece from coefficients and the tensors. The skeleton handles
streams, sums, upstream gradients and stores (:mod:`.forward`, :mod:`.backward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from nkilib.experimental.loss.skeletons.elementwise.definition import Prepared
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.nki import nisa, nl

# The factors of the gradients, a type of each loss definition.
Factors = TypeVar("Factors")


class Statistic(Protocol):
    """A per-row scalar, combined from one value per run of the row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Combine the values of runs.

        Args:
            dst_sbuf: the result, float32 [partitions, 1].
            runs_sbuf: the values of each statistic up to this one, float32 [partitions, runs].
            earlier_sbuf: the results of the earlier statistics, [partitions, 1].
        """


@dataclass(frozen=True)
class Sum:
    """The sum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Compute the sum of the runs."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class Maximum:
    """The maximum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Compute the maximum of the runs."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class RowResults:
    """The results that a loss definition computes from the statistics of rows, float32 [partitions, rows] each.

    Attributes:
        losses_sbuf: the losses of the rows.
        coefficients_sbuf: the coefficients from which gradients are computed, for an upstream gradient of 1.
    """

    losses_sbuf: nl.NkiTensor
    coefficients_sbuf: list[nl.NkiTensor]


class RowLossDefinition(Protocol[Factors]):
    """The definition of a row-wise loss, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`accumulate` of this one: the first steps of a piece, such
    as differences, belong there, so that no engine waits for them.
    """

    @property
    def forward_tiles(self) -> int:
        """The maximum number of float32 tiles that a piece takes in :meth:`prepare` and :meth:`accumulate`."""

    @property
    def backward_tiles(self) -> int:
        """Half the maximum number of tiles that a piece takes in :meth:`gradients`; two pieces have so many in all."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics of a row."""

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of the tensors from which gradients of the ``wanted`` tensors are computed."""

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of a piece and return their tiles, which :meth:`accumulate` takes."""

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the statistics of the piece by the methods of :class:`Piece`."""

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Compute the results of rows from their statistics and vectors, float32 [partitions, rows] each."""

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> Factors:
        """Compute the factors of rows by which :meth:`gradients` multiplies.

        Args:
            upstream_sbuf: the gradients of the losses, float32 [partitions, rows].
            coefficients_sbuf: the coefficients, see :class:`RowResults`.
        """

    def gradients(self, piece: Piece, factors: Factors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write the gradients of a piece into tiles of any floating type, by the number of the tensor.

        For a tensor that all rows share, the tile is a float32 sum, to which the gradients are added.
        """
