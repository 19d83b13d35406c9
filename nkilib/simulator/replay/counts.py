# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Counts of launches by kernel and by how they ran: from a plan, recorded, or neither (with the reason).

:func:`replay_counts` returns the counts as :class:`ReplayCounts`, with :class:`LaunchCounts` of each kernel. Each
kernel has a counter (:class:`Tally`) in :data:`TALLIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

# Beyond this number names and reasons are counted together, so that a long process does not collect them for ever. Any
# number that is larger than what a program has serves.
MOST_KERNELS, MOST_REASONS = 1024, 16
OTHERS = "(others)"


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{plural * (number != 1)}"


@dataclass(frozen=True)
class LaunchCounts:
    """Counts of launches by how they ran.

    Attributes:
        as_today: launches that ran instruction by instruction and were not recorded.
        recorded: launches that ran instruction by instruction and were recorded.
        replayed: launches that ran from a plan.
        planned: plans that were made.
        failed: launches that had plans, none of which was valid for their values; ``as_today`` or ``recorded`` counts
            them too.
        reasons: the number of launches that were not replayed, by reason; the first launches of a kernel have no
            reason.
    """

    as_today: int = 0
    recorded: int = 0
    replayed: int = 0
    planned: int = 0
    failed: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def launches(self) -> int:
        """The number of all launches, however they ran."""
        return self.as_today + self.recorded + self.replayed

    @property
    def summary(self) -> str:
        """The number of launches, and how many of them were replayed, as one line of text."""
        if not self.launches:
            return "no launch ran in the simulator"
        replayed = f"{self.replayed} of them" if self.replayed else "none of them"
        return f"{_counted(self.launches, 'launch', 'es')} ran in the simulator, {replayed} replayed"

    def __str__(self) -> str:
        lines = [self.summary, *(f"{number} not replayed: {reason}" for reason, number in self.reasons.items())]
        if self.recorded or self.planned:
            lines.append(f"{_counted(self.planned, 'plan')} for replay, made from {self.recorded} recorded launches")
        if self.failed:
            lines.append(f"{self.failed} not replayed: the values fitted no plan")
        return "\n    ".join(lines)


@dataclass(frozen=True)
class ReplayCounts:
    """Counts of the launches of this process so far.

    Attributes:
        total: the counts over all kernels.
        kernels: the counts by the kernel's name.
    """

    total: LaunchCounts
    kernels: Mapping[str, LaunchCounts]

    def __str__(self) -> str:
        return "\n".join(
            [*(f"{name}: {counts}" for name, counts in self.kernels.items()), f"total: {self.total.summary}"]
        )


class Tally:
    """A counter of the launches of one kernel, by how they ran."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, outcome: str, reason: str = "") -> None:
        """Count one more launch of the kernel.

        Args:
            outcome: the field of :class:`LaunchCounts` to increase.
            reason: the reason why the launch was not replayed; empty if there is none.
        """
        with self._lock:
            self._counts[outcome] += 1
            if reason:
                is_known = reason in self._reasons or len(self._reasons) < MOST_REASONS
                self._reasons[reason if is_known else OTHERS] += 1

    def merge_into(self, counts: Counter[str], reasons: Counter[str]) -> None:
        """Add the numbers of this tally to ``counts``, and its reasons to ``reasons``."""
        with self._lock:
            counts.update(self._counts)
            reasons.update(self._reasons)


class Tallies:
    """The tallies of all kernels of the process, by the kernel's name."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}
        self._lock = Lock()

    def of(self, kernel: str) -> Tally:
        """Return the tally of the kernel with this name; the first call makes it."""
        tally = self._tallies.get(kernel)
        if tally is None:
            with self._lock:
                name = kernel if len(self._tallies) < MOST_KERNELS else OTHERS
                tally = self._tallies.setdefault(name, Tally())
        return tally

    def so_far(self) -> ReplayCounts:
        """Return the counts of all launches so far."""
        counts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        kernels = {}
        for name, tally in sorted([*self._tallies.items()]):
            own: Counter[str] = Counter()
            own_reasons: Counter[str] = Counter()
            tally.merge_into(own, own_reasons)
            counts.update(own)
            reasons.update(own_reasons)
            kernels[name] = LaunchCounts(**own, reasons=dict(own_reasons))
        return ReplayCounts(LaunchCounts(**counts, reasons=dict(reasons)), kernels)


TALLIES = Tallies()


def replay_counts() -> ReplayCounts:
    """Return, for each kernel of this process, how many launches ran and were replayed, and why others were not
    replayed.

    Printed, it shows which kernels ran::

        print(nkilib.simulator.replay_counts())
    """
    return TALLIES.so_far()
