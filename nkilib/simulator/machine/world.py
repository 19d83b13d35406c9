# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Launches that run side by side, one a rank, each with memory of its own: where they meet and hand each other data.

What they meet for is not known here: those who come say on which terms, and these must be alike.
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
    """Something on which all who meet must agree.

    Attributes:
        what: what it is, for the message.
        value: is compared, and shown.
    """

    what: str
    value: object


@dataclass(frozen=True)
class Comer:
    """A core that comes to a gathering.

    Attributes:
        rank: of its launch.
        core: its number where only cores of that number meet; None if it comes for its whole rank.
        members: the ranks that meet.
        what: the instruction.
        place: ``file:line`` in the kernel.
        terms: what all must agree on.
        item: what it brings; it must not change afterwards, for the others may read it at any time.
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
    """Who has come so far to one meeting of the ranks ``members``."""

    members: frozenset[int]
    come: dict[int, Comer] = field(default_factory=dict)
    waits: list[Wait] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.come) == len(self.members)

    @property
    def missing(self) -> list[int]:
        return sorted(self.members - self.come.keys())


class World:
    """The ranks that run side by side.

    Args:
        ranks: how many launches.
        cores: of each of them.
        timeout: seconds that a core waits for the others; None for ever.

    Attributes:
        ranks: how many there are.
        waits: who waits, of all cores of all ranks.
        is_aborted: whether a core has failed.
    """

    def __init__(self, ranks: int, cores: int, timeout: float | None) -> None:
        self.ranks = ranks
        self.waits = Waits(ranks * cores)
        self.is_aborted = False
        self._cores = cores
        self._timeout = timeout
        self._open: list[_Gathering] = []
        self._barriers: list[CoreBarrier] = []

    def barrier(self) -> CoreBarrier:
        """The barrier of the cores of one more rank."""
        self._barriers.append(CoreBarrier(self._cores, self.waits))
        return self._barriers[-1]

    def abort(self) -> None:
        """A core has failed: end all others, of all ranks, at their next instruction or where they wait."""
        self.is_aborted = True
        for barrier in self._barriers:
            barrier.abort()
        with self.waits.changed:
            self.waits.changed.notify_all()

    def meet(self, comer: Comer) -> Mapping[int, Any]:
        """Wait until all members have come; what each of them brought, by rank.

        Raises:
            BarrierError: if another member comes to something else or on other terms, if it cannot come any more
                because all others wait or have ended, or if it does not come in time.
            CoreAbortedError: if a core has failed.
        """
        with self.waits.changed:
            if self.is_aborted:
                raise CoreAbortedError
            gathering = self._join(comer)
            deadline = None if self._timeout is None else monotonic() + self._timeout
            while not gathering.is_complete:
                self._check_can_complete(gathering, comer)
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    raise self._late(gathering)
                self.waits.changed.wait(left)
            return {rank: other.item for rank, other in gathering.come.items()}

    def _join(self, comer: Comer) -> _Gathering:
        gathering = next((each for each in self._open if _waits_for(each, comer)), None)
        if gathering is None:
            gathering = _Gathering(frozenset(comer.members))
            self._open.append(gathering)
        else:
            _check_terms(next(iter(gathering.come.values())), comer)
        gathering.come[comer.rank] = comer
        if gathering.is_complete:
            self._open.remove(gathering)
            self.waits.release(gathering.waits)
        else:
            gathering.waits.append(self.waits.begin(f"{comer.what} at {comer.place}"))
        return gathering

    def _check_can_complete(self, gathering: _Gathering, comer: Comer) -> None:
        if self.is_aborted:
            raise CoreAbortedError
        if self.waits.is_stuck:
            raise BarrierError(
                f"deadlock: {_ranks(gathering.missing)} cannot come to this {comer.what} any more; "
                f"{self.waits.describe()}; every rank must come to the same collectives in the same order"
            )

    def _late(self, gathering: _Gathering) -> BarrierError:
        return BarrierError(
            f"{_ranks(gathering.missing)} did not come within {self._timeout:g} seconds; {self.waits.describe()}; if "
            f"the rank only takes longer, give nkilib.simulator.ranks a longer timeout="
        )


@dataclass(frozen=True)
class Seat:
    """Where a launch sits among those that run side by side.

    Attributes:
        rank: its number.
        world: all of them.
    """

    rank: int
    world: World


def _waits_for(gathering: _Gathering, comer: Comer) -> bool:
    """Whether who is there and who comes wait for each other: both are held up, so that they meet here or never."""
    if comer.rank not in gathering.members or comer.rank in gathering.come:
        return False
    return any(
        other.rank in comer.members and (other.core == comer.core or None in (other.core, comer.core))
        for other in gathering.come.values()
    )


def _check_terms(first: Comer, second: Comer) -> None:
    mine, others = {term.what: term.value for term in first.terms}, {term.what: term.value for term in second.terms}
    for what in dict.fromkeys((*mine, *others)):
        if mine.get(what) != others.get(what):
            raise BarrierError(
                f"ranks must come to the same collective, and differ in {what}: {first} with {mine.get(what)}, and "
                f"{second} with {others.get(what)}"
            )


def _ranks(missing: list[int]) -> str:
    return f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
