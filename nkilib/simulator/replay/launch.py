# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The choice of how a launch runs: from a plan, or instruction by instruction, with or without recording."""

from __future__ import annotations

import sys
from operator import attrgetter
from typing import Any

from nkilib.base.work import is_replayable, is_unreplayed

from ..hardware.options import ALWAYS, CHECKS, CHECKS_OF_SHAPES, Options, raises_errors_of_replay
from ..launch.kernel import AsToday, Kernel
from ..launch.place import Place
from ..machine.observer import active_watchers
from .counts import TALLIES
from .entries import Entries, Entry, Planner
from .errors import Unplannable
from .key import Candidate, Refusal, candidate_of
from .planner import LaunchPlanner

_levels_of = attrgetter(*[name for name in CHECKS if name not in CHECKS_OF_SHAPES])
_STATES_NOTHING = "it does not state that it may be replayed: nkilib.nki.replayable"


class Launches:
    """The launches of a process: each of them runs through :meth:`run`.

    Args:
        planner: the planner that records and plans; None runs everything instruction by instruction.
    """

    def __init__(self, planner: Planner | None) -> None:
        self.entries = Entries()
        self._planner = planner
        self._free: Options | None = None  # options that keep no launch from being replayed

    def run(
        self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place, as_today: AsToday, /
    ) -> Any:
        """Run a launch and return the value that the kernel returns.

        Args:
            kernel: the kernel to launch.
            args, kwargs: its arguments.
            place: the place where it runs.
            as_today: the function that runs it instruction by instruction.

        Raises:
            Exception: whatever ``as_today`` raises.
        """
        planner = self._planner
        if planner is None:
            return as_today(kernel, args, kwargs, place)
        options = place.options
        hindrance = _hindrance(kernel, options, self._free)
        if hindrance:
            return _refused(hindrance, kernel, args, kwargs, place, as_today)
        self._free = options
        candidate = candidate_of(kernel, options, args, kwargs)
        if isinstance(candidate, Refusal):
            return _refused(candidate.reason, kernel, args, kwargs, place, as_today)
        entry = self.entries.of(candidate, kernel.__name__)
        if entry is None:
            result = _refused("", kernel, args, kwargs, place, as_today)
            self.entries.note_end(candidate)
            return result
        if entry.reason:
            return _refused(entry.reason, kernel, args, kwargs, place, as_today)
        if not entry.lock.acquire(blocking=False):
            return _refused("the same launch runs in another thread", kernel, args, kwargs, place, as_today)
        try:
            replayed = entry.replay(candidate)
            if replayed is not None:
                return replayed.result
            if entry.is_to_be_recorded:
                return self._record(planner, entry, candidate, kernel, args, kwargs)
            entry.check_failures()
            return _refused(entry.reason, kernel, args, kwargs, place, as_today)
        finally:
            entry.lock.release()

    def _record(
        self,
        planner: Planner,
        entry: Entry,
        candidate: Candidate,
        kernel: Kernel,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a launch instruction by instruction and record it; make a plan if an earlier recording was equal."""
        recorded = planner.record(kernel, args, kwargs, candidate, entry.written)
        try:
            entry.learn(recorded, candidate, planner)
        except Unplannable as error:
            entry.refuse(str(error))
        except Exception as error:
            entry.refuse(f"planning failed with {type(error).__name__}: {error}")
            if raises_errors_of_replay():
                raise
        entry.check_failures()
        entry.tally.add("recorded", entry.reason)
        self.entries.trim()
        return recorded.result


def _hindrance(kernel: Kernel, options: Options, free: Options | None) -> str:
    """Return the reason why no launch of a kernel can be recorded or replayed now; empty if nothing prevents it.

    Args:
        kernel: the kernel.
        options: the options in force.
        free: options that are known to prevent nothing.
    """
    if not options.replay or is_unreplayed():
        return "replay is off"
    if options.replay != ALWAYS and not is_replayable(kernel.func):
        return _STATES_NOTHING
    if active_watchers():
        return "the launch is observed"
    if sys.gettrace() is not None or _has_debugger():
        return "a debugger or a tracer is active"
    if options is free:
        return ""
    if options.frontend != "tracer":
        return "the front end is custom"
    return 'a check is at level "warn"' if "warn" in _levels_of(options) else ""


def _has_debugger() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


def _refused(
    reason: str, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], place: Place, as_today: AsToday
) -> Any:
    result = as_today(kernel, args, kwargs, place)
    TALLIES.of(kernel.__name__).add("as_today", reason)
    return result


LAUNCHES = Launches(LaunchPlanner())
