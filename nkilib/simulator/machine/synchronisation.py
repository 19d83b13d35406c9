# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Waiting of simulated cores for each other: the barrier of the cores of a launch, and the collectives of ranks.

- :class:`CoreBarrier`: the barrier.
- :class:`World`: the ranks and their collectives; the launch of a rank has a :class:`Seat`. A core arrives at a
  collective as a :class:`Participant`, and all participants must agree on some properties (:class:`AgreedProperty`).
- :class:`Waits`, with a :class:`Wait` for each waiting thread: a record of the threads that wait.

No wait can hang, because the record shows when no thread is left to wake the others. If cores fail, the launch raises
the error of the core with the lowest number, in every run: a core that fails does not end the cores with lower numbers,
which run on to an error of their own, to their end or to a barrier that the failed core does not reach.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..terms.errors import BarrierError, CoreAbortedError

# How many instructions more than a failed core another one may run, to come to an error of its own. Cores run much the
# same program; a core that runs for ever must not keep the launch from ending.
ALLOWANCE = 100_000


@dataclass(frozen=True, eq=False)
class Wait:
    """A thread that waits for other threads.

    Attributes:
        who: the name of the thread.
        where: the operation in which it waits.
    """

    who: str
    where: str


def _listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace(",", "") for name in names)


class Waits:
    """The threads of cores that wait for each other, and the condition variable on which all of them wait.

    The other attributes are read and written only while :attr:`changed` is held.

    Attributes:
        changed: the condition variable that wakes the waiting threads.
        is_stuck: whether, at some time, every thread waited or had ended; True is final.
        is_stuck_by_failure: whether a thread had failed at that time.
        is_aborted: whether all threads must end at once.
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
        """Record that this thread starts to wait in the operation ``where``, and return the wait."""
        wait = Wait(threading.current_thread().name, where)
        self._waiting.append(wait)
        self._notice()
        return wait

    def release(self, waits: Iterable[Wait]) -> None:
        """Remove from the record the waits that are over, and wake the threads."""
        self.withdraw(waits)
        self.changed.notify_all()

    def withdraw(self, waits: Iterable[Wait]) -> None:
        """Remove waits from the record, without waking the threads."""
        for wait in waits:
            if wait in self._waiting:
                self._waiting.remove(wait)

    @property
    def has_failed(self) -> bool:
        """Whether some thread has failed, so that the other threads will end."""
        return bool(self._failed)

    @property
    def is_ending(self) -> bool:
        """Whether all threads must end.

        This is so after :meth:`abort`, and when a thread has failed and all threads with lower numbers have ended, so
        that the error of the lowest core is certain.
        """
        if self.is_aborted or not self._failed:
            return self.is_aborted
        return all(number in self._ended for number in range(min(self._failed)))

    def may_go_on(self, issued: int) -> bool:
        """Return whether a thread that has issued ``issued`` instructions may run on although another thread has
        failed.

        The thread may run on until all threads with lower numbers than the failed one have ended, and for at most
        ``ALLOWANCE`` instructions more than the failed thread.
        """
        return not self.is_ending and issued <= max(self._failed.values(), default=issued) + ALLOWANCE

    def finish(self, number: int, failed_after: int | None = None) -> None:
        """Record that this thread has ended.

        Args:
            number: the number of its core among all cores.
            failed_after: if the core has failed, the number of instructions that it had issued; else None.
        """
        self._ended[number] = threading.current_thread().name
        if failed_after is not None:
            self._failed[number] = failed_after
        self.changed.notify_all()
        self._notice()

    def abort(self) -> None:
        """Make all threads end at their next instruction, or in the operation where they wait."""
        self.is_aborted = True
        self.changed.notify_all()

    def describe(self) -> str:
        """Return text that says which threads wait in which operation, and which threads have ended.

        If all threads were stuck at some time, the text describes that time.
        """
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


@dataclass
class _Meeting:
    """The cores that have arrived at one barrier, and the item that each of them passes to the others.

    Attributes:
        place: the name of the barrier, the same on all cores.
        brought: the items of the cores, in order of arrival.
        waits: the waits of the cores that arrived before the last one.
        is_complete: whether all cores have arrived.
        elsewhere: the barrier at which another core waits instead, so that this one never completes; else empty.
    """

    place: str
    brought: list[Any] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    is_complete: bool = False
    elsewhere: str = ""


def _missed(place: str, elsewhere: str) -> BarrierError:
    return BarrierError(
        f"{place}: the other core waits in {elsewhere} instead; instructions run in program order here, so both cores "
        "must come to their barriers and exchanges in the same order"
    )


class CoreBarrier:
    """A barrier between cores. If a core ends, fails or waits elsewhere, the waiting cores raise an error.

    Args:
        cores: the number of cores that synchronise here.
        waits: the record of waiting threads, shared with other cores; None makes a record for these cores alone.

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
            BarrierError: a core can no longer arrive, because it has ended or waits in :meth:`meet`.
            CoreAbortedError: a core can no longer arrive, because it has failed.
        """
        self.meet("core_barrier")

    def meet(self, place: str, item: Any = None) -> list[Any]:
        """Wait until all cores have called this method with the same ``place``; return the items of the other cores.

        Everything that a core did before the call has happened when the others continue. Cores run in program order, so
        that two cores at different places would wait forever: both raise the error.

        Args:
            place: the name of the barrier, for instance ``"core_barrier"``.
            item: the item that this core passes to the other cores; it must not change afterwards.

        Raises:
            BarrierError: a core can no longer arrive, because it has ended or waits at another place.
            CoreAbortedError: a core can no longer arrive, because it has failed.
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
        """Record that a core has ended without an error; ``number`` counts the cores of all launches that share the
        waits.
        """
        with self._changed:
            self._finished += 1
            self._waits.finish(number)

    def fail(self, number: int, failed_after: int | None) -> None:
        """Record that a core has ended early.

        Args:
            number: the number of the core among the cores of all launches that share the waits.
            failed_after: the number of instructions that the core had issued; None if it ended because of another core.
        """
        self.is_aborted = True
        with self._changed:
            self._has_left = True
            self._waits.finish(number, failed_after)

    def may_go_on(self, issued: int) -> bool:
        """Return whether a core that has issued ``issued`` instructions may run on although another core has failed.

        See :meth:`Waits.may_go_on`.
        """
        with self._changed:
            return self._waits.may_go_on(issued)

    def abort(self) -> None:
        """Make all cores end at their next instruction, or in the operation where they wait."""
        self.is_aborted = True
        with self._changed:
            self._waits.abort()


