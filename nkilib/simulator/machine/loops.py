# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loops that run on the device (*dynamic loops*): a core's position in them, repeated iterations, and iteration counts.

- :class:`Loops`, with a :class:`LoopRun` for each execution of a loop: the position of a core.
  :func:`check_equal_loop_counts` compares two cores.
- :class:`Skip`, :class:`IterationCounters`: iterations that repeat earlier ones and are not run.
- :data:`Stated`, :func:`check_stated`: stated iteration counts.
- :class:`RunTimeLoop`, with :func:`name_of_body`: a loop whose bound depends on data. :class:`Trips`,
  :func:`counting_trips`, :func:`current_trips`: the counts of such loops, as stated and as run.

The device has one copy of a loop's body, so that Python must issue the same instructions in each iteration. In a launch
without data, iterations differ only in their timing; the observer that models time decides whether further iterations
only repeat earlier ones. If a bound depends on data, the caller states the iteration count.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import zip_longest
from os.path import basename
from typing import Any, NamedTuple

from ..terms.argument_checks import is_integer
from ..terms.errors import NkiValidationError, kernel_location
from ..terms.scopes import Scope, new_scope

# The most iterations after which everything may repeat.
LONGEST_PERIOD = 4

# One number for all loops, or one for each by name.
Stated = int | Mapping[str, int]

_REMEDY = (
    "which only the device knows, and a launch with nkilib.simulator.spec has shapes and types only; pass arrays, or "
    "state how often the loop runs: "
)

_CURRENT: ContextVar[Trips | None] = ContextVar("nkilib_simulator_trips", default=None)


@dataclass
class LoopRun:
    """One execution of a dynamic loop.

    Attributes:
        what: ``nl.fori_loop``, ``nl.while_loop`` or ``nl.dynamic_range``.
        place: ``file:line`` of the kernel.
        depth: the number of dynamic loops around this one.
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
        """Count one more iteration.

        Args:
            ran: the instructions and inner loops of the iteration.
            is_compared: whether ``ran`` must be equal to those of the first iteration.

        Raises:
            NkiValidationError: ``ran`` differs from the first iteration, and ``is_compared`` is set.
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

    A bare ``while reg:`` is not included, because it is a Python loop here.

    Args:
        scope: the scope of the core.

    Attributes:
        ran: the instructions and inner loops of the current iteration so far.
        runs: the executions of ``nl.fori_loop`` and ``nl.while_loop``, in the order in which they began.
        scope: the scope of the current instruction. Every iteration of a dynamic loop has a scope of its own: the
            device runs one copy of the body, so that an instruction cannot refer to an instruction of an earlier
            iteration.
        depth: the number of dynamic loops around the current instruction; a plain attribute, because every instruction
            reads it.
    """

    def __init__(self, scope: Scope) -> None:
        self.runs: list[LoopRun] = []
        self.ran: list[str] = []
        self.scope = scope
        self.depth = 0
        self._no_reorder_regions = 0

    def check_may_start(self, what: str) -> None:
        """Check that a dynamic loop may start now; ``what`` is the name of the loop's function.

        Raises:
            NkiValidationError: the current instruction is within ``nl.no_reorder``.
        """
        if self._no_reorder_regions:
            raise NkiValidationError(
                f"{what}: a dynamic loop cannot be inside nl.no_reorder(); put that into the loop's body"
            )

    def started(self, what: str, register: int) -> LoopRun:
        """Record that a dynamic loop begins, and return the record.

        Args:
            what: the name of the loop's function.
            register: see :class:`LoopRun`.
        """
        run = LoopRun(what, kernel_location(), self.depth, register)
        self.runs.append(run)
        self.ran.append(what)
        return run

    @contextmanager
    def iteration(self) -> Iterator[list[str]]:
        """Enclose one iteration of a dynamic loop in a ``with`` block.

        The block gets a list, which at its end holds the instructions and inner loops that the iteration ran.
        """
        scope, depth, outside = self.scope, self.depth, self.ran
        self.scope, self.depth, self.ran = new_scope(scope), depth + 1, []
        try:
            yield self.ran
        finally:
            self.scope, self.depth, self.ran = scope, depth, outside

    @contextmanager
    def no_reorder(self) -> Iterator[None]:
        """Enclose the body of an ``nl.no_reorder`` block, in which no dynamic loop may start."""
        self._no_reorder_regions += 1
        try:
            yield
        finally:
            self._no_reorder_regions -= 1


def _by_place(runs: Sequence[LoopRun]) -> dict[tuple[str, int], list[LoopRun]]:
    places: dict[tuple[str, int], list[LoopRun]] = {}
    for run in runs:
        places.setdefault((run.place, run.depth), []).append(run)
    return places


def check_equal_loop_counts(cores: Sequence[Loops]) -> None:
    """Check that two cores have run equally many iterations of every loop, because both run the same compiled loop.

    The n-th execution of a loop on one core is compared with the n-th on the other core. A loop that one core executed
    more often than the other is not checked: there the cores run different code.

    Raises:
        NkiValidationError: the iteration counts of a loop differ; the message names the loop and both counts.
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


