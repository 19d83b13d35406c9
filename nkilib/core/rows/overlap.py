# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A loop over pieces that begins the next piece before it finishes the current one, so that engines do not wait.

An engine takes its instructions in the order in which they are issued. If a piece were finished before the next one is
begun, an engine that has nothing to do with the end of this piece would still wait for it.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

Placed = TypeVar("Placed")
Placed_contra = TypeVar("Placed_contra", contravariant=True)
Begun = TypeVar("Begun")


class PieceStream(Protocol[Placed]):
    """The pieces of a core, in their order. They come in visits, such as loaded chunks, with some pieces each."""

    @property
    def visits(self) -> int:
        """The number of visits."""

    def pieces(self, visit: int) -> list[Placed]:
        """Return the pieces of a visit, and issue the loads of later ones."""


class Overlapped(Protocol[Placed_contra, Begun]):
    """The work on a piece, in two steps."""

    def begin(self, placed: Placed_contra) -> Begun:
        """Issue the first step, such as differences that other engines take."""

    def finish(self, placed: Placed_contra, begun: Begun) -> None:
        """Issue the second step, which needs the result of the first."""


def run_overlapped(stream: PieceStream[Placed], work: Overlapped[Placed, Begun]) -> None:
    """Process all pieces: finish each piece after the next one has begun, and the last one at the end."""
    ready: tuple[Placed, Begun] | None = None
    for visit in range(stream.visits):
        for placed in stream.pieces(visit):
            begun = work.begin(placed)
            if ready is not None:
                work.finish(*ready)
            ready = placed, begun
    if ready is not None:
        work.finish(*ready)
