# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions that state facts about the time of a launch: each yields findings.

- :func:`busiest_engine`: the engine that is busy longest, with its lines;
- :func:`waits`, :func:`small_instructions`, :func:`latency`, :func:`activation_tables`: the waits and the work of the
  compute engines;
- :func:`triggers`, :func:`small_rows`, :func:`first_bytes`: transfers;
- :func:`meetings`: where the cores synchronise.

:data:`OBSERVERS` lists the functions. Recommendations come from :mod:`.changes` instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ...timing.timeline import Waited
from .critical_path import Link, LinkKind
from .facts import NS_PER_US, Facts, Finding, Wait, joined, largest, nbytes, percent, summed, times, us

# Shares of the time, from which something is worth a finding.
_WAITS_FROM = 0.15
_ISSUE_FROM = 0.1
_LATENCY_FROM = 0.15
_TABLES_FROM = 0.05
_MEETINGS_FROM = 0.05
_TRIGGERS_FROM = 0.1
_FIRST_BYTE_FROM = 0.15
# An engine as busy as this is the limit, whatever others wait for.
_LIMIT_FROM = 0.85
# The multiple of the bound from which the busiest engine is named.
FAR_FROM_BOUND = 1.3
# The guide's length from which rows come near the rate (nki/deep-dives/nki-dma-bandwidth-guide.rst).
SMALL_ROW_BYTES = 2048
# Small rows that carry this share of the bytes and take this share of the time.
_SMALL_ROWS_FROM_BYTES = 0.1
_SMALL_ROWS_FROM_TIME = 0.05


def _work_of(facts: Facts, engine: str) -> Iterator[tuple[str, float]]:
    # Pairs (line, nanoseconds) for the core that finishes last.
    core = facts.core
    for number, kind, _, span, *_ in core.notes:
        if kind.engine == engine and kind.cycles:
            yield facts.line(core, number), span.end_ns - span.start_ns


def _work_of_dma(facts: Facts) -> Iterator[tuple[str, float]]:
    # Pairs (line, nanoseconds of the DMA engine that is busy longest) for the core that finishes last.
    core = facts.core
    moved = [(note[0], note[1].work) for note in core.notes if note[1].work is not None]
    busy = summed(pair for _, work in moved if work is not None for pair in work.times)
    busiest = max(busy, key=lambda number: busy[number], default=0)
    for number, work in moved:
        if work is not None:
            yield facts.line(core, number), dict(work.times).get(busiest, 0.0)


