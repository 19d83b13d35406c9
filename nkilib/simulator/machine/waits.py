# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of which of the threads that simulate cores wait; it detects a deadlock of all threads that are left."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass


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
        is_over: whether every thread has ended.
    """

    def __init__(self, threads: int) -> None:
        self.changed = threading.Condition()
        self.is_stuck = False
        self._threads = threads
        self._waiting: list[Wait] = []
        self._ended: list[str] = []

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

    def finish(self) -> None:
        """Record that this thread has ended."""
        self._ended.append(threading.current_thread().name)
        self.changed.notify_all()
        self._notice()

    def describe(self) -> str:
        """Return text that says which threads wait where, and which have ended."""
        by_place: dict[str, list[str]] = {}
        for wait in sorted(self._waiting, key=lambda wait: wait.who):
            by_place.setdefault(wait.where, []).append(wait.who)
        sentences = [f"{_listed(who)} {'waits' if len(who) == 1 else 'wait'} in {at}" for at, who in by_place.items()]
        if self._ended:
            sentences.append(f"ended: {_listed(sorted(self._ended))}")
        return "; ".join(sentences)

    def _notice(self) -> None:
        if len(self._waiting) + len(self._ended) == self._threads and self._waiting:
            self.is_stuck = True
            self.changed.notify_all()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace(",", "") for name in names)
