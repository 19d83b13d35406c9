# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the cores of a plan do between two meetings: in turns, or side by side where that is worth a thread."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Thread
from time import perf_counter

import numpy as np

from ..hardware.current import enter
from ..machine.core import Core
from .builder import Segment
from .meetings import exchange
from .work import Meeting

# To start a thread and wait for it takes about as long as to move so many bytes.
_WORTH_A_THREAD = 1 << 20
# Runs of each way that are timed, and what the shortest run side by side takes at most of the shortest one in turns to
# be worth the CPU time that two threads lose: they wait for the interpreter in every step, and one memory serves both.
_TRIALS, _GAIN = 2, 0.75


class _Ways:
    """Which way to run a round is faster on this machine: found out in the first runs.

    Args:
        may_pay: whether it may be worth a thread at all.
    """

    def __init__(self, may_pay: bool) -> None:
        self._may_pay = may_pay
        self._seconds: dict[bool, list[float]] = {False: [], True: []}

    @property
    def is_side_by_side(self) -> bool:
        """How the next run goes."""
        in_turns, beside = self._seconds[False], self._seconds[True]
        if not self._may_pay or len(in_turns) < _TRIALS:
            return self._may_pay and len(beside) < len(in_turns)
        return len(beside) < _TRIALS or min(beside) < _GAIN * min(in_turns)

    def note(self, is_side_by_side: bool, seconds: float) -> None:
        """A run has ended."""
        taken = self._seconds[is_side_by_side]
        if self._may_pay and len(taken) < _TRIALS:
            taken.append(seconds)


class Round:
    """What the cores do between two meetings.

    Args:
        segments: of each core.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        is_large = min(segment.nbytes for segment in segments) > _WORTH_A_THREAD
        self._ways = _Ways(len(segments) > 1 and is_large)

    def run(self, cores: Sequence[Core], *, enters: bool) -> None:
        """Do what each core does, and let them meet.

        Args:
            cores: of the plan.
            enters: whether instructions run as they are, which ask for the core of their thread.
        """
        runs = [_Run(core, segment, enters) for core, segment in zip(cores, self.segments, strict=True)]
        is_side_by_side, start = self._ways.is_side_by_side, perf_counter()
        if is_side_by_side:
            _run_side_by_side(*runs)
        else:
            for run in runs:
                run()
        self._ways.note(is_side_by_side, perf_counter() - start)
        meetings: list[Meeting] = [segment.meeting for segment in self.segments if segment.meeting is not None]
        if meetings:
            exchange(cores, meetings)


class _Run:
    """The steps of one core.

    Attributes:
        error: that ended them.
    """

    def __init__(self, core: Core, segment: Segment, enters: bool) -> None:
        self._core, self._segment, self._enters = core, segment, enters
        self.error: BaseException | None = None

    def __call__(self) -> None:
        if self._enters:
            enter(self._core)
        try:
            for step in self._segment.steps.all:
                step()
        finally:
            if self._enters:
                enter(None)

    def in_thread(self) -> None:
        """The same in a thread of its own, which hands its error on."""
        try:
            with np.errstate(all="ignore"):
                self()
        except BaseException as error:
            self.error = error


def _run_side_by_side(first: _Run, second: _Run) -> None:
    thread = Thread(target=second.in_thread, name="core 1, replayed")
    thread.start()
    try:
        first()
    finally:
        thread.join()
    if second.error is not None:
        raise second.error
