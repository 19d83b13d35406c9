"""Where a core is in its loops that run on the device: what they forbid depends on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..terms.errors import NkiValidationError, kernel_location

_NUMBERS = itertools.count()


@dataclass
class Turns:
    """One run of a dynamic loop.

    Attributes:
        what: ``nl.fori_loop`` or ``nl.while_loop``.
        place: ``file:line`` of the kernel.
        depth: how many dynamic loops are around it.
        count: how many iterations there have been.
    """

    what: str
    place: str
    depth: int
    count: int = 0


class Loops:
    """The dynamic loops and the ``nl.no_reorder`` regions that a core is in.

    A bare ``while reg:`` is not seen: to the simulator it is a loop of Python.

    Attributes:
        turns: the runs of ``nl.fori_loop`` and ``nl.while_loop``, in the order in which they began.
        scope: one number for each dynamic loop around the current instruction, outermost first. Every iteration has a
            new number: the device runs one copy of the body, so that no instruction of it can name one of an earlier
            iteration.
    """

    def __init__(self) -> None:
        self.turns: list[Turns] = []
        self.scope: tuple[int, ...] = ()
        self._no_reorder_regions = 0

    def check_may_start(self, what: str) -> None:
        """Refuse the dynamic loop ``what`` where the documentation forbids one.

        Raises:
            NkiValidationError: within ``nl.no_reorder``.
        """
        if self._no_reorder_regions:
            raise NkiValidationError(
                f"{what}: a dynamic loop cannot be inside nl.no_reorder(); put that into the loop's body"
            )

    def started(self, what: str) -> Turns:
        """The loop ``what`` begins."""
        turns = Turns(what, kernel_location(), len(self.scope))
        self.turns.append(turns)
        return turns

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """One run of a dynamic loop's body."""
        outside = self.scope
        self.scope = (*outside, next(_NUMBERS))
        try:
            yield
        finally:
            self.scope = outside

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        """A region in which no dynamic loop may start."""
        self._no_reorder_regions += 1
        try:
            yield
        finally:
            self._no_reorder_regions -= 1


def check_equal_turns(cores: Sequence[Loops]) -> None:
    """Refuse loops that two cores have run unequally often: each core runs the same compiled loop.

    Loops go together by their line and their order there; a line to which the cores came unequally often, or only one
    of them, is not looked at: they run unlike code.

    Raises:
        NkiValidationError: naming the loop and how often each core ran it.
    """
    first, second = (_by_place(loops.turns) for loops in cores)
    for place, runs in first.items():
        others = second.get(place, [])
        if len(runs) != len(others):
            continue
        for own, other in zip(runs, others, strict=True):
            if own.count != other.count:
                raise NkiValidationError(
                    f"{own.place}: {own.what}: on two cores a dynamic loop must run equally often on both, got "
                    f"{own.count} iterations on core 0 and {other.count} on core 1; pad the shorter one"
                )


def _by_place(turns: Sequence[Turns]) -> dict[tuple[str, int], list[Turns]]:
    """Runs of loops by their line and depth, in the order in which they began."""
    places: dict[tuple[str, int], list[Turns]] = {}
    for run in turns:
        places.setdefault((run.place, run.depth), []).append(run)
    return places