@dataclass(frozen=True)
class AgreedProperty:
    """A property on which all participants must agree.

    Attributes:
        what: the name of the property, for the message.
        value: the value, which is compared and shown.
    """

    what: str
    value: object


@dataclass(frozen=True)
class Participant:
    """A core that arrives at a collective.

    Attributes:
        rank: the rank of the core's launch.
        core: the core's number if only cores with this number take part; None if the core acts for its whole rank.
        members: the ranks that take part.
        what: the name of the instruction.
        place: ``file:line`` in the kernel.
        terms: the properties on which all participants must agree.
        item: the item that the core passes to the other participants; it must not change afterwards.
    """

    rank: int
    core: int | None
    members: tuple[int, ...]
    what: str
    place: str
    terms: tuple[AgreedProperty, ...]
    item: Any

    def __str__(self) -> str:
        core = "" if self.core is None else f" (core {self.core})"
        return f"rank {self.rank}{core} calls {self.what} at {self.place}"


@dataclass(eq=False)
class _Gathering:
    """The participants that have arrived so far at one collective of the ranks ``members``.

    ``is_broken`` says whether two participants have different terms. All participants then fail, also those that arrive
    later, so that the lowest rank fails in every run.
    """

    members: frozenset[int]
    come: dict[int, Participant] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)
    is_broken: bool = False

    @property
    def is_complete(self) -> bool:
        return len(self.come) == len(self.members)

    @property
    def missing(self) -> list[int]:
        return sorted(self.members - self.come.keys())


def _waits_for(gathering: _Gathering, participant: Participant) -> bool:
    """Return whether an arriving core belongs to ``gathering``.

    Its rank must be a member that has not arrived yet, and it must match some core that has arrived: ``participant``
    names that core's rank as a member, and both have the same core number, or one of them acts for its whole rank.
    """
    if participant.rank not in gathering.members or participant.rank in gathering.come:
        return False
    return any(
        other.rank in participant.members and (other.core == participant.core or None in (other.core, participant.core))
        for other in gathering.come.values()
    )