def busiest_engine(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the engine that is busy longest, if the launch is far from its bound."""
    if not facts.links or facts.time_ns <= FAR_FROM_BOUND * facts.bound_ns:
        return
    shares = facts.busy_shares
    engine = max(shares, key=lambda name: shares[name])
    lines = largest(summed(_work_of_dma(facts) if engine == "dma" else _work_of(facts, engine)))
    bound = f", {facts.time_ns / facts.bound_ns:.1f} times the bound" if facts.bound_ns else ""
    yield Finding(
        "busiest engine",
        f"{facts.engine_name(engine)} is busy longest: {percent(shares[engine])} of {us(facts.time_ns)}{bound}; most "
        f"at {joined(f'{line} ({us(duration)})' for line, duration in lines)}.",
        shares[engine] * facts.time_ns / NS_PER_US,
        lines[0][0].rpartition(" ")[0] if lines else "",
    )


def _cause_of(facts: Facts, wait: Wait) -> str:
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
    causes = largest(summed((_cause_of(facts, wait), wait.duration_ns) for wait in own))
    yield Finding(
        "waits",
        f"{engine.capitalize()}, the busiest compute engine ({percent(computing[engine])}), waits {us(duration)} "
        f"({percent(facts.share(duration))}): {joined(f'{us(spent)} {cause}' for cause, spent in causes)}.",
        duration / NS_PER_US,
        facts.short(core.place(max(own, key=lambda wait: wait.duration_ns).number)),
    )


def small_instructions(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about instructions that are so short that the pauses between them matter."""
    links = facts.links_of(LinkKind.issue)
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _ISSUE_FROM:
        return
    work = facts.links_of(LinkKind.work)
    mean_ns = sum(link.duration_ns for link in work) / max(1, len(work))
    lines = largest(facts.by_line(links))
    yield Finding(
        "small instructions",
        f"{len(links):,} instructions on the critical path wait for the previous instruction of their engine, and the "
        f"pauses in between take {us(duration)} ({percent(facts.share(duration))}), most after "
        f"{joined(line for line, _ in lines)}. An instruction on the path works for {us(mean_ns)} on average.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


def latency(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about chains of instructions on the critical path, each of which needs the result before it."""
    links = [link for link in facts.links_of(LinkKind.result) if facts.engine_of(link) != "dma"]
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _LATENCY_FROM:
        return
    lines = largest(facts.by_line(links))
    yield Finding(
        "latency",
        f"The critical path waits {times(len(links))} until a result reaches the next instruction: {us(duration)} "
        f"({percent(facts.share(duration))}), most after {joined(line for line, _ in lines)}.",
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
        f"({percent(facts.share(duration))}), because functions alternate: {functions}.",
        duration / NS_PER_US,
        facts.short(core.place(loads[-1])),
    )


def meetings(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the barriers and exchanges at which the cores synchronise."""
    links = facts.links_of(LinkKind.meeting)
    duration = sum(link.duration_ns for link in links)
    if facts.share(duration) < _MEETINGS_FROM:
        return
    lines = largest(facts.by_line(links))
    count = len({link.number for link in links})
    yield Finding(
        "meetings",
        f"The cores synchronise {times(count)} on the critical path, which takes {us(duration)} "
        f"({percent(facts.share(duration))}), most at {joined(line for line, _ in lines)}.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


def triggers(facts: Facts) -> Iterator[Finding]:
    """Yield findings about DMA queues whose successive triggers take much of the critical path."""
    by_queue: dict[str, list[Link]] = defaultdict(list)
    for link in facts.links_of(LinkKind.trigger):
        by_queue[facts.of(link).at(link.number)[1].queue].append(link)
    for queue, links in by_queue.items():
        duration = sum(link.duration_ns for link in links)
        if facts.share(duration) < _TRIGGERS_FROM:
            continue
        work = [work for link in links if (work := facts.of(link).at(link.number)[1].work) is not None]
        mean_bytes = sum(transfer.nbytes for transfer in work) / len(work)
        mean_ns = sum(transfer.longest_ns for transfer in work) / len(work)
        lines = largest(facts.by_line(links))
        trigger_ns = facts.launch.model.trigger_ns(queue)
        enough = trigger_ns * facts.launch.model.generation.timing.dma.core_gb_per_s
        yield Finding(
            "triggers",
            f"The queue of {queue}s can trigger a transfer every {us(trigger_ns)}: {len(links):,} of them on the "
            f"critical path take {us(duration)} of it ({percent(facts.share(duration))}), most at "
            f"{joined(line for line, _ in lines)}. A transfer moves {nbytes(mean_bytes)} on average, which takes the "
            f"DMA engines {us(mean_ns)}; from {nbytes(enough)} on the engines are the limit.",
            duration / NS_PER_US,
            lines[0][0].rpartition(" ")[0],
        )


class _Rows(NamedTuple):
    """Transfers that one line of the kernel issues and whose rows have the same length."""

    line: str
    row_bytes: float


def small_rows(facts: Facts) -> Iterator[Finding]:
    """Yield findings about transfers in rows (contiguous bytes) below 2 KiB, with much of the bytes and the time."""
    if not facts.links:
        return
    dma = facts.launch.model.generation.timing.dma
    core = facts.core
    moved = [(_Rows(facts.line(core, note[0]), work.row_bytes), work) for note in core.notes if (work := note[1].work)]
    all_bytes = sum(work.nbytes for _, work in moved)
    small = [(rows, work) for rows, work in moved if 0.0 < rows.row_bytes < SMALL_ROW_BYTES]
    duration = summed((rows, work.longest_ns) for rows, work in small)
    for rows, count in summed((rows, work.nbytes) for rows, work in small).items():
        share, taken = count / all_bytes, facts.share(duration[rows])
        if share < _SMALL_ROWS_FROM_BYTES or taken < _SMALL_ROWS_FROM_TIME:
            continue
        rate = min(1.0, rows.row_bytes / (dma.row_ns * dma.gb_per_s))
        yield Finding(
            "small rows",
            f"{rows.line} moves rows of {nbytes(rows.row_bytes)}: {nbytes(count)}, {percent(share)} of the bytes of "
            f"all transfers of a core, at {percent(rate)} of the rate of the DMA engines, which are busy with them for "
            f"{us(duration[rows])} ({percent(taken)} of the time). Rows of {nbytes(SMALL_ROW_BYTES)} or more "
            f"move at the full rate; a row is a run of bytes that is contiguous both in HBM and in a partition.",
            duration[rows] / NS_PER_US,
            rows.line.rpartition(" ")[0],
        )


def first_bytes(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about the time before the first and after the last byte of transfers on the critical path."""
    links = facts.links_of(LinkKind.first_byte)
    ends = [link for link in facts.links_of(LinkKind.result) if facts.engine_of(link) == "dma"]
    duration = sum(link.duration_ns for link in [*links, *ends])
    if facts.share(duration) < _FIRST_BYTE_FROM:
        return
    lines = largest(facts.by_line([*links, *ends]))
    yield Finding(
        "first byte",
        f"The critical path waits {times(len(links))} for a transfer from its start on: {us(duration)} "
        f"({percent(facts.share(duration))}) pass before the first byte and after the last one, most at "
        f"{joined(line for line, _ in lines)}.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


# In the order in which findings of equal weight are reported.
OBSERVERS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    busiest_engine,
    triggers,
    small_rows,
    first_bytes,
    waits,
    small_instructions,
    latency,
    activation_tables,
    meetings,
)
