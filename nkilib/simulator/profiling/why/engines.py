# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Findings about the compute engines: what they wait for, and which work other engines could do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...timing.causes import Waited
from .cores import ENGINES
from .critical import Kind
from .facts import NS_PER_US, Facts, Wait
from .finding import Finding
from .words import joined, largest, percent, summed, times, us

_WAITS_FROM = 0.15
# An engine as busy as this is the limit, whatever others wait for.
_LIMIT_FROM = 0.85
_BUSY_FROM, _IDLE_BELOW = 0.75, 0.25
_MOVED_FROM = 0.1
_ISSUE_FROM = 0.1
_LATENCY_FROM = 0.15
_TABLES_FROM = 0.05
_MEETINGS_FROM = 0.05


def waits(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the waits of the busiest compute engine, if no engine is busy enough to be the limit."""
    shares = facts.busy_shares
    computing = {name: share for name, share in shares.items() if name != "dma" and share}
    if not computing or max(shares.values()) >= _LIMIT_FROM:
        return
    engine = max(computing, key=lambda name: computing[name])
    own = [wait for wait in facts.waits if wait.engine == engine]
    duration = sum(wait.duration_ns for wait in own)
    if facts.share(duration) < _WAITS_FROM:
        return
    core = facts.core
    causes = largest(summed((_cause(facts, wait), wait.duration_ns) for wait in own))
    yield Finding(
        "waits",
        f"{engine.capitalize()}, the busiest compute engine ({percent(computing[engine])}), waits {us(duration)} "
        f"({percent(facts.share(duration))}): {joined(f'{us(spent)} {cause}' for cause, spent in causes)}. Let the "
        f"instructions that it waits for end earlier, or give it work on another tile in the meantime.",
        duration / NS_PER_US,
        facts.short(core.place(max(own, key=lambda wait: wait.duration_ns).number)),
    )


def _cause(facts: Facts, wait: Wait) -> str:
    core = facts.core
    if wait.waited is Waited.data and wait.on:
        return f"for the result of {facts.line(core, wait.on)}"
    if wait.waited is Waited.reuse and wait.on:
        return (
            f"until {facts.line(core, wait.on)} is done with the data that {facts.line(core, wait.number)} overwrites"
        )
    if wait.waited is Waited.loop:
        return f"at a device loop, before {facts.line(core, wait.number)}"
    return "for the other core" if wait.waited is Waited.meeting else "at the start"


def idle_engines(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each busy engine whose work an idle engine could share."""
    if not facts.links:
        return
    shares = facts.busy_shares
    for busy in (name for name in ("vector", "scalar", "gpsimd") if shares.get(name, 0.0) >= _BUSY_FROM):
        movable = list(_movable(facts, busy))
        idle = summed((work.other, work.duration_ns) for work in movable)
        if not idle:
            continue
        other = max(idle, key=lambda name: (idle[name], -shares.get(name, 0.0)))
        if facts.share(idle[other]) < _MOVED_FROM:
            continue
        lines = largest(summed((work.line, work.duration_ns) for work in movable if work.other == other))
        there = sum(work.other_ns for work in movable if work.other == other)
        yield Finding(
            "idle engine",
            f"{busy.capitalize()} is busy {percent(shares[busy])} of the time and {other} {percent(shares[other])}. "
            f"Of {busy}'s work, {us(idle[other])} could also run on {other}: "
            f"{joined(f'{line} ({us(spent)})' for line, spent in lines)}. "
            f"{_balance(facts, busy, other, idle[other], there)}",
            idle[other] / NS_PER_US,
            lines[0][0].rpartition(" ")[0],
        )


class _Movable(NamedTuple):
    """An instruction that another engine, which is idle, could run.

    Attributes:
        other: the name of the other engine.
        line: the line in the kernel and the name of the instruction.
        duration_ns: the time that the instruction takes on its engine.
        other_ns: the time that it would take on the other one.
    """

    other: str
    line: str
    duration_ns: float
    other_ns: float


def _movable(facts: Facts, busy: str) -> Iterator[_Movable]:
    """Yield the instructions of the engine ``busy`` that idle engines could run, once for each such engine."""
    core, clock_ghz = facts.core, facts.launch.model.generation.timing.clock_ghz
    for number, plan, _, span, *_ in core.notes:
        if plan.engine == busy and plan.cycles:
            for other, cycles in zip(plan.others, plan.other_cycles, strict=True):
                if facts.busy_shares.get(other, 0.0) < _IDLE_BELOW:
                    other_ns = cycles / clock_ghz[ENGINES[other]]
                    yield _Movable(other, facts.line(core, number), span.end_ns - span.start_ns, other_ns)


def _balance(facts: Facts, busy: str, other: str, movable_ns: float, there_ns: float) -> str:
    """Return how much of the work of the engine ``busy`` to move to ``other``, for both to be busy equally long.

    Args:
        facts: the launch.
        busy: the engine that has the work.
        other: the engine that could do it.
        movable_ns: the time of the work that could move.
        there_ns: the time that all of it would take on ``other``.
    """
    more_ns = (facts.busy_shares[busy] - facts.busy_shares[other]) * facts.time_ns
    balanced_ns = more_ns / (1.0 + there_ns / movable_ns)
    where = f"with engine=nisa.{other}_engine"
    if balanced_ns < movable_ns:
        return f"Moving about {us(balanced_ns)} of it there, {where}, would balance the two."
    return f"Move all of it there, {where}: {busy} would still have more work than {other}."


def small_instructions(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about instructions that are so short that the pauses between them matter."""
    links = facts.links_of(Kind.issue)
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _ISSUE_FROM:
        return
    work = facts.links_of(Kind.work)
    mean_ns = sum(link.duration_ns for link in work) / max(1, len(work))
    lines = largest(facts.by_line(links))
    yield Finding(
        "small instructions",
        f"{len(links):,} instructions on the critical path wait for the previous instruction of their engine, and the "
        f"pauses in between take {us(duration)} ({percent(facts.share(duration))}), most after "
        f"{joined(line for line, _ in lines)}. An instruction on the path works for {us(mean_ns)} on average. Let each "
        f"instruction work on more elements.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


def latency(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about chains of instructions on the critical path, each of which needs the result before it."""
    links = [link for link in facts.links_of(Kind.result) if facts.engine_of(link) != "dma"]
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _LATENCY_FROM:
        return
    lines = largest(facts.by_line(links))
    yield Finding(
        "latency",
        f"The critical path waits {times(len(links))} until a result reaches the next instruction: {us(duration)} "
        f"({percent(facts.share(duration))}), most after {joined(line for line, _ in lines)}. Put the work of another "
        f"tile between an instruction and the one that needs its result, or let each instruction work on more "
        f"elements.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


def activation_tables(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the loads of activation tables, if the functions of the Scalar engine alternate."""
    if not facts.links:
        return
    core = facts.core
    loads = sorted(core.table_loads)
    duration = len(loads) * facts.launch.model.generation.timing.activation_table_ns
    tables = {core.at(number)[1].table for number in loads}
    if len(loads) <= len(tables) or facts.share(duration) < _TABLES_FROM:
        return
    where: dict[str, str] = {}
    for number in loads:
        where.setdefault(core.at(number)[1].table, facts.line(core, number))
    functions = joined(f"{table} at {line}" for table, line in list(where.items())[:4])
    yield Finding(
        "activation tables",
        f"Scalar loads an activation table {times(len(loads))}, which takes {us(duration)} "
        f"({percent(facts.share(duration))}), because functions alternate: {functions}. Apply one function to "
        f"several tiles before you apply the next one.",
        duration / NS_PER_US,
        facts.short(core.place(loads[-1])),
    )


def meetings(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the barriers and exchanges at which the cores synchronise."""
    links = facts.links_of(Kind.meeting)
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _MEETINGS_FROM:
        return
    lines = largest(facts.by_line(links))
    count = len({link.number for link in links})
    yield Finding(
        "meetings",
        f"The cores synchronise {times(count)} on the critical path, which takes {us(duration)} "
        f"({percent(facts.share(duration))}), most at {joined(line for line, _ in lines)}. Exchange more at a time, or "
        f"let each core finish the work that needs nothing from the other core.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )
