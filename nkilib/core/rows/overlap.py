# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pieces of a stream of which the next one is begun before this one is finished, so that no engine waits for another.

An engine takes its instructions in the order in which they are issued. Were a piece finished before the next one is
begun, an engine that has nothing to do with the end of this piece would wait for it all the same.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Placed = TypeVar("Placed")
Placed_contra = TypeVar("Placed_contra", contravariant=True)
Begun = TypeVar("Begun")


class PieceStream(Protocol[Placed]):
    """What a core goes through: some visits, each of some pieces."""

    @property
    def visits(self) -> int:
        """How many there are."""

    def pieces(self, visit: int) -> list[Placed]:
        """Those of a visit. Also issues loads of later ones."""


class Overlapped(Protocol[Placed_contra, Begun]):
    """Work on a piece, in two steps."""

    def begin(self, placed: Placed_contra) -> Begun:
        """What comes first, such as differences that other engines take."""

    def finish(self, placed: Placed_contra, begun: Begun) -> None:
        """The rest."""


def run_overlapped(stream: PieceStream[Placed], work: Overlapped[Placed, Begun]) -> None:
    """All pieces: a piece is finished after the next one has begun, the last one at the end."""
    ready: tuple[Placed, Begun] | None = None
    for visit in range(stream.visits):
        for placed in stream.pieces(visit):
            begun = work.begin(placed)
            if ready is not None:
                work.finish(*ready)
            ready = placed, begun
    if ready is not None:
        work.finish(*ready)
