# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why a kernel takes as long as it does: the findings, and the critical path as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap

from ...timing.causes import Waited
from . import descriptors, division, engines, savings, transfers
from .cores import Launch
from .critical import Kind, Link
from .facts import NS_PER_US, Facts
from .finding import Finding
from .words import largest, summed

_FINDERS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    transfers.triggers,
    transfers.small_rows,
    transfers.first_bytes,
    descriptors.choice,
    savings.second_buffers,
    savings.loops,
    engines.waits,
    engines.idle_engines,
    engines.small_instructions,
    engines.latency,
    engines.activation_tables,
    engines.meetings,
    division.same_work,
)
_MOST_LINES = 5
_SHOWN_FROM_US = 0.05  # less is 0.0 in the table
_WIDTH = 118
_CAUSES = (Waited.data, Waited.reuse, Waited.meeting, Waited.loop)


@dataclass(frozen=True)
class Report:
    """What the notes of a launch say.

    Attributes:
        findings: what makes it slow, that which takes most of the time first.
        path_us: microseconds of the critical path by what they are spent on, the most first.
        path_us_by_line: the same by line and name of the instruction.
        waits_us: by engine that computes and by cause, microseconds in which it could have started an instruction; on
            the core that is done last.
        links: the path itself.
    """

    findings: tuple[Finding, ...]
    path_us: dict[str, float]
    path_us_by_line: dict[str, float]
    waits_us: dict[str, dict[str, float]]
    links: tuple[Link, ...]

    def lines(self) -> list[str]:
        """The table, and the findings."""
        whole = sum(self.path_us.values())
        if not whole:
            return []
        of_the_end = "" if self.links[0].start_ns == 0.0 else f", last {whole:,.1f} us"
        said = [f"{'critical path' + of_the_end:<52} {'us':>10} {'share':>8}"]
        said += [
            f"{what:<52} {spent:>10,.1f} {spent / whole:>8.1%}"
            for what, spent in self.path_us.items()
            if spent >= _SHOWN_FROM_US
        ]
        said += ["", f"{'critical path by line':<52} {'us':>10} {'share':>8}"]
        said += [
            f"{line:<52} {spent:>10,.1f} {spent / whole:>8.1%}"
            for line, spent in list(self.path_us_by_line.items())[:_MOST_LINES]
        ]
        causes = [waited.name for waited in _CAUSES]
        if self.waits_us:
            said += ["", "waits, us" + " " * 11 + " ".join(f"{cause:>10}" for cause in causes)]
        for engine, waits in self.waits_us.items():
            said.append(f"{engine:<20}" + " ".join(f"{waits.get(cause, 0.0):>10,.1f}" for cause in causes))
        return (
            [*said, "", "why:", *(line for finding in self.findings for line in _wrapped(str(finding)))]
            if self.findings
            else said
        )


def _wrapped(sentence: str) -> list[str]:
    return wrap(
        sentence,
        _WIDTH,
        initial_indent="- ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def report_of(launch: Launch, busy_us: Mapping[str, float]) -> Report:
    """What the notes of a launch say; ``busy_us`` by engine, of the core on which it is busy longest."""
    facts = Facts(launch, busy_us)
    found = [finding for finder in _FINDERS for finding in finder(facts)] if facts.time_ns else []
    lines = facts.by_line(facts.links)
    return Report(
        tuple(sorted(found, key=lambda finding: -finding.time_us)),
        _path(facts),
        {line: spent / NS_PER_US for line, spent in largest(lines, len(lines))},
        _waits(facts),
        tuple(facts.links),
    )


def _waits(facts: Facts) -> dict[str, dict[str, float]]:
    spent = summed(((wait.engine, wait.waited.name), wait.duration_ns / NS_PER_US) for wait in facts.waits)
    engines_that_wait = sorted({engine for engine, _ in spent})
    return {
        name: {cause: duration for (engine, cause), duration in spent.items() if engine == name}
        for name in engines_that_wait
    }


def _spent_on(facts: Facts, link: Link) -> str:
    plan = facts.of(link).at(link.number)[1]
    if link.kind is Kind.work:
        return plan.engine
    if link.kind in (Kind.result, Kind.issue):
        return f"{link.kind.value}: {plan.engine}"
    return f"{link.kind.value}: {plan.queue}" if link.kind is Kind.trigger else link.kind.value


def _path(facts: Facts) -> dict[str, float]:
    spent = summed((_spent_on(facts, link), link.duration_ns) for link in facts.links)
    return {what: duration / NS_PER_US for what, duration in largest(spent, len(spent))}