class Skip(NamedTuple):
    """Iterations of a loop that can be skipped, because they would only repeat the last iterations that have run.

    Attributes:
        period: the number of last iterations that are repeated as a group.
        times: the number of skipped repetitions of this group.
        instructions: the number of instructions in one run of the group.
    """

    period: int
    times: int
    instructions: int


class IterationCounters:
    """Counters that can be advanced for skipped iterations of loops.

    The object keeps copies of the counters at the ends of the last iterations of every loop around the current
    instruction.

    Args:
        counters: a function that returns the counters.
    """

    def __init__(self, counters: Callable[[], Sequence[Counter[Any]]]) -> None:
        self._counters = counters
        self._loops: list[deque[list[dict[Hashable, int]]]] = []

    def enter(self) -> None:
        """Record that a loop starts."""
        self._loops.append(deque([self._copies()], maxlen=LONGEST_PERIOD + 1))

    def iterate(self) -> None:
        """Record that an iteration of the innermost loop has ended."""
        self._loops[-1].append(self._copies())

    def leave(self) -> None:
        """Record that the innermost loop has ended."""
        self._loops.pop()

    def repeat(self, skip: Skip) -> None:
        """Add to each counter what the skipped iterations would have added.

        This is ``skip.times`` times what the last ``skip.period`` iterations of the innermost loop added.
        """
        for counter, before in zip(self._counters(), self._loops[-1][-1 - skip.period], strict=True):
            for name, count in counter.items():
                counter[name] = count + skip.times * (count - before.get(name, 0))

    def _copies(self) -> list[dict[Hashable, int]]:
        return [dict(counter) for counter in self._counters()]


def check_stated(function: str, words: str, asked: Any) -> None:
    """Check that an argument ``trips=`` states iteration counts.

    Args:
        function: the name of the function with the parameter ``trips=``, for the message.
        words: the words that the function also accepts, quoted, for the message.
        asked: the argument, which is none of these words.

    Raises:
        TypeError: the argument is neither a number nor a mapping from names to numbers.
        ValueError: a number is negative.
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


def name_of_body(body: Any) -> str:
    """Return the name of the function that is a loop's body; for a callable without a name, the name of its type."""
    return str(getattr(body, "__name__", type(body).__name__))


@dataclass(frozen=True)
class RunTimeLoop:
    """A loop whose iteration count only the device knows.

    It counts to a register or an ``NkiScalar``, or runs until a register holds 0.

    Attributes:
        name: the name of the function that is the body; the name of the loop function if there is none.
        place: ``file:line`` where the loop starts.
    """

    name: str
    place: str

    @property
    def line(self) -> str:
        """The place of the loop as ``file:line``, without the directories of the file."""
        return basename(self.place)

    def __str__(self) -> str:
        return f"{self.name} ({self.line})"


@dataclass
class Trips:
    """The loops of a launch whose bounds only the device knows, and their iteration counts.

    Attributes:
        stated: a function that returns the stated counts, or None if there are none; it is called when a loop needs
            them.
        was_asked: whether a loop needed a stated count.
        ran: the total number of iterations of each loop, by core.
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
        """Return the stated iteration count of ``loop``: by ``trips`` of ``profile`` or ``simulate``, or by the kernel.

        Args:
            what: the name of the unknown bound, for the message.
            loop: the loop.

        Raises:
            NkiValidationError: no count is stated for the loop.
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
            raise NkiValidationError(
                f"{what}, {_REMEDY}profile(..., trips=n), or trips={{{loop.name!r}: n}}, or "
                f"nkilib.simulator.states_trips at the kernel, which says how often it runs at most"
            )
        return stated

    def add(self, loop: RunTimeLoop, core: int, count: int) -> None:
        """Add ``count`` iterations of a loop to those that core number ``core`` has run."""
        self.ran_on(core)[loop] += count

    def ran_on(self, core: int) -> Counter[RunTimeLoop]:
        """Return, for each loop, the number of iterations that core number ``core`` has run."""
        return self.ran.setdefault(core, Counter())

    @property
    def totals(self) -> dict[RunTimeLoop, int]:
        """The number of iterations of each loop; if the cores ran different numbers, the largest one."""
        totals: dict[RunTimeLoop, int] = {}
        for ran in self.ran.values():
            for loop, count in ran.items():
                totals[loop] = max(count, totals.get(loop, 0))
        return totals


@contextmanager
def counting_trips(trips: Trips) -> Iterator[Trips]:
    """Let the launches in the ``with`` block take stated counts from ``trips``, and add the iterations that run to
    it.
    """
    token = _CURRENT.set(trips)
    try:
        yield trips
    finally:
        _CURRENT.reset(token)


def current_trips() -> Trips:
    """Return the iteration counts of the current context; outside a profile no counts are stated."""
    return _CURRENT.get() or Trips(lambda: None)
