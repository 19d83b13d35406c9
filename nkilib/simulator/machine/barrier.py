# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The barrier at which the simulated cores synchronise and exchange data; it can never hang.

If cores fail, the launch raises the error of the lowest one, in every run: a core that fails does not end those with
lower numbers, which run on to their own error, to their end or to a barrier that the failed core does not reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..terms.errors import BarrierError, CoreAbortedError
from .waits import Wait, Waits


@dataclass
class _Meeting:
    """The cores that wait at one barrier, and the item that each of them passed.

    Attributes:
        place: the name of the barrier, the same on all cores.
        brought: one item for each core that has arrived, in order of arrival.
        waits: the waits of the cores that arrived before the last one.
        is_complete: whether all cores have arrived.
        elsewhere: the place where another core waits instead, so that this barrier never completes; else empty.
    """

    place: str
    brought: list[Any] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    is_complete: bool = False
    elsewhere: str = ""


class CoreBarrier:
    """A barrier between cores; a core that ends, fails or waits elsewhere releases the waiting cores with an error.

    Args:
        cores: the number of cores that synchronise here.
        waits: the record of who waits, shared with other cores on which these depend; None makes one for these alone.

    Attributes:
        is_aborted: whether a core has failed; a plain attribute, because every instruction reads it.
    """

    def __init__(self, cores: int, waits: Waits | None = None) -> None:
        self.is_aborted = False
        self._cores = cores
        self._meeting: _Meeting | None = None  # the one that waits for further cores
        self._finished = 0
        self._has_left = False
        self._waits = waits or Waits(cores)
        self._changed = self._waits.changed

    def wait(self) -> None:
        """Wait until all cores have called this method.

        Raises:
            BarrierError: if a core has ended or waits in ``meet``, so that it can no longer arrive.
            CoreAbortedError: if a core has failed, so that it can no longer arrive.
        """
        self.meet("core_barrier")

    def meet(self, place: str, item: Any = None) -> list[Any]:
        """Wait until all cores have called this method with the same ``place``; return the items of the other cores.

        Everything that a core did before the call has happened when the others continue. Cores run in program order,
        hence two cores that wait at different places would wait forever: both get the error.

        Args:
            place: the name of the barrier, for instance ``"core_barrier"``.
            item: the item that this core passes; it must not change afterwards, for the other core may read it at any
                time.

        Raises:
            BarrierError: if a core has ended or waits at another place, so that it can no longer arrive.
            CoreAbortedError: if a core has failed, so that it can no longer arrive.
        """
        with self._changed:
            meeting = self._join(place, item)
            own = len(meeting.brought) - 1
            try:
                while not meeting.is_complete:
                    self._check_can_complete(meeting)
                    self._changed.wait()
            except BaseException:  # one that has left must not be counted when the next one comes
                self._waits.withdraw(meeting.waits[own : own + 1])
                if self._meeting is meeting:
                    self._meeting = None
                raise
            return meeting.brought[:own] + meeting.brought[own + 1 :]

    def _join(self, place: str, item: Any) -> _Meeting:
        meeting = self._meeting
        if meeting is None:
            meeting = self._meeting = _Meeting(place)
        elif meeting.place != place:
            meeting.elsewhere = place
            self._meeting = None
            self._changed.notify_all()
            raise _missed(place, meeting.place)
        meeting.brought.append(item)
        if len(meeting.brought) == self._cores:
            meeting.is_complete = True
            self._meeting = None
            self._waits.release(meeting.waits)
        else:
            meeting.waits.append(self._waits.begin(place))
        return meeting

    def _check_can_complete(self, meeting: _Meeting) -> None:
        if meeting.elsewhere:
            raise _missed(meeting.place, meeting.elsewhere)
        if self._has_left or self._waits.is_ending or self._waits.is_stuck_by_failure:
            raise CoreAbortedError
        if self._finished:
            raise BarrierError(f"{meeting.place}: the other core ended without reaching this barrier")
        if self._waits.is_stuck:
            raise BarrierError(f"{meeting.place}: deadlock: {self._waits.describe()}")

    def finish(self, number: int) -> None:
        """Record that a core has ended; ``number`` is its number among all that share the record of waits."""
        with self._changed:
            self._finished += 1
            self._waits.finish(number)

    def fail(self, number: int, failed_after: int | None) -> None:
        """Record that a core has ended early.

        Args:
            number: its number among all that share the record of waits.
            failed_after: the number of instructions that it had issued; None if it ended because of another core.
        """
        self.is_aborted = True
        with self._changed:
            self._has_left = True
            self._waits.finish(number, failed_after)

    def may_go_on(self, issued: int) -> bool:
        """Return whether a core may run on that has issued so many instructions, although another core has failed."""
        with self._changed:
            return self._waits.may_go_on(issued)

    def abort(self) -> None:
        """Let all cores end, at their next instruction or where they wait."""
        self.is_aborted = True
        with self._changed:
            self._waits.abort()


def _missed(place: str, elsewhere: str) -> BarrierError:
    return BarrierError(
        f"{place}: the other core waits in {elsewhere} instead; instructions run in program order here, so both cores "
        "must come to their barriers and exchanges in the same order"
    )
