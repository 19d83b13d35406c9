# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The recordings and plans of each key.

:class:`Entries` has an :class:`Entry` for each key. A key has several plans if a launch depends on values that a plan
checks. The numbers of keys and plans and the bytes of plans are bounded: those used longest ago are dropped first.

A :class:`Planner` records and plans. Entries use it, and its recordings, streams and plans, only through the interfaces
:class:`AnyRecording`, :class:`AnyStream` and :class:`AnyPlan`. A *candidate* is a launch that has a key; a *stream* is
the recorded instructions of a launch.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, NamedTuple, Protocol

from ..launch.kernel import Kernel
from .counts import TALLIES, Tally
from .errors import ReplayFailed, Unplannable
from .key import Candidate

# The most keys, plans and bytes of plans that a process keeps.
MOST_KEYS, MOST_PLANS, MOST_BYTES = 256, 64, 256 * 2**20
# Launches with a key before the first recording, also after the key was dropped to make room.
LAUNCHES_BEFORE, LAUNCHES_AFTER_REMOVAL = 2, 64
# The most keys that are counted before they have an entry. Then counting starts again.
MOST_COUNTED = 4096
# Recordings of which two must be equal to make a plan.
MOST_RECORDINGS = 3
# The most plans of a key, which differ by the values for which they are valid.
MOST_VARIANTS = 4
# Failures since the last plan was made after which the next failing launch is recorded, too.
FAILURES_BEFORE = 1
# Failures in a row after which a key is not planned any more.
MOST_FAILURES = 3
# How often in a row plans may be dropped, because others need their room, before they were worth making; and how many
# replays make a plan worth making.
MOST_RESTARTS, REPLAYS_WORTH_A_PLAN = 4, 8
# Recordings that wait for an equal one, of all keys.
MOST_WAITING = 8


class AnyStream(Protocol):
    """The recorded instructions of a launch, without the data of its tensors."""

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the argument arrays that the launch wrote, counted as in ``Candidate.arrays``."""

    def differs_from(self, other: Any) -> str:
        """Return a text that says how the instructions of another launch differ; empty if they are the same."""


class AnyRecording(Protocol):
    """A launch that was recorded."""

    @property
    def result(self) -> Any:
        """The value that the kernel returned, in the form that the caller gets."""

    @property
    def stream(self) -> AnyStream | None:
        """The instructions of the launch; None if no plan can be made of them."""

    @property
    def refusal(self) -> str:
        """The reason why no plan can be made, if ``stream`` is None."""

    @property
    def error(self) -> Exception | None:
        """The fault of the recorder that prevents a plan; None if the recorder had none."""


class AnyPlan(Protocol):
    """A plan that repeats a launch on the arrays of another launch with the same key."""

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the plan holds between launches."""

    def replay(self, candidate: Candidate) -> Any:
        """Run the plan on the arguments of ``candidate``, and return the value that the launch returns.

        Raises:
            ReplayFailed: if the plan is not valid for the values of this launch. The arguments are then unchanged.
        """


class Planner(Protocol):
    """The interface of an object that records launches, and makes plans of the recordings."""

    def record(
        self,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        candidate: Candidate,
        written: frozenset[int],
    ) -> AnyRecording:
        """Run a launch and record it.

        Only exceptions of the launch are raised: a fault of the recorder becomes the ``error`` of the recording.

        Args:
            kernel: the kernel to launch.
            args: the positional arguments of the launch.
            kwargs: the keyword arguments of the launch.
            candidate: the key and the arrays of the launch.
            written: the numbers of the argument arrays that launches with this key have written so far.
        """

    def build(self, recorded: Any, candidate: Candidate) -> AnyPlan:
        """Return a plan for launches with the key of ``candidate``.

        Args:
            recorded: a recording that equals an earlier one.
            candidate: the launch that was just recorded.

        Raises:
            Unplannable: if no plan can be made.
        """


class Replayed(NamedTuple):
    """The outcome of a launch that ran from a plan.

    Attributes:
        result: the value that the launch returned.
    """

    result: Any


