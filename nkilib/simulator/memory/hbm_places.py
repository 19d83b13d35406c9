"""Tensors in HBM that a kernel places itself: they must lie apart, since here each one has its own memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..terms.errors import CapacityError


@dataclass(frozen=True)
class _Place:
    low: int
    high: int
    what: str


@dataclass
class HbmPlaces:
    """The placed tensors of one HBM: of a core's private one, or of that which the cores share."""

    places: list[_Place] = field(default_factory=list)

    def take(self, low: int, nbytes: int, what: str) -> None:
        """Place ``what`` at bytes ``low`` to ``low + nbytes`` (exclusive).

        Raises:
            CapacityError: if another placed tensor overlaps it. How long a tensor in HBM is needed is not known.
        """
        mine = _Place(low, low + nbytes, what)
        for other in self.places:
            if other.low < mine.high and mine.low < other.high:
                raise CapacityError(
                    f"nl.ndarray: {what} at bytes {mine.low} to {mine.high} overlaps {other.what} at bytes "
                    f"{other.low} to {other.high}: place them apart, or make both views of one tensor"
                )
        self.places.append(mine)
