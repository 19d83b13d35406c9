# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What is known of launches by their keys: how often they ran, what was recorded of them, and the plans made of it.

A key has several plans where what a launch does depends on values that a plan checks. Keys, plans and their bytes are
bounded: those used longest ago go first.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple, Protocol

from ..launch.kernel import Kernel
from .code import CodeWatch
from .counts import TALLIES, Tally
from .errors import ReplayFailed, Unplannable
from .key import Given
from .snapshot import Snapshot

# So many keys, plans and bytes of plans a process keeps.
MOST_KEYS, MOST_PLANS, MOST_BYTES = 256, 64, 256 * 2**20
# Launches with a key before the first one that is recorded; and after the key had to go to make place.
LAUNCHES_BEFORE, LAUNCHES_AFTER_REMOVAL = 2, 64
# So many keys are counted before they have an entry. Then counting starts again.
MOST_COUNTED = 4096
# Recordings of which two must be equal to make a plan.
MOST_RECORDINGS = 3
# Plans of a key, which differ by the values on which they are right.
MOST_VARIANTS = 4
# Failures since the last plan was made, after which the launch that fails next is recorded too.
FAILURES_BEFORE = 1
# Failures in a row, after which a key is given up.
MOST_FAILURES = 3
# How often in a row plans may go, because code has changed or others need their place, before they were worth making:
# before they have run so often.
MOST_RESTARTS, REPLAYS_WORTH_A_PLAN = 4, 8
# Recordings that wait for an equal one, of all keys.
MOST_WAITING = 8


class Stream(Protocol):
    """What a launch did, without the data of its tensors."""

    @property
    def written(self) -> frozenset[int]:
        """Which of its argument arrays it wrote."""

    def differs_from(self, other: Any) -> str:
        """How another launch was unlike, in a few words; empty if it was the same."""


class Recorded(Protocol):
    """A launch that was recorded."""

    @property
    def result(self) -> Any:
        """What the kernel returned, as it is given to the caller."""

    @property
    def stream(self) -> Stream | None:
        """What it did; None if no plan can be made of it."""

    @property
    def refusal(self) -> str:
        """Then why."""

    @property
    def error(self) -> Exception | None:
        """A mistake of the recorder that is the reason."""


class Plan(Protocol):
    """Does what a launch did, on other arrays."""

    @property
    def nbytes(self) -> int:
        """Memory that it holds between launches."""

    def run(self, given: Given) -> Any:
        """The result of the launch.

        Raises:
            ReplayFailed: if it is not right for the values of this launch; the arguments are as they were.
        """


class Planner(Protocol):
    """Records launches, and makes plans."""

    def record(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Given,
        watch: CodeWatch,
        written: frozenset[int],
    ) -> Recorded:
        """Run a launch and record it; the thread of each core is inside ``watch.here()`` while it runs the kernel.

        ``written`` are the argument arrays that launches with this key have written so far.

        Raises what the launch raises and nothing else: a mistake of the recorder is an ``error``.
        """

    def build(self, recorded: Any, given: Given) -> Plan:
        """A plan of a launch that was recorded twice; this is the second time, and it has just run.

        Raises:
            Unplannable: if there is none.
        """


class _Waiting(NamedTuple):
    """A recording that waits for an equal one.

    Attributes:
        stream: what the launch did.
        snapshot: what its code read; None if it was not watched, which takes as long as the launch.
    """

    stream: Stream
    snapshot: Snapshot | None


class Variant(NamedTuple):
    """A plan, and what must not have changed for it to be right.

    Attributes:
        plan: it.
        snapshot: of the code that it was recorded from.
    """

    plan: Plan
    snapshot: Snapshot


class Replayed(NamedTuple):
    """A launch that ran from a plan.

    Attributes:
        result: what it returned.
    """

    result: Any


