# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The report of why a kernel takes as long as it does: the findings, and the critical path as a table.

:func:`report_of` makes the :class:`Report` of a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...terms.enums import MemoryRegion
from ...timing.timeline import Waited
from .changes.registry import candidates, candidates_together
from .changes.transfers import choice_of_descriptors
from .critical_path import AnalysedLaunch, Link, LinkKind
from .facts import NS_PER_US, Facts, Finding, fitted, largest, summed, wrapped
from .findings import OBSERVERS
from .study import Study

_MOST_LINES = 5
# A launch of at most this multiple of its bound is left as it is.
NEAR_BOUND = 1.1
_OF_ANOTHER_ORDER = 0.8
_SHOWN_FROM_US = 0.05  # less is 0.0 in the table
_CAUSES = (Waited.data, Waited.reuse, Waited.meeting, Waited.loop)


@dataclass(frozen=True)
class Report:
    """The analysis of a launch: its findings, its critical path and its waits.

    Attributes:
        findings: first the changes, the largest saving first; then the facts, the one about most of the time first.
        path_us: microseconds of the critical path by their use, the most first.
        path_us_by_line: microseconds of the critical path by line and name of the instruction, the most first.
        waits_us: microseconds in which an engine was free and waited, by compute engine and by cause, on the core that
            finishes last.
        links: the links of the critical path, in the order of time.
        is_tried: whether changes were tried, which needs the record of all instructions.
    """

    findings: tuple[Finding, ...]
    path_us: dict[str, float]
    path_us_by_line: dict[str, float]
    waits_us: dict[str, dict[str, float]]
    links: tuple[Link, ...]
    is_tried: bool = True

    def lines(self) -> list[str]:
        """Return the lines of text with the tables of the critical path and the waits, followed by the findings."""
        whole = sum(self.path_us.values())
        if not whole:
            return []
        of_the_end = "" if self.links[0].start_ns == 0.0 else f", last {whole:,.1f} us"
        table = [f"{'critical path' + of_the_end:<52} {'us':>10} {'share':>8}"]
        table += [
            f"{fitted(purpose, 52)} {spent:>10,.1f} {spent / whole:>8.1%}"
            for purpose, spent in self.path_us.items()
            if spent >= _SHOWN_FROM_US
        ]
        table += ["", f"{'critical path by line':<52} {'us':>10} {'share':>8}"]
        table += [
            f"{fitted(line, 52)} {spent:>10,.1f} {spent / whole:>8.1%}"
            for line, spent in list(self.path_us_by_line.items())[:_MOST_LINES]
        ]
        causes = [waited.name for waited in _CAUSES]
        if self.waits_us:
            table += ["", "waits, us" + " " * 11 + " ".join(f"{cause:>10}" for cause in causes)]
        for engine, waits in self.waits_us.items():
            table.append(f"{engine:<20}" + " ".join(f"{waits.get(cause, 0.0):>10,.1f}" for cause in causes))
        return (
            [*table, "", "why:", *(line for finding in self.findings for line in wrapped(str(finding), "- "))]
            if self.findings
            else table
        )


def _spent_on(facts: Facts, link: Link) -> str:
    kind = facts.of(link).at(link.number)[1]
    if link.kind is LinkKind.work:
        return kind.engine
    if link.kind in (LinkKind.result, LinkKind.issue):
        return f"{link.kind.value}: {kind.engine}"
    return f"{link.kind.value}: {kind.queue}" if link.kind is LinkKind.trigger else link.kind.value


def _path(facts: Facts) -> dict[str, float]:
    spent = summed((_spent_on(facts, link), link.duration_ns) for link in facts.links)
    return {purpose: duration / NS_PER_US for purpose, duration in largest(spent, len(spent))}


def _waits(facts: Facts) -> dict[str, dict[str, float]]:
    spent = summed(((wait.engine, wait.waited.name), wait.duration_ns / NS_PER_US) for wait in facts.waits)
    engines_that_wait = sorted({engine for engine, _ in spent})
    return {
        name: {cause: duration for (engine, cause), duration in spent.items() if engine == name}
        for name in engines_that_wait
    }


def _is_recorded(launch: AnalysedLaunch) -> bool:
    return all(core.is_whole and core.program.steps for core in launch.cores)


def _findings(facts: Facts, room: Mapping[MemoryRegion, int]) -> Iterator[Finding]:
    # Changes are tried only if all instructions of the launch are recorded.
    if not facts.time_ns:
        return
    study, launch = Study(facts, room), facts.launch
    if _is_recorded(launch):
        if facts.time_ns > NEAR_BOUND * facts.bound_ns:
            advice = list(study.advice(candidates(study)))
            yield from advice or study.advice(candidates_together(study))
        yield from choice_of_descriptors(study)
    for observe in OBSERVERS:
        yield from observe(facts)


def _weight(finding: Finding) -> float:
    # Another order is more work for the user than any other change.
    return finding.saved_us * (_OF_ANOTHER_ORDER if finding.about == "order" else 1.0)


def report_of(
    launch: AnalysedLaunch, busy_us: Mapping[str, float], bound_us: float, room: Mapping[MemoryRegion, int]
) -> Report:
    """Return the report of a launch.

    Args:
        launch: the examined instructions.
        busy_us: the busy time by engine, on the core on which the engine is busy longest.
        bound_us: the least time that the hardware needs for the work; 0 if it is not known.
        room: the bytes of a partition that the launch leaves free, by memory region.
    """
    facts = Facts(launch, busy_us, bound_us)
    findings = list(_findings(facts, room))
    lines = facts.by_line(facts.links)
    return Report(
        tuple(sorted(findings, key=lambda finding: (-_weight(finding), -finding.time_us))),
        _path(facts),
        {line: spent / NS_PER_US for line, spent in largest(lines, len(lines))},
        _waits(facts),
        tuple(facts.links),
        _is_recorded(launch),
    )
