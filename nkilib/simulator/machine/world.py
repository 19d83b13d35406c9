# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches that run in parallel, one for each rank, each with memory of its own, and the collectives that join them.

This module does not know what a collective does: each core that arrives passes terms, such as a shape, that must agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..terms.errors import BarrierError, CoreAbortedError
from .barrier import CoreBarrier
from .waits import Wait, Waits


@dataclass(frozen=True)
class Term:
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
        rank: the rank of its launch.
        core: its number if only cores of that number take part; None if it acts for its whole rank.
        members: the ranks that take part.
        what: the instruction.
        place: ``file:line`` in the kernel.
        terms: the properties on which all must agree.
        item: the item that it passes; it must not change afterwards, for the others may read it at any time.
    """

    rank: int
    core: int | None
    members: tuple[int, ...]
    what: str
    place: str
    terms: tuple[Term, ...]
    item: Any

    def __str__(self) -> str:
        core = "" if self.core is None else f" (core {self.core})"
        return f"rank {self.rank}{core} calls {self.what} at {self.place}"


@dataclass(eq=False)
class _Gathering:
    """The participants that have arrived so far at one collective of the ranks ``members``.

    ``is_broken`` says whether two of them have different terms. All participants then fail, also those that arrive
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


class World:
    """The ranks that run in parallel.

    Args:
        ranks: the number of launches.
        cores: the number of cores of each launch.
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
        """Return a new barrier for the cores of one more rank."""
        self._barriers.append(CoreBarrier(self._cores, self.waits))
        return self._barriers[-1]

    def abort(self) -> None:
        """Let all cores of all ranks end, at their next instruction or where they wait."""
        self.tell_failed()
        with self.waits.changed:
            self.waits.abort()

    def tell_failed(self) -> None:
        """Let all cores of all ranks ask, before each instruction, whether they may run on."""
        for barrier in self._barriers:
            barrier.is_aborted = True

    def meet(self, participant: Participant) -> Mapping[int, Any]:
        """Wait until all members have arrived; return their items by rank.

        Raises:
            BarrierError: if another member calls a different operation or has different terms, if it can no longer
                arrive because all others wait or have ended, or if it does not arrive in time.
            CoreAbortedError: if another member can no longer arrive because a core has failed.
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
        rank: the number of its rank.
        world: all ranks.
    """

    rank: int
    world: World


def _waits_for(gathering: _Gathering, participant: Participant) -> bool:
    """Return whether a core must join a gathering: its rank is missing there, and a participant waits for this core."""
    if participant.rank not in gathering.members or participant.rank in gathering.come:
        return False
    return any(
        other.rank in participant.members and (other.core == participant.core or None in (other.core, participant.core))
        for other in gathering.come.values()
    )


def _mismatch(gathering: _Gathering, participant: Participant) -> str:
    """Return the text about a participant and the lowest rank with different terms; empty if all agree with it."""
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