@dataclass(eq=False)
class Entry:
    """What is known of one key. Whoever changes it holds its lock.

    Attributes:
        key: it.
        kept: give the objects that the key names by ``id``, None where one is gone.
        tally: counts the launches of the kernel.
        lock: held during a launch; another launch with the key at that time knows nothing of it.
        used: a number that is higher the later it was used last.
        waiting: recordings without an equal one, at most two.
        recordings: since the last plan was made.
        variants: its plans, the one that was right last in front.
        failures: launches since the last plan was made for which no plan was right.
        failures_in_a_row: such launches since a plan was right.
        replays: since the last plan was made.
        restarts: how often in a row its plans were dropped before they were worth making.
        reason: why it has been given up; empty if it has not.
    """

    key: Hashable
    kept: list[Callable[[], Any]]
    tally: Tally
    lock: Lock = field(default_factory=Lock)
    used: int = 0
    waiting: list[_Waiting] = field(default_factory=list)
    recordings: int = 0
    variants: list[Variant] = field(default_factory=list)
    failures: int = 0
    failures_in_a_row: int = 0
    replays: int = 0
    restarts: int = 0
    reason: str = ""

    def is_for(self, given: Given) -> bool:
        """Whether it is that of a launch: of its key, with the same objects behind the ``id`` of each."""
        if self.key != given.key:
            return False
        return all(get() is value for get, value in zip(self.kept, given.kept, strict=True))

    @property
    def written(self) -> frozenset[int]:
        """The argument arrays that its recorded launches have written, of those that wait for an equal one."""
        return frozenset().union(*[each.stream.written for each in self.waiting])

    @property
    def is_to_be_recorded(self) -> bool:
        """Whether its next launch that no plan is right for is recorded."""
        if self.reason or self.recordings >= MOST_RECORDINGS:
            return False
        return not self.variants or (len(self.variants) < MOST_VARIANTS and self.failures > FAILURES_BEFORE)

    def replay(self, given: Given) -> Replayed | None:
        """The launch from the first plan that is right for it; None if there is none, and all is as before."""
        for position, variant in enumerate(self.variants):
            if not variant.snapshot.is_current():
                self.restart("code of the kernel, or something that it reads, changes between launches")
                return None
            try:
                result = variant.plan.run(given)
            except ReplayFailed:
                continue
            except Exception:
                self.give_up("its plan failed with an error")
                raise
            if position:
                self.variants = [variant, *self.variants[:position], *self.variants[position + 1 :]]
            self.failures_in_a_row = 0
            self.replays += 1
            self.tally.add("replayed")
            return Replayed(result)
        if self.variants:
            self.failures += 1
            self.failures_in_a_row += 1
            self.tally.add("failed")
        return None

    def watch(self) -> CodeWatch:
        """For the next recording. Of two equal ones one is watched, since that takes as long as the launch."""
        return CodeWatch(is_on=self.recordings != 1)

    def learn(self, recorded: Recorded, watch: CodeWatch, given: Given, planner: Planner) -> None:
        """Take note of a recorded launch, and make a plan if it is the second of its kind.

        Raises:
            Unplannable: if none can be made, now or later.
            Exception: a mistake of the recorder or of the planner.
        """
        self.recordings += 1
        if recorded.error is not None:
            raise recorded.error
        if recorded.stream is None:
            raise Unplannable(recorded.refusal)
        functions = [value for value in given.kept if isinstance(value, FunctionType)]
        new = _Waiting(recorded.stream, watch.snapshot(functions) if watch.is_on else None)
        difference = ""
        for earlier in self.waiting:
            difference = earlier.stream.differs_from(new.stream)
            snapshot = earlier.snapshot or new.snapshot
            if not difference and snapshot is not None:
                if not snapshot.is_current():
                    raise Unplannable("something that its code reads changes with every launch")
                self._plan(recorded, snapshot, given, planner)
                return
        if self.recordings >= MOST_RECORDINGS and not self.variants:
            raise Unplannable(f"what it does differs from launch to launch: {difference}")
        self.waiting = [*self.waiting[-1:], new]

    def check_failures(self) -> None:
        """After a launch for which no plan was right: give up if there were too many."""
        if self.failures_in_a_row >= MOST_FAILURES and not self.reason:
            self.give_up("values that decide what it does differ from launch to launch")

    def restart(self, reason: str) -> None:
        """Its plans are gone: record anew, or give up for ``reason`` if that has happened often."""
        self.restarts = 0 if self.replays >= REPLAYS_WORTH_A_PLAN else self.restarts + 1
        self.drop_plans()
        if self.restarts >= MOST_RESTARTS:
            self.give_up(reason)

    def refuse(self, reason: str) -> None:
        """Record no more of it: without plans it is given up, with plans it goes on with these."""
        if self.variants:
            self.waiting, self.recordings = [], MOST_RECORDINGS
        else:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Run every launch with this key as today."""
        self.drop_plans()
        self.reason = reason or "its recorder does not say"

    def drop_plans(self) -> None:
        self.variants, self.waiting = [], []
        self.recordings = self.failures = self.failures_in_a_row = self.replays = 0

    def _plan(self, recorded: Recorded, snapshot: Snapshot, given: Given, planner: Planner) -> None:
        plan = planner.build(recorded, given)
        if plan.nbytes > MOST_BYTES:
            raise Unplannable(f"its plan would take {plan.nbytes:,} bytes, more than {MOST_BYTES:,}")
        self.variants = [Variant(plan, snapshot), *self.variants]
        self.waiting = []
        self.recordings = self.failures = self.failures_in_a_row = self.replays = 0
        self.tally.add("planned")


class Entries:
    """The entries of a process, by key."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by the hash of the key, which takes longer than all else here
        self._ended: dict[int, int] = {}  # launches as today of keys without an entry
        self._lock = Lock()
        self._clock = count(1)
        # Keys whose kernel is gone: it may go at any time, also while the lock is held.
        self._orphans: deque[int] = deque()

    def of(self, given: Given, kernel: str) -> Entry | None:
        """The entry of a key; None if it has none because there were too few launches."""
        if self._orphans:
            self._drop_orphans()
        number = hash(given.key)
        entry = self._entries.get(number)
        if entry is None or not entry.is_for(given):
            if self._ended.get(number, 0) < LAUNCHES_BEFORE:
                return None
            entry = self._add(number, given, kernel)
        entry.used = next(self._clock)
        return entry

    def note_end(self, given: Given) -> None:
        """A launch as today, of a key without an entry, has come to its end."""
        number = hash(given.key)
        if len(self._ended) >= MOST_COUNTED:
            self._ended.clear()
        self._ended[number] = self._ended.get(number, 0) + 1

    def trim(self) -> None:
        """After a plan or a recording was added: drop the ones used longest ago that are too many."""
        with self._lock:
            plans = size = waiting = 0
            for entry in sorted(self._entries.values(), key=lambda each: each.used, reverse=True):
                waiting += len(entry.waiting)
                if waiting > MOST_WAITING:
                    entry.waiting = []
                plans += len(entry.variants)
                size += sum(variant.plan.nbytes for variant in entry.variants)
                if entry.variants and (plans > MOST_PLANS or size > MOST_BYTES):
                    entry.restart("its plans had to go too often: there are more launches than plans are kept")

    @property
    def variants(self) -> Iterator[Variant]:
        """All plans."""
        with self._lock:
            entries = [*self._entries.values()]
        return (variant for entry in entries for variant in entry.variants)

    def __len__(self) -> int:
        return len(self._entries)

    def _add(self, number: int, given: Given, kernel: str) -> Entry:
        func, *others = given.kept
        orphan = weakref.ref(func, partial(self._note_orphan, number))
        entry = Entry(given.key, [orphan, *map(_reference, others)], TALLIES.of(kernel))
        with self._lock:
            self._entries.pop(number, None)
            if len(self._entries) >= MOST_KEYS:
                # A quarter at a time: to find the oldest takes a look at all.
                oldest = sorted(self._entries.items(), key=lambda item: item[1].used)[: MOST_KEYS // 4]
                for old, _ in oldest:
                    del self._entries[old]
                    # Launches of too many keys in turn would else be recorded for ever.
                    self._ended[old] = LAUNCHES_BEFORE - LAUNCHES_AFTER_REMOVAL
            self._entries[number] = entry
        return entry

    def _note_orphan(self, number: int, gone: Any) -> None:
        self._orphans.append(number)

    def _drop_orphans(self) -> None:
        with self._lock:
            while self._orphans:
                number = self._orphans.popleft()
                entry = self._entries.get(number)
                if entry is not None and entry.kept[0]() is None:
                    del self._entries[number]
                    self._ended.pop(number, None)


@dataclass(frozen=True)
class _Held:
    """Gives an object of a type that has no weak references."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return _Held(value)
