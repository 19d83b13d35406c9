# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Vector's passes over a tile of logits that wait for another engine: for the entropy, and for the argmax.

Meanwhile Vector computes the maxima of the next group of tiles. The passes of a tile of one group run between two
maxima of the other, so that neither products nor exponentials wait for Vector, nor Vector for Scalar and GpSimd.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from nkilib.core.rows.argmax import Search
from nkilib.core.rows.moments import EntropyMoment, raise_negligible
from nkilib.core.rows.statistics import Place, Statistics
from nkilib.core.tiling import div_ceil
from nkilib.nki import nl


class VectorPass(Protocol):
    """A pass of Vector over one tile."""

    def take(self) -> None:
        """Issue the pass."""


@dataclass(frozen=True)
class EntropyPass:
    """The pass that adds one tile to the sums for the entropy, once Scalar has its exponentials.

    Attributes:
        moment: the sums for the entropies.
        statistics: the maxima and the sums of the exponentials.
        scores_sbuf: the tile, float32 [128, classes].
        exponentials_sbuf: the exponentials of the tile, float32 [128, classes].
        terms_sbuf: scratch memory, of any float type.
        place: the place of the tile in the statistics.
        is_masked: whether the scores may hold -inf; then they are first raised in place (:func:`raise_negligible`).
    """

    moment: EntropyMoment
    statistics: Statistics
    scores_sbuf: nl.NkiTensor
    exponentials_sbuf: nl.NkiTensor
    terms_sbuf: nl.NkiTensor
    place: Place
    is_masked: bool

    def take(self) -> None:
        """Issue the pass."""
        if self.is_masked:
            raise_negligible(self.scores_sbuf, self.place.of(self.statistics.neg_max_sbuf), self.statistics.scale)
        self.moment.take_terms(self.statistics, self.scores_sbuf, self.exponentials_sbuf, self.terms_sbuf, self.place)


@dataclass(frozen=True)
class SearchPass:
    """The pass that searches for the largest z of one tile, for the argmax.

    Attributes:
        search: the search of the group.
        number: the number of the tile in the group.
    """

    search: Search
    number: int

    def take(self) -> None:
        """Issue the instructions that search for the largest z of the tile."""
        self.search.take(self.number)


@dataclass(frozen=True)
class WaitingPasses:
    """The waiting passes, in their order.

    A group's tiles are written again two groups later, so no pass may wait longer than that. None may wait where a
    device loop begins or ends: its body is traced once.
    """

    waiting: deque[VectorPass] = field(default_factory=deque)

    def add(self, vector_pass: VectorPass) -> None:
        """Add a pass to the waiting ones."""
        self.waiting.append(vector_pass)

    def share_of(self, parts: int) -> int:
        """Return how many passes each of ``parts`` parts takes so that none is left."""
        return div_ceil(len(self.waiting), parts)

    def take(self, count: int) -> None:
        """Issue up to ``count`` passes, those that have waited longest first."""
        for _ in range(min(count, len(self.waiting))):
            self.waiting.popleft().take()

    def take_all(self) -> None:
        """Issue all waiting passes."""
        self.take(len(self.waiting))
