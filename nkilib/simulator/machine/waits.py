# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of which of the threads that simulate cores wait; it detects a deadlock of all threads that are left."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

# How many instructions more than a failed core another one may run, to come to an error of its own. Cores run much the
# same program; a core that runs for ever must not keep the launch from ending.
ALLOWANCE = 100_000


@dataclass(frozen=True, eq=False)
class Wait:
    """One thread that waits.

    Attributes:
        who: the name of the thread.
        where: the operation in which it waits.
    """

    who: str
    where: str


class Waits:
    """The threads of cores that depend on each other, and the condition variable on which all of them wait.

    Everything but :attr:`changed` is read and written only while :attr:`changed` is held.

    Attributes:
        changed: the condition variable that wakes the waiting threads.
        is_stuck: whether at some moment every thread waited or had ended; it stays so.
        is_stuck_by_failure: whether a thread had failed at that moment.
        is_aborted: whether all threads shall end at once.
        is_over: whether every thread has ended.
    """

    def __init__(self, threads: int) -> None:
        self.changed = threading.Condition()
        self.is_stuck = False
        self.is_stuck_by_failure = False
        self.is_aborted = False
        self._threads = threads
        self._waiting: list[Wait] = []
        self._ended: dict[int, str] = {}
        self._failed: dict[int, int] = {}
        self._described = ""

    @property
    def is_over(self) -> bool:
        return len(self._ended) == self._threads

    def begin(self, where: str) -> Wait:
        """Record that this thread starts to wait in ``where``."""
        wait = Wait(threading.current_thread().name, where)
        self._waiting.append(wait)
        self._notice()
        return wait

    def release(self, waits: Iterable[Wait]) -> None:
        """End these waits, because their condition holds, and wake the threads."""
        self.withdraw(waits)
        self.changed.notify_all()

    def withdraw(self, waits: Iterable[Wait]) -> None:
        """Remove these waits."""
        for wait in waits:
            if wait in self._waiting:
                self._waiting.remove(wait)

    @property
    def has_failed(self) -> bool:
        """Whether a thread has failed."""
        return bool(self._failed)

    @property
    def is_ending(self) -> bool:
        """Whether all threads shall end: no thread is left that can fail with a lower number than the failed ones."""
        if self.is_aborted or not self._failed:
            return self.is_aborted
        return all(number in self._ended for number in range(min(self._failed)))

    def may_go_on(self, issued: int) -> bool:
        """Return whether a thread may run on that has issued so many instructions, although another one has failed."""
        return not self.is_ending and issued <= max(self._failed.values(), default=issued) + ALLOWANCE

    def finish(self, number: int, failed_after: int | None = None) -> None:
        """Record that this thread, the thread of core ``number``, has ended.

        Args:
            number: the number of its core among all cores.
            failed_after: if it has failed, the number of instructions that it had issued; else None.
        """
        self._ended[number] = threading.current_thread().name
        if failed_after is not None:
            self._failed[number] = failed_after
        self.changed.notify_all()
        self._notice()

    def abort(self) -> None:
        """Let all threads end, at their next instruction or where they wait."""
        self.is_aborted = True
        self.changed.notify_all()

    def describe(self) -> str:
        """Return text that says which threads wait where, and which have ended; if stuck, as of that moment."""
        return self._described or self._description()

    def _description(self) -> str:
        by_place: dict[str, list[str]] = {}
        for wait in sorted(self._waiting, key=lambda wait: wait.who):
            by_place.setdefault(wait.where, []).append(wait.who)
        sentences = [f"{_listed(who)} {'waits' if len(who) == 1 else 'wait'} in {at}" for at, who in by_place.items()]
        if self._ended:
            sentences.append(f"ended: {_listed(sorted(self._ended.values()))}")
        return "; ".join(sentences)

    def _notice(self) -> None:
        if len(self._waiting) + len(self._ended) == self._threads and self._waiting and not self.is_stuck:
            self.is_stuck, self.is_stuck_by_failure = True, self.has_failed
            self._described = self._description()
            self.changed.notify_all()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace(",", "") for name in names)