def _mismatch(gathering: _Gathering, participant: Participant) -> str:
    """Return text about the lowest rank whose terms differ from those of ``participant``; empty if no rank differs."""
    mine = {term.what: term.value for term in participant.terms}
    for rank in sorted(gathering.come):
        other = gathering.come[rank]
        others = {term.what: term.value for term in other.terms}
        for what in dict.fromkeys((*mine, *others)):
            if mine.get(what) != others.get(what):
                first, second = sorted(
                    ((participant, mine.get(what)), (other, others.get(what))), key=lambda item: item[0].rank
                )
                return (
                    f"ranks must come to the same collective, and differ in {what}: {first[0]} with {first[1]}, and "
                    f"{second[0]} with {second[1]}"
                )
    return ""


def _ranks(missing: list[int]) -> str:
    return f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"


class World:
    """The ranks that run in parallel, each with a launch and memory of its own, and their collectives.

    The class only passes items between ranks, and checks that the terms that they state, such as a shape, are equal.

    Args:
        ranks: the number of ranks.
        cores: the number of cores of a rank.
        timeout: the seconds that a core waits for the others; None for no limit.

    Attributes:
        ranks: the number of ranks.
        waits: the waits of all cores of all ranks.
    """

    def __init__(self, ranks: int, cores: int, timeout: float | None) -> None:
        self.ranks = ranks
        self.waits = Waits(ranks * cores)
        self._cores = cores
        self._timeout = timeout
        self._open: list[_Gathering] = []
        self._barriers: list[CoreBarrier] = []

    def barrier(self) -> CoreBarrier:
        """Return a new barrier for the cores of one rank; the launch of each rank calls this once."""
        self._barriers.append(CoreBarrier(self._cores, self.waits))
        return self._barriers[-1]

    def abort(self) -> None:
        """Make all cores of all ranks end at their next instruction, or in the operation where they wait."""
        self.tell_failed()
        with self.waits.changed:
            self.waits.abort()

    def tell_failed(self) -> None:
        """Make all cores of all ranks check before each instruction whether they may run on, because a core has
        failed.
        """
        for barrier in self._barriers:
            barrier.is_aborted = True

    def meet(self, participant: Participant) -> Mapping[int, Any]:
        """Wait until all members have arrived at the collective; return the items that the members passed, by rank.

        Raises:
            BarrierError: another member calls a different operation or has different terms, can no longer arrive
                because all others wait or have ended, or does not arrive in time.
            CoreAbortedError: another member can no longer arrive because a core has failed.
        """
        with self.waits.changed:
            if self.waits.is_ending:
                raise CoreAbortedError
            gathering = self._join(participant)
            deadline = None if self._timeout is None else monotonic() + self._timeout
            while not gathering.is_complete or gathering.is_broken:
                self._check_can_complete(gathering, participant)
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    raise CoreAbortedError if self.waits.has_failed else self._late(gathering)
                self.waits.changed.wait(left)
            return {rank: other.item for rank, other in gathering.come.items()}

    def _join(self, participant: Participant) -> _Gathering:
        gathering = next((waiting for waiting in self._open if _waits_for(waiting, participant)), None)
        if gathering is None:
            gathering = _Gathering(frozenset(participant.members))
            self._open.append(gathering)
        gathering.come[participant.rank] = participant
        if _mismatch(gathering, participant):
            gathering.is_broken = True
            self.waits.release(gathering.waits)
        elif gathering.is_complete:
            self._open.remove(gathering)
            self.waits.release(gathering.waits)
        else:
            gathering.waits.append(self.waits.begin(f"{participant.what} at {participant.place}"))
        return gathering

    def _check_can_complete(self, gathering: _Gathering, participant: Participant) -> None:
        if gathering.is_broken:
            raise BarrierError(_mismatch(gathering, participant))
        if self.waits.is_ending or self.waits.is_stuck_by_failure:
            raise CoreAbortedError
        if self.waits.is_stuck:
            raise BarrierError(
                f"deadlock: {_ranks(gathering.missing)} cannot come to this {participant.what} any more; "
                f"{self.waits.describe()}; every rank must come to the same collectives in the same order"
            )

    def _late(self, gathering: _Gathering) -> BarrierError:
        return BarrierError(
            f"{_ranks(gathering.missing)} did not come within {self._timeout:g} seconds; {self.waits.describe()}; if "
            f"the rank only takes longer, give nkilib.simulator.ranks a longer timeout="
        )


@dataclass(frozen=True)
class Seat:
    """The position of a launch among the launches that run in parallel.

    Attributes:
        rank: the rank of the launch.
        world: all ranks.
    """

    rank: int
    world: World
