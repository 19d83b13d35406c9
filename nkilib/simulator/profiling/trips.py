# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""How often a profile lets loops run whose bounds only the device knows: as asked, or as the kernel states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..machine.trips import Stated, Trips, check_stated


class TripsRefusedError(ValueError):
    """Numbers of trips that do not fit the kernel."""


# What ``profile(trips=)`` takes: numbers, no trip of any loop, or as many as the kernel states.
AskedTrips = Stated | Literal["none", "all"]
NONE, ALL = "none", "all"

# What a kernel states at most; None if it states nothing.
Most = Callable[[], Stated] | None


@dataclass(frozen=True)
class TripsToRun:
    """The runs of a kernel that a profile needs.

    Attributes:
        asked: what the caller of ``profile`` has asked; None if nothing.
        most: what the kernel states.
    """

    asked: AskedTrips | None
    most: Most

    @classmethod
    def checked(cls, asked: Any, most: Most, *, is_abstract: bool) -> TripsToRun:
        """What the caller has asked.

        Raises:
            TypeError, ValueError: if it is nothing that ``profile(trips=)`` takes.
            TripsRefusedError: if there are data that say it, or all are asked for and the kernel does not state them.
        """
        if asked is not None:
            _check(asked)
            if not is_abstract:
                raise TripsRefusedError(
                    "profile: trips is for a profile from shapes, with a spec among the arguments; of arrays the "
                    "values say how often loops run: leave it out"
                )
            if asked == ALL and most is None:
                raise TripsRefusedError(
                    "profile: trips='all' asks for as many as the kernel states, and it states none; give it "
                    "nkilib.simulator.states_trips, or pass numbers"
                )
        return cls(asked, most)

    def first(self) -> Trips:
        """Of the run that the caller wants; by default with no trip, if the kernel states its most."""
        if self.asked == ALL:
            return self.all()
        if isinstance(self.asked, str) or (self.asked is None and self.most is not None):
            return Trips(lambda: 0)
        asked = self.asked
        return Trips(lambda: asked)

    def has_second(self, first: Trips) -> bool:
        """Whether the kernel is to run once more, with all trips."""
        return self.asked is None and self.most is not None and first.was_asked

    def all(self) -> Trips:
        """As many trips as the kernel states; it is asked when a loop needs them, behind its checks of arguments."""
        assert self.most is not None
        return Trips(self.most)

    def check_names(self, first: Trips) -> None:
        """Refuse numbers for loops that the kernel does not have.

        Raises:
            TripsRefusedError: naming them and the loops that there are.
        """
        if not isinstance(self.asked, Mapping) or 0 in first.totals.values():  # one that did not run may hold others
            return
        known = {name for loop in first.totals for name in (loop.name, loop.line)}
        strange = [name for name in self.asked if name not in known]
        if strange:
            there = ", ".join(map(str, first.totals)) or "none"
            raise TripsRefusedError(
                f"profile: trips names {', '.join(map(repr, strange))}, and the kernel ran no such loop whose bounds "
                f"only the device knows; it ran: {there}"
            )


def _check(asked: Any) -> None:
    if isinstance(asked, str):
        if asked not in (NONE, ALL):
            raise ValueError(f"profile: trips must be 'none', 'all', a number, or numbers by loop, got {asked!r}")
        return
    check_stated("profile", "'none', 'all'", asked)
