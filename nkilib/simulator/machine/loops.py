# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Where a core is in its loops that run on the device: what they forbid depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, zip_longest

from ..terms.errors import NkiValidationError, kernel_location

_NUMBERS = count()


@dataclass
class Turns:
    """One run of a dynamic loop.

    Attributes:
        what: ``nl.fori_loop`` or ``nl.while_loop``.
        place: ``file:line`` of the kernel.
        depth: how many dynamic loops are around it.
        register: the number of the last instruction that loaded a register or a scalar to which it counts; 0 if there
            is none.
        may_repeat: whether it has so many iterations, without data, that those need not run that only repeat others.
        count: how many iterations there have been.
        body: what the first iteration ran, instructions and inner loops; None before its end.
    """

    what: str
    place: str
    depth: int
    register: int = 0
    may_repeat: bool = False
    count: int = 0
    body: list[str] | None = None

    def ended_iteration(self, ran: list[str], *, is_compared: bool) -> None:
        """One more iteration has run these instructions and inner loops, and is counted.

        Raises:
            NkiValidationError: if they are others than those of the first one.
        """
        self.count += 1
        if self.body is None:
            self.body = ran
        elif is_compared and ran != self.body:
            pairs = zip_longest(ran, self.body, fillvalue="nothing")
            own, first = next(pair for pair in pairs if pair[0] != pair[1])
            raise NkiValidationError(
                f"{self.what}: iteration {self.count} ran {own} where the first one ran {first}: the device runs one "
                f"copy of the body, which is traced once, and Python cannot choose by iteration"
            )


class Loops:
    """The dynamic loops and the ``nl.no_reorder`` regions that a core is in.

    A bare ``while reg:`` is not seen: to the simulator it is a loop of Python.

    Attributes:
        ran: instructions and inner loops of the iteration that it is in.
        turns: the runs of ``nl.fori_loop`` and ``nl.while_loop``, in the order in which they began.
        scope: one number for each dynamic loop around the current instruction, outermost first. Every iteration has a
            new number: the device runs one copy of the body, so that no instruction of it can name one of an earlier
            iteration.
    """

    def __init__(self) -> None:
        self.turns: list[Turns] = []
        self.ran: list[str] = []
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

    def started(self, what: str, register: int) -> Turns:
        """The loop ``what`` begins; ``register`` as in :class:`Turns`."""
        turns = Turns(what, kernel_location(), len(self.scope), register)
        self.turns.append(turns)
        self.ran.append(what)
        return turns

    @contextmanager
    def iteration(self) -> Iterator[list[str]]:
        """One run of a dynamic loop's body; at its end the list says what it ran."""
        scope, outside = self.scope, self.ran
        self.scope, self.ran = (*scope, next(_NUMBERS)), []
        try:
            yield self.ran
        finally:
            self.scope, self.ran = scope, outside

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
