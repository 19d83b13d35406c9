# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Iteration counts of loops whose bounds only the device knows: stated by the caller, or counted in a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from os.path import basename
from typing import Any

from ..terms.errors import NkiValidationError
from ..terms.integers import is_integer

# One number for all loops, or one for each by name; a function is asked when the first loop needs it.
Stated = int | Mapping[str, int]

_REMEDY = (
    "which only the device knows, and a launch with nkilib.simulator.spec has shapes and types only; pass arrays, or "
    "state how often the loop runs: "
)


def check_stated(function: str, words: str, asked: Any) -> None:
    """Check that an argument ``trips=`` states iteration counts.

    Args:
        function: the function with the parameter ``trips=``, for the message.
        words: the words that the function also accepts, quoted, for the message.
        asked: the argument, which is none of these words.

    Raises:
        TypeError: if it is no number, and no mapping from names to numbers.
        ValueError: if a number is negative.
    """
    counts = asked if isinstance(asked, Mapping) else {"": asked}
    for name, count in counts.items():
        if not isinstance(name, str) or not is_integer(count):
            raise TypeError(
                f"{function}: trips must be {words}, a number, or a mapping from the name of a loop's body to a "
                f"number, got {asked!r}"
            )
        if count < 0:
            raise ValueError(f"{function}: trips must not be negative, got {asked!r}")


@dataclass(frozen=True)
class RunTimeLoop:
    """A loop of a kernel that counts to a register or a scalar, or runs until a register holds 0.

    Attributes:
        name: the name of the function that is its body, or of the loop if it has none.
        place: ``file:line`` where it starts.
    """

    name: str
    place: str

    @property
    def line(self) -> str:
        """``file:line`` without the directories."""
        return basename(self.place)

    def __str__(self) -> str:
        return f"{self.name} ({self.line})"


@dataclass
class Trips:
    """The loops of a launch whose bounds only the device knows, and their iteration counts.

    Attributes:
        stated: a function that returns the stated counts, or None if none are stated.
        ran: the total number of iterations of each loop, by core.
        was_asked: whether there was a loop whose count the launch itself did not know.
    """

    stated: Callable[[], Stated | None]
    was_asked: bool = False
    ran: dict[int, Counter[RunTimeLoop]] = field(default_factory=dict)

    def says(self, loop: RunTimeLoop) -> bool:
        """Return whether an iteration count is stated for ``loop``."""
        stated = self.stated()
        if isinstance(stated, Mapping):
            return loop.name in stated or loop.line in stated
        return stated is not None

    def expected(self, what: str, loop: RunTimeLoop) -> int:
        """Return the iteration count of ``loop`` that the caller of ``profile`` or the kernel has stated.

        Raises:
            NkiValidationError: if none is stated; ``what`` names the unknown bound in the message.
        """
        self.was_asked = True
        stated = self.stated()
        if isinstance(stated, Mapping):
            count = stated.get(loop.name, stated.get(loop.line))
            if count is not None:
                return count
            known = ", ".join(map(repr, stated)) or "none"
            raise NkiValidationError(f"{what}, {_REMEDY}trips names {known}, but not {loop.name!r} or {loop.line!r}")
        if stated is None:
            raise unknown_trips(what, loop)
        return stated

    def add(self, loop: RunTimeLoop, core: int, count: int) -> None:
        """Add ``count`` iterations of a loop on a core."""
        self.ran_on(core)[loop] += count

    def ran_on(self, core: int) -> Counter[RunTimeLoop]:
        """Return the number of iterations of each loop on a core."""
        return self.ran.setdefault(core, Counter())

    @property
    def totals(self) -> dict[RunTimeLoop, int]:
        """The number of iterations of each loop, on the core with the most."""
        totals: dict[RunTimeLoop, int] = {}
        for ran in self.ran.values():
            for loop, count in ran.items():
                totals[loop] = max(count, totals.get(loop, 0))
        return totals


def unknown_trips(what: str, loop: RunTimeLoop) -> NkiValidationError:
    """Return the error for a loop whose iteration count is not stated."""
    return NkiValidationError(
        f"{what}, {_REMEDY}profile(..., trips=n), or trips={{{loop.name!r}: n}}, or nkilib.simulator.states_trips at "
        f"the kernel, which says how often it runs at most"
    )


def name_of_body(body: Any) -> str:
    """Return the name of a loop's body; for a callable without a name, the name of its type."""
    return str(getattr(body, "__name__", type(body).__name__))


_CURRENT: ContextVar[Trips | None] = ContextVar("nkilib_simulator_trips", default=None)


@contextmanager
def counting_trips(trips: Trips) -> Iterator[Trips]:
    """Take the stated counts of launches inside the ``with`` block from ``trips``, and count their iterations there."""
    token = _CURRENT.set(trips)
    try:
        yield trips
    finally:
        _CURRENT.reset(token)


def current_trips() -> Trips:
    """Return the iteration counts of the current context; outside a profile nothing is stated."""
    return _CURRENT.get() or Trips(lambda: None)
