# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The verdict of the tests on mutants (:class:`Judge`), and the page that lists the mutants by verdict
(:func:`report`).

Tests that fail in the unchanged checkout too are ignored.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from .checkout import Copy, Mutant, Outcome, Run, run, tests_of


class Verdict(Enum):
    """The verdict of the tests on a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    LATE = "undecided: the tests took longer than the limit"
    NOT_RUN = "not run: no time was left"


@dataclass(frozen=True)
class Judged:
    """A mutant and its verdict.

    Attributes:
        mutant: the mutant.
        verdict: the verdict of the tests.
        test: the test that failed with the mutant; "" if no test failed or pytest could not start.
        is_reached: whether a test evaluates the expression of a survivor; None if this was not tried or not finished.
    """

    mutant: Mutant
    verdict: Verdict
    test: str = ""
    is_reached: bool | None = None


@dataclass
class Judge:
    """A runner of the tests of mutants. Many threads may use one judge at a time.

    Attributes:
        limit: the most seconds that the tests of one mutant may take.
        deadline: the value of :func:`time.monotonic` at which all work must have ended.
        asks_reach: whether to run the tests of a survivor again with an expression that raises in its place.
        marks: the tests that run, as an expression of pytest's ``-m``.
    """

    limit: float
    deadline: float
    asks_reach: bool = False
    marks: str = "not sweep"
    _sound: set[str] = field(default_factory=set)
    _broken: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def judge(self, mutant: Mutant, copy: Copy) -> Judged:
        """Return the verdict on a mutant, and leave the copy unchanged."""
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
        """Run the tests of a mutant, and ignore those that do not pass in the checkout."""
        if not tests:
            return Run(Outcome.PASSED)
        while True:
            copy.write(mutant, raises)
            done = self._run(copy, tests, end, *self._left_out())
            if done.outcome is not Outcome.FAILED or self._is_sound(copy, mutant, done.test or tests[0], end):
                return done

    def _is_sound(self, copy: Copy, mutant: Mutant, test: str, end: float) -> bool:
        """Return whether a test passes in the checkout. A folder or a test that does not finish counts as sound."""
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
        return run(copy.root, tests, min(end - time.monotonic(), self._left()), "-m", self.marks, *options)

    def _left(self) -> float:
        return self.deadline - time.monotonic()


# Write the results of a run of mutants as a page.

_REACHED = {None: "", True: "yes", False: "no"}


def report(head: str, judged: list[Judged]) -> str:
    """Return a page with the head, the counts, the survivors, the undecided mutants and the killed mutants."""
    counts = Counter(item.verdict for item in judged)
    lines = [head, "", "; ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict), ""]
    lines += ["| survivor | from | to | a test reaches it |", "|---|---|---|---|"]
    lines += [f"| {_change(item)} | {_REACHED[item.is_reached]} |" for item in _of(judged, Verdict.SURVIVED)]
    for verdict in (Verdict.LATE, Verdict.NOT_RUN):
        if counts[verdict]:
            lines += ["", f"| {verdict.value} | from | to |", "|---|---|---|"]
            lines += [f"| {_change(item)} |" for item in _of(judged, verdict)]
    lines += ["", "| killed | from | to | by |", "|---|---|---|---|"]
    lines += [f"| {_change(item)} | {_cell(item.test or 'an import')} |" for item in _of(judged, Verdict.KILLED)]
    return "\n".join(lines) + "\n"


def _of(judged: list[Judged], verdict: Verdict) -> list[Judged]:
    return sorted((item for item in judged if item.verdict is verdict), key=lambda item: item.mutant.place)


def _change(judged: Judged) -> str:
    change = judged.mutant.change
    return f"{judged.mutant.place} | {_cell(change.before)} | {_cell(change.after)}"


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