@dataclass(eq=False)
class Entry:
    """The recordings and plans of one key. A thread holds the lock while it changes them.

    Attributes:
        key: the key.
        kept: for each object that the key names by ``id``, a function that returns it, or None if it was deleted.
        tally: the counter of the launches of the kernel.
        lock: the lock that is held during a launch; another launch with the key at that time does not use the entry.
        used: the number of the last use, counted over the uses of all entries; the smallest was used longest ago.
        waiting: the recordings, at most two, that equal no earlier one; two equal recordings make a plan.
        recordings: the number of recordings since the last plan was made.
        plans: the plans of the key, the last valid one in front.
        failures: the number of launches since the last plan was made for which no plan was valid.
        failures_in_a_row: the number of launches without a valid plan since a plan was valid.
        replays: the number of replays since the last plan was made.
        restarts: how often in a row the plans were dropped after fewer than :data:`REPLAYS_WORTH_A_PLAN` replays.
        reason: the reason why the key is not planned any more; empty if it still is.
    """

    key: Hashable
    kept: list[Callable[[], Any]]
    tally: Tally
    lock: Lock = field(default_factory=Lock)
    used: int = 0
    waiting: list[AnyStream] = field(default_factory=list)
    recordings: int = 0
    plans: list[AnyPlan] = field(default_factory=list)
    failures: int = 0
    failures_in_a_row: int = 0
    replays: int = 0
    restarts: int = 0
    reason: str = ""

    def is_for(self, candidate: Candidate) -> bool:
        """Return whether a launch has the same key, and each ``id`` in the key still stands for the same object."""
        if self.key != candidate.key:
            return False
        return all(get() is value for get, value in zip(self.kept, candidate.kept, strict=True))

    @property
    def written(self) -> frozenset[int]:
        """The numbers of the argument arrays that were written in the launches of the waiting recordings."""
        return frozenset().union(*[stream.written for stream in self.waiting])

    @property
    def is_to_be_recorded(self) -> bool:
        """Whether the next launch is to be recorded if no plan is valid for it."""
        if self.reason or self.recordings >= MOST_RECORDINGS:
            return False
        return not self.plans or (len(self.plans) < MOST_VARIANTS and self.failures > FAILURES_BEFORE)

    def replay(self, candidate: Candidate) -> Replayed | None:
        """Run a launch from the first plan that is valid for it.

        Returns:
            The outcome; None if no plan is valid. Then nothing has changed.
        """
        for position, plan in enumerate(self.plans):
            try:
                result = plan.replay(candidate)
            except ReplayFailed:
                continue
            except Exception:
                self.give_up("its plan failed with an error")
                raise
            if position:
                self.plans = [plan, *self.plans[:position], *self.plans[position + 1 :]]
            self.failures_in_a_row = 0
            self.replays += 1
            self.tally.add("replayed")
            return Replayed(result)
        if self.plans:
            self.failures += 1
            self.failures_in_a_row += 1
            self.tally.add("failed")
        return None

    def learn(self, recorded: AnyRecording, candidate: Candidate, planner: Planner) -> None:
        """Make a plan if ``recorded`` equals an earlier recording; else keep it for comparison with later recordings.

        Raises:
            Unplannable: if no plan can be made, now or later.
            Exception: if the recorder or the planner has a fault.
        """
        self.recordings += 1
        if recorded.error is not None:
            raise recorded.error
        if recorded.stream is None:
            raise Unplannable(recorded.refusal)
        difference = ""
        for earlier in self.waiting:
            difference = earlier.differs_from(recorded.stream)
            if not difference:
                self._plan(recorded, candidate, planner)
                return
        if self.recordings >= MOST_RECORDINGS and not self.plans:
            raise Unplannable(f"what it does differs from launch to launch: {difference}")
        self.waiting = [*self.waiting[-1:], recorded.stream]

    def check_failures(self) -> None:
        """Stop planning this key if no plan was valid for too many launches in a row."""
        if self.failures_in_a_row >= MOST_FAILURES and not self.reason:
            self.give_up("values that decide what it does differ from launch to launch")

    def make_room(self) -> None:
        """Drop the plans to free memory; give up if they were dropped too often in a row after few replays."""
        self.restarts = 0 if self.replays >= REPLAYS_WORTH_A_PLAN else self.restarts + 1
        self.drop_plans()
        if self.restarts >= MOST_RESTARTS:
            self.give_up("its plans had to go too often: there are more launches than plans are kept")

    def refuse(self, reason: str) -> None:
        """Stop recording launches with this key; existing plans stay in use."""
        if self.plans:
            self.waiting, self.recordings = [], MOST_RECORDINGS
        else:
            self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Drop the plans, and run every further launch with this key instruction by instruction."""
        self.drop_plans()
        self.reason = reason or "its recorder does not say"

    def drop_plans(self) -> None:
        self.plans, self.waiting = [], []
        self.recordings = self.failures = self.failures_in_a_row = self.replays = 0

    def _plan(self, recorded: AnyRecording, candidate: Candidate, planner: Planner) -> None:
        plan = planner.build(recorded, candidate)
        if plan.nbytes > MOST_BYTES:
            raise Unplannable(f"its plan would take {plan.nbytes:,} bytes, more than {MOST_BYTES:,}")
        self.plans = [plan, *self.plans]
        self.waiting = []
        self.recordings = self.failures = self.failures_in_a_row = self.replays = 0
        self.tally.add("planned")


@dataclass(frozen=True)
class _Held:
    """A strong reference with the interface of a weak one, for an object of a type that has no weak references."""

    value: Any

    def __call__(self) -> Any:
        return self.value


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:
        return _Held(value)


class Entries:
    """The entries of a process, one for each key of launches that was recorded or planned."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by the hash of the key, which takes longer than all else here
        self._ended: dict[int, int] = {}  # launches that ran instruction by instruction, of keys without an entry
        self._lock = Lock()
        self._clock = count(1)
        # Keys whose kernel is gone: it may go at any time, also while the lock is held.
        self._orphans: deque[int] = deque()

    def of(self, candidate: Candidate, kernel: str) -> Entry | None:
        """Return the entry for the key of a launch; None if too few launches had this key to record one.

        Args:
            candidate: the launch.
            kernel: the name of the kernel.
        """
        if self._orphans:
            self._drop_orphans()
        number = hash(candidate.key)
        entry = self._entries.get(number)
        if entry is None or not entry.is_for(candidate):
            if self._ended.get(number, 0) < LAUNCHES_BEFORE:
                return None
            entry = self._add(number, candidate, kernel)
        entry.used = next(self._clock)
        return entry

    def note_end(self, candidate: Candidate) -> None:
        """Count a launch whose key has no entry yet and that ran, instruction by instruction, to its end."""
        number = hash(candidate.key)
        if len(self._ended) >= MOST_COUNTED:
            self._ended.clear()
        self._ended[number] = self._ended.get(number, 0) + 1

    def trim(self) -> None:
        """Drop plans and waiting recordings beyond the limits of this module, those used longest ago first."""
        with self._lock:
            plans = size = waiting = 0
            for entry in sorted(self._entries.values(), key=lambda each: each.used, reverse=True):
                waiting += len(entry.waiting)
                if waiting > MOST_WAITING:
                    entry.waiting = []
                plans += len(entry.plans)
                size += sum(plan.nbytes for plan in entry.plans)
                if entry.plans and (plans > MOST_PLANS or size > MOST_BYTES):
                    entry.make_room()

    @property
    def plans(self) -> Iterator[AnyPlan]:
        """Return an iterator over all plans of all keys."""
        with self._lock:
            entries = [*self._entries.values()]
        return (plan for entry in entries for plan in entry.plans)

    def __len__(self) -> int:
        return len(self._entries)

    def _add(self, number: int, candidate: Candidate, kernel: str) -> Entry:
        func, *others = candidate.kept
        orphan = weakref.ref(func, partial(self._note_orphan, number))
        entry = Entry(candidate.key, [orphan, *map(_reference, others)], TALLIES.of(kernel))
        with self._lock:
            self._entries.pop(number, None)
            if len(self._entries) >= MOST_KEYS:
                # A quarter at a time, because finding the oldest takes a look at all.
                oldest = sorted(self._entries.items(), key=lambda item: item[1].used)[: MOST_KEYS // 4]
                for old, _ in oldest:
                    del self._entries[old]
                    # Otherwise launches that alternate between too many keys would be recorded for ever.
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
