# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The interface of a row-wise loss definition: a few functions of tiles.

The skeleton streams tensors [N, D] through SBUF, tile by tile, and cuts each tile into pieces. For a piece,
a loss definition computes statistics of its rows, float32 sums or maxima. From the statistics of whole rows
it computes the losses, and coefficients of each row for the backward. There it computes the gradients of a
piece from the coefficients and the tensors. The skeleton handles streams, sums, upstream gradients and
stores (:mod:`.forward`, :mod:`.backward`).
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
    """A number per row, such as a sum, that is combined from one value for each run of the row.

    A run is a range of columns of a long row whose values an engine accumulates.
    """

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Combine the values of all runs of a row into one.

        Args:
            dst_sbuf: the result, float32 [partitions, 1].
            runs_sbuf: the values of each statistic up to this one, float32 [partitions, runs].
            earlier_sbuf: the results of the earlier statistics, [partitions, 1].
        """


@dataclass(frozen=True)
class Sum:
    """The statistic that is the sum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Compute the sum of the runs."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class Maximum:
    """The statistic that is the maximum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], earlier_sbuf: list[nl.NkiTensor]) -> None:
        """Compute the maximum of the runs."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class RowResults:
    """The results that a loss definition computes from the statistics of rows, float32 [partitions, rows] each.

    Attributes:
        losses_sbuf: the losses of the rows.
        coefficients_sbuf: the coefficients of rows from which the backward computes gradients, before they are
            multiplied by the upstream gradient.
    """

    losses_sbuf: nl.NkiTensor
    coefficients_sbuf: list[nl.NkiTensor]


class RowLossDefinition(Protocol[Factors]):
    """The definition of a row-wise loss, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`accumulate` of this one: the first steps of a
    piece, such as differences, belong in :meth:`prepare`, so that no engine waits for them.
    """

    @property
    def forward_tiles(self) -> int:
        """The maximum number of float32 tiles that a piece takes in :meth:`prepare` and :meth:`accumulate`."""

    @property
    def backward_tiles(self) -> int:
        """Half the maximum number of float32 tiles that a piece takes in :meth:`gradients`: it has the scratch of two
        pieces.
        """

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics that are computed over each row."""

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of the tensors from which gradients of the ``wanted`` tensors are computed."""

    def prepare(self, piece: Piece) -> Prepared:
        """Issue the first steps of a piece and return their tiles, which :meth:`accumulate` takes."""

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Add the elements of the piece to the statistics of their rows, by the methods of :class:`Piece`."""

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Compute the results of rows.

        Args:
            statistics_sbuf: the statistics of the rows, float32 [partitions, rows] each.
            vectors_sbuf: the vectors with one number per row that the forward takes, such as targets, in the same
                shape.
        """

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> Factors:
        """Compute the factors of each row by which :meth:`gradients` multiplies, in a form that the loss definition
        chooses.

        Args:
            upstream_sbuf: the upstream gradients of the losses, float32 [partitions, rows].
            coefficients_sbuf: the coefficients, see :class:`RowResults`.
        """

    def gradients(self, piece: Piece, factors: Factors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Write the gradients of a piece into the tiles ``dst_sbuf``, of any floating type, by the number of the
        tensor.

        For a tensor that all rows share, the tile is a float32 sum, to which the gradients are added.
        """
