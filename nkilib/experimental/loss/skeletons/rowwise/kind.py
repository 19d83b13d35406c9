# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What a loss of rows is to the skeleton: a few functions of tiles.

The skeleton streams tensors [N, D] through SBUF, tile by tile, and cuts each tile into pieces. A kind makes statistics
of the rows of a piece, float32 sums or maxima; of those of whole rows it makes the losses, and coefficients; and it
makes gradients of a piece from coefficients and the tensors. Streams, sums, upstream gradients and stores are the
skeleton's (:mod:`.forward`, :mod:`.backward`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from nkilib.experimental.loss.skeletons.elementwise.kind import Prepared
from nkilib.experimental.loss.skeletons.rowwise.piece import Piece
from nkilib.nki import nisa, nl

# What a kind multiplies gradients by.
Factors = TypeVar("Factors")


class Statistic(Protocol):
    """A number a row, made of one a run of the row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], made_sbuf: list[nl.NkiTensor]) -> None:
        """Put the numbers of runs together.

        Args:
            dst_sbuf: float32 [partitions, 1].
            runs_sbuf: of each statistic up to this one, float32 [partitions, runs].
            made_sbuf: what was made of the earlier ones, [partitions, 1].
        """


@dataclass(frozen=True)
class Sum:
    """The sum of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], made_sbuf: list[nl.NkiTensor]) -> None:
        """Their sum."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.add, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class Maximum:
    """The largest number of a row."""

    def of_runs(self, dst_sbuf: nl.NkiTensor, runs_sbuf: list[nl.NkiTensor], made_sbuf: list[nl.NkiTensor]) -> None:
        """The largest."""
        nisa.tensor_reduce(dst=dst_sbuf, op=nl.maximum, data=runs_sbuf[-1], axis=1)


@dataclass(frozen=True)
class RowResults:
    """What a kind makes of the statistics of rows, float32 [partitions, rows] each.

    Attributes:
        losses_sbuf: of the rows.
        coefficients_sbuf: that gradients are made of, for an upstream gradient of 1.
    """

    losses_sbuf: nl.NkiTensor
    coefficients_sbuf: list[nl.NkiTensor]


class RowKind(Protocol[Factors]):
    """A loss of rows, with its options.

    :meth:`prepare` of the next piece is issued before :meth:`accumulate` of this one: what comes first in a piece,
    such as differences, belongs there, so that no engine waits for it.
    """

    @property
    def forward_tiles(self) -> int:
        """Float32 tiles that a piece takes at most, in :meth:`prepare` and :meth:`accumulate`."""

    @property
    def backward_tiles(self) -> int:
        """Half of those that a piece takes at most in :meth:`gradients`: two pieces have as many."""

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """Of a row."""

    def needed(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Numbers of the tensors that gradients of the ``wanted`` tensors are computed from."""

    def prepare(self, piece: Piece) -> Prepared:
        """What :meth:`accumulate` begins with."""

    def accumulate(self, piece: Piece, prepared: Prepared) -> None:
        """Hand the statistics of the piece on, by its functions."""

    def results(self, statistics_sbuf: list[nl.NkiTensor], vectors_sbuf: list[nl.NkiTensor]) -> RowResults:
        """Of rows, from their statistics and the vectors of the launch, float32 [partitions, rows] each."""

    def factors(self, upstream_sbuf: nl.NkiTensor, coefficients_sbuf: list[nl.NkiTensor]) -> Factors:
        """What :meth:`gradients` multiplies by, of rows.

        Args:
            upstream_sbuf: gradients of the losses, float32 [partitions, rows].
            coefficients_sbuf: as in :class:`RowResults`.
        """

    def gradients(self, piece: Piece, factors: Factors, dst_sbuf: dict[int, nl.NkiTensor]) -> None:
        """Gradients of a piece, into tiles of any floating type by the number of the tensor.

        Of a tensor that all rows share the tile is a float32 sum, to which they are added.
        """
