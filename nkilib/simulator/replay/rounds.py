# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The rounds of a plan: the work of its cores between two barriers, sequential, or parallel if that is faster."""

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

# Starting a thread and waiting for it takes about as long as moving this number of bytes.
_WORTH_A_THREAD = 1 << 20
# The number of timed runs of each way, and the largest ratio of the shortest parallel to the shortest sequential run
# that is worth the CPU time that two threads lose: they wait for the interpreter in every step and share one memory.
_TRIALS, _GAIN = 2, 0.75


class _Ways:
    """The times of a round in its first runs, sequential and parallel, from which the faster way is chosen.

    Args:
        may_pay: whether the work is large enough for a second thread to be worth its cost.
    """

    def __init__(self, may_pay: bool) -> None:
        self._may_pay = may_pay
        self._seconds: dict[bool, list[float]] = {False: [], True: []}

    @property
    def is_side_by_side(self) -> bool:
        """Whether the cores run in parallel in the next run."""
        sequential, parallel = self._seconds[False], self._seconds[True]
        if not self._may_pay or len(sequential) < _TRIALS:
            return self._may_pay and len(parallel) < len(sequential)
        return len(parallel) < _TRIALS or min(parallel) < _GAIN * min(sequential)

    def note(self, is_side_by_side: bool, seconds: float) -> None:
        """Note how long a run took."""
        timings = self._seconds[is_side_by_side]
        if self._may_pay and len(timings) < _TRIALS:
            timings.append(seconds)


class Round:
    """The work of the cores between two barriers or exchanges.

    Args:
        segments: the segment of each core.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        is_large = min(segment.nbytes for segment in segments) > _WORTH_A_THREAD
        self._ways = _Ways(len(segments) > 1 and is_large)

    def run(self, cores: Sequence[Core], *, enters: bool) -> None:
        """Run the segments of the cores, and the barrier or exchange at their end.

        Args:
            cores: the cores of the plan.
            enters: whether the plan has instructions that run as they are: they look up the core of their thread.
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
    """One run of a core's segment of a round.

    Attributes:
        error: the error that ended the run in a thread, or None.
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
        """Run the steps in the calling thread, which was started for them, and keep the error that ends them."""
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
