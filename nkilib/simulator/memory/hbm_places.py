# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors in HBM that a kernel places itself: they must not overlap, since here each one has its own memory."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class _Place:
    low: int
    high: int
    what: str


@dataclass
class HbmPlaces:
    """The tensors that a kernel places itself in one HBM: a core's private one, or the one that the cores share."""

    places: list[_Place] = field(default_factory=list)

    def take(self, low: int, nbytes: int, what: str) -> str | None:
        """Place a tensor, which messages call ``what``, at bytes ``low`` to ``low + nbytes`` (exclusive).

        Returns:
            An error message if another placed tensor overlaps it, since it is not known how long a tensor in HBM is
            needed; else None.
        """
        mine = _Place(low, low + nbytes, what)
        clash = next((other for other in self.places if other.low < mine.high and mine.low < other.high), None)
        self.places.append(mine)
        if clash is None:
            return None
        return (
            f"nl.ndarray: {what} at bytes {mine.low} to {mine.high} overlaps {clash.what} at bytes {clash.low} to "
            f"{clash.high}: place them apart, or make both views of one tensor"
        )
