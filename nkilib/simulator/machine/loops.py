# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The position of a core in its loops that run on the device; the checks of loops depend on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest

from ..terms.errors import NkiValidationError, kernel_location
from ..terms.scopes import Scope, new_scope


@dataclass
class LoopRun:
    """One run of a dynamic loop.

    Attributes:
        what: ``nl.fori_loop``, ``nl.while_loop`` or ``nl.dynamic_range``.
        place: ``file:line`` of the kernel.
        depth: the number of dynamic loops around it.
        register: the number of the last instruction that loaded a register or a scalar that bounds the loop; 0 if there
            is none.
        may_repeat: whether repeated iterations may be skipped: the launch has no data, and the loop has enough
            iterations.
        count: the number of iterations so far.
        body: the instructions and inner loops of the first iteration; None before its end.
    """

    what: str
    place: str
    depth: int
    register: int = 0
    may_repeat: bool = False
    count: int = 0
    body: list[str] | None = None

    def ended_iteration(self, ran: list[str], *, is_compared: bool) -> None:
        """Count one more iteration; ``ran`` are the instructions and inner loops that it ran.

        Raises:
            NkiValidationError: with ``is_compared``, if they differ from the first iteration's.
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
    """The dynamic loops and the ``nl.no_reorder`` regions around a core's current instruction.

    A bare ``while reg:`` is not included: to the simulator it is a Python loop.

    Attributes:
        ran: the instructions and inner loops of the current iteration so far.
        runs: the runs of ``nl.fori_loop`` and ``nl.while_loop``, in the order in which they began.
        scope: the scope of the current instruction. Every iteration of a dynamic loop has a scope of its own: the
            device runs one copy of the body, so that no instruction of it can refer to one of an earlier iteration.
        depth: the number of dynamic loops around the current instruction; a plain attribute, because every instruction
            asks for it.

    Args:
        scope: the scope of the core.
    """

    def __init__(self, scope: Scope) -> None:
        self.runs: list[LoopRun] = []
        self.ran: list[str] = []
        self.scope = scope
        self.depth = 0
        self._no_reorder_regions = 0

    def check_may_start(self, what: str) -> None:
        """Check that the documentation allows the dynamic loop ``what`` here.

        Raises:
            NkiValidationError: within ``nl.no_reorder``.
        """
        if self._no_reorder_regions:
            raise NkiValidationError(
                f"{what}: a dynamic loop cannot be inside nl.no_reorder(); put that into the loop's body"
            )

    def started(self, what: str, register: int) -> LoopRun:
        """Record that the loop ``what`` begins; see :class:`LoopRun` for ``register``."""
        run = LoopRun(what, kernel_location(), self.depth, register)
        self.runs.append(run)
        self.ran.append(what)
        return run

    @contextmanager
    def iteration(self) -> Iterator[list[str]]:
        """Enclose one iteration of a dynamic loop; the list finally holds the instructions and inner loops it ran."""
        scope, depth, outside = self.scope, self.depth, self.ran
        self.scope, self.depth, self.ran = new_scope(scope), depth + 1, []
        try:
            yield self.ran
        finally:
            self.scope, self.depth, self.ran = scope, depth, outside

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        """Enclose a region in which no dynamic loop may start."""
        self._no_reorder_regions += 1
        try:
            yield
        finally:
            self._no_reorder_regions -= 1


def check_equal_loop_counts(cores: Sequence[Loops]) -> None:
    """Check that two cores have run their loops equally often, since each core runs the same compiled loop.

    Runs are matched by their line and their order there. A line that the cores reached unequally often, or that only
    one of them reached, is not checked: the cores run different code.

    Raises:
        NkiValidationError: if the counts differ; the message names the loop and how often each core ran it.
    """
    first, second = (_by_place(loops.runs) for loops in cores)
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


def _by_place(runs: Sequence[LoopRun]) -> dict[tuple[str, int], list[LoopRun]]:
    """Return runs of loops by their line and depth, in the order in which they began."""
    places: dict[tuple[str, int], list[LoopRun]] = {}
    for run in runs:
        places.setdefault((run.place, run.depth), []).append(run)
    return places
