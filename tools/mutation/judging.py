"""Whether tests tell a mutant from the checkout. What fails in the checkout too tells nothing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import Enum

from .checkout import Copy, Mutant
from .suite import Outcome, Run, run, tests_of


class Verdict(Enum):
    """What the tests made of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    LATE = "undecided: the tests took longer than the limit"
    NOT_RUN = "not run: no time was left"


@dataclass(frozen=True)
class Judged:
    """A mutant and its verdict.

    Attributes:
        mutant: of which it is.
        verdict: what the tests made of it.
        test: that failed with it; "" if pytest could not even start, or none failed.
        is_reached: of a survivor, whether a test evaluates the expression; None if that was not tried or not finished.
    """

    mutant: Mutant
    verdict: Verdict
    test: str = ""
    is_reached: bool | None = None


@dataclass
class Judge:
    """Runs the tests of mutants, from many threads at a time.

    Attributes:
        limit: seconds for the tests of one mutant.
        deadline: when all must be done, of :func:`time.monotonic`.
        asks_reach: run the tests of a survivor again with an expression that raises in its place.
    """

    limit: float
    deadline: float
    asks_reach: bool = False
    _sound: set[str] = field(default_factory=set)
    _broken: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, mutant: Mutant, copy: Copy) -> Judged:
        """The verdict about a mutant; the copy is left as it came."""
        if self._left() <= 0.0:
            return Judged(mutant, Verdict.NOT_RUN)
        tests, end = tests_of(copy.root, mutant.path), time.monotonic() + self.limit
        try:
            done = self._told(copy, mutant, tests, end)
            if done.outcome is Outcome.FAILED:
                return Judged(mutant, Verdict.KILLED, done.test)
            if done.outcome is Outcome.LATE:
                return Judged(mutant, Verdict.LATE)
            return Judged(mutant, Verdict.SURVIVED, is_reached=self._reached(copy, mutant, tests))
        finally:
            copy.restore(mutant)

    def _told(self, copy: Copy, mutant: Mutant, tests: list[str], end: float, raises: bool = False) -> Run:
        """Of the tests that pass in the checkout."""
        if not tests:
            return Run(Outcome.PASSED)
        while True:
            copy.write(mutant, raises)
            done = self._run(copy, tests, end, *self._left_out())
            if done.outcome is not Outcome.FAILED or self._is_sound(copy, mutant, done.test or tests[0], end):
                return done

    def _is_sound(self, copy: Copy, mutant: Mutant, test: str, end: float) -> bool:
        """Whether a test passes in the checkout. One that does not finish, or that is a folder, counts as sound."""
        with self._lock:
            if test in self._sound:
                return True
        copy.restore(mutant)
        is_folder = ".py" not in test
        done = self._run(copy, [test], end, *(["--collect-only"] if is_folder else []))
        if is_folder and done.outcome is Outcome.FAILED:
            raise RuntimeError(f"mutate: {test} must be collected by pytest in the checkout; run the tests there first")
        with self._lock:
            (self._broken if done.outcome is Outcome.FAILED else self._sound).add(test)
        return done.outcome is not Outcome.FAILED

    def _left_out(self) -> list[str]:
        with self._lock:
            return [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in sorted(self._broken)]

    def _reached(self, copy: Copy, mutant: Mutant, tests: list[str]) -> bool | None:
        if not self.asks_reach:
            return None
        done = self._told(copy, mutant, tests, time.monotonic() + self.limit, raises=True)
        return None if done.outcome is Outcome.LATE else done.outcome is Outcome.FAILED

    def _run(self, copy: Copy, tests: list[str], end: float, *options: str) -> Run:
        return run(copy.root, tests, min(end - time.monotonic(), self._left()), *options)

    def _left(self) -> float:
        return self.deadline - time.monotonic()
