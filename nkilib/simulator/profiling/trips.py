# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The iteration counts of device loops in a profile, as the caller or the kernel states them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..machine.trips import Stated, Trips, check_stated


class TripsRefusedError(ValueError):
    """Error for an argument ``trips`` that does not fit the kernel or its arguments."""


# What ``profile(trips=)`` takes: numbers, no iteration of any loop, or as many as the kernel states.
AskedTrips = Stated | Literal["none", "all"]
NONE, ALL = "none", "all"

# A function that returns the maximum that a kernel states; None if it states nothing.
Most = Callable[[], Stated] | None


@dataclass(frozen=True)
class TripsToRun:
    """The runs of a kernel that a profile needs, with the numbers of iterations of its loops in each.

    Attributes:
        asked: the argument ``trips`` of ``profile``; None if the caller passed none.
        most: a function that returns the maximum that the kernel states; None if it states nothing.
    """

    asked: AskedTrips | None
    most: Most

    @classmethod
    def checked(cls, asked: Any, most: Most, *, is_abstract: bool) -> TripsToRun:
        """Check the argument ``trips`` of ``profile``, and return the runs that it needs.

        Raises:
            TypeError, ValueError: if ``trips`` has none of the forms that ``profile`` takes.
            TripsRefusedError: if ``trips`` is passed for a launch on arrays, whose values determine the iterations, or
                if ``"all"`` is passed and the kernel states no maximum.
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
        """Return the iterations that the caller asks for; without ``trips`` none, if the kernel states its maximum."""
        if self.asked == ALL:
            return self.all()
        if isinstance(self.asked, str) or (self.asked is None and self.most is not None):
            return Trips(lambda: 0)
        asked = self.asked
        return Trips(lambda: asked)

    def has_second(self, first: Trips) -> bool:
        """Tell whether the kernel is to run once more, with as many iterations as it states."""
        return self.asked is None and self.most is not None and first.was_asked

    def all(self) -> Trips:
        """Return as many iterations as the kernel states.

        The kernel is asked for that number only when a loop needs it, after the kernel has checked its arguments.
        """
        assert self.most is not None
        return Trips(self.most)

    def check_names(self, first: Trips) -> None:
        """Check that the kernel has run all loops that the caller named in ``trips``.

        Raises:
            TripsRefusedError: if a named loop does not exist; the message lists the loops that do.
        """
        if (
            not isinstance(self.asked, Mapping) or 0 in first.totals.values()
        ):  # a loop that did not run may contain others
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
