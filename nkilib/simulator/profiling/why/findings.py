# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The functions that look for what makes a kernel slow: each yields findings, sentences with figures and a remedy.

- :func:`waits`, :func:`idle_engines`, :func:`small_instructions`, :func:`latency`, :func:`activation_tables`: the waits
  and the work of the compute engines;
- :func:`triggers`, :func:`small_rows`, :func:`first_bytes`, :func:`descriptors`: transfers;
- :func:`meetings`, :func:`loops`, :func:`second_buffers`: where cores or engines synchronise, and buffers that they
  wait for;
- :func:`same_work`: work that the cores do twice.

:data:`FINDERS` lists them. Some estimate the time of the launch without a wait, or with another kind of descriptors, by
timing its instructions again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ...memory.capacity import LiveRange
from ...timing.dma import is_software
from ...timing.instruction import InstructionKind
from ...timing.timeline import Waited
from .critical_path import ENGINES, AnalysedCore, Link, LinkKind, TimeModel
from .facts import NS_PER_US, Facts, Finding, Wait, joined, largest, nbytes, percent, summed, times, us
from .retiming import Changes, retimed_ns

# Shares of the time, from which something is worth a finding.
_WAITS_FROM = 0.15
_MOVED_FROM = 0.1
_ISSUE_FROM = 0.1
_LATENCY_FROM = 0.15
_TABLES_FROM = 0.05
_MEETINGS_FROM = 0.05
_TRIGGERS_FROM = 0.1
_FIRST_BYTE_FROM = 0.15
_SAVED_FROM = 0.03
_SAVED_AT_LOOPS_FROM = 0.05
_DIFFERS_FROM = 0.05
# An engine as busy as this is the limit, whatever others wait for.
_LIMIT_FROM = 0.85
_BUSY_FROM, _IDLE_BELOW = 0.75, 0.25
# The guide's length from which rows come near the rate (nki/deep-dives/nki-dma-bandwidth-guide.rst).
SMALL_ROW_BYTES = 2048
# Small rows that carry this share of the bytes and take this share of the time.
_SMALL_ROWS_FROM_BYTES = 0.1
_SMALL_ROWS_FROM_TIME = 0.05
# The most tiles for which the time with more buffers is worked out.
_MOST_TRIED = 3


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
        f"({percent(facts.share(duration))}): {joined(f'{us(spent)} {cause}' for cause, spent in causes)}. Let the "
        f"instructions that it waits for end earlier, or give it work on another tile in the meantime.",
        duration / NS_PER_US,
        facts.short(core.place(max(own, key=lambda wait: wait.duration_ns).number)),
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
    for number, kind, _, span, *_ in core.notes:
        if kind.engine == busy and kind.cycles:
            for other, cycles in zip(kind.others, kind.other_cycles, strict=True):
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
        f"{joined(line for line, _ in lines)}. An instruction on the path works for {us(mean_ns)} on average. Let each "
        f"instruction work on more elements.",
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
    links = facts.links_of(LinkKind.meeting)
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


def triggers(facts: Facts) -> Iterator[Finding]:
    """Yield findings about DMA queues whose triggers, one after the other, take much of the critical path."""
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
            f"DMA engines {us(mean_ns)}. Move more in one transfer (from {nbytes(enough)} on the engines are the "
            f"limit), keep data that is loaded again in SBUF, or trigger some transfers from another queue with "
            f"dma_copy(engine=).",
            duration / NS_PER_US,
            lines[0][0].rpartition(" ")[0],
        )


class _Rows(NamedTuple):
    """The transfers that one line of the kernel issues with rows of one length."""

    line: str
    row_bytes: float


def small_rows(facts: Facts) -> Iterator[Finding]:
    """Yield findings about rows below 2 KiB that carry much of the bytes and take much of the time."""
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
            f"{us(duration[rows])} ({percent(taken)} of the time). Move rows of {nbytes(SMALL_ROW_BYTES)} or more: a "
            f"row is a run of bytes that is contiguous both in HBM and in a partition.",
            duration[rows] / NS_PER_US,
            rows.line.rpartition(" ")[0],
        )


def first_bytes(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about transfers that no work hides: their time before the first row and after the last one."""
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
        f"{joined(line for line, _ in lines)}. Load the tiles of the next iteration before this iteration computes, "
        f"and load more in one transfer.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )


def _instead(facts: Facts, saved_ns: float) -> str:
    reduced, whole = us(facts.time_ns - saved_ns), us(facts.time_ns)
    return f"{reduced} instead of {whole} ({percent(facts.share(saved_ns))} less, an estimate)"


def _waiting(facts: Facts, core: AnalysedCore, storage: int) -> Counter[tuple[str, str]]:
    """Count the waits before a tensor is overwritten, by the writing instruction and the reader that it waits for."""
    pairs: Counter[tuple[str, str]] = Counter()
    for number, _, _, span, *_ in core.notes:
        cause = span.cause
        if cause.waited is Waited.reuse and cause.reused == storage:
            pairs[facts.line(core, number), facts.line(core, number - cause.overwrites)] += 1
    return pairs


def _buffer_that_saves(facts: Facts, life: LiveRange, saved_ns: float) -> Finding:
    core = next(core for core in facts.launch.cores if core.life_of(life.storage) is not None)
    (writer, reader), count = _waiting(facts, core, life.storage).most_common(1)[0]
    tensor = life.tensor.removeprefix("tensor ")
    return Finding(
        "buffers",
        f"The tile {tensor}, made at {facts.short(life.place)}, is overwritten too soon: {writer} waits "
        f"{times(count)} until {reader} has read it. Make two or three such tiles before the loop and use them "
        f"round-robin, or make a new tile in each iteration, which takes more {str(life.region).upper()}: with "
        f"enough buffers, the same instructions would take about {_instead(facts, saved_ns)}.",
        saved_ns / NS_PER_US,
        facts.short(life.place),
        saved_ns / NS_PER_US,
    )


def second_buffers(facts: Facts) -> Iterator[Finding]:
    """Yield findings about tiles that are overwritten so soon that the critical path waits for their readers.

    Each states the time of the launch without the waits for that tile.
    """
    if not all(core.is_whole for core in facts.launch.cores):
        return
    on_path: Counter[str] = Counter()
    waited_for: set[int] = set()
    for link in facts.links:
        core = facts.of(link)
        cause = core.at(link.number)[3].cause
        life = core.life_of(cause.reused) if cause.waited is Waited.reuse and cause.reused else None
        if life is not None:
            on_path[life.place] += 1
            waited_for.add(life.storage)
    as_it_is_ns = retimed_ns(facts.launch) if on_path else 0.0
    for place, _ in on_path.most_common(_MOST_TRIED):
        # Both cores make the tensor at the same line.
        lives = [life for core in facts.launch.cores for life in core.lives if life.place == place]
        saved_ns = as_it_is_ns - retimed_ns(facts.launch, Changes({life.storage for life in lives}))
        if facts.share(saved_ns) >= _SAVED_FROM:
            # Some of several tensors of one line may not be waited for.
            yield _buffer_that_saves(facts, next(life for life in lives if life.storage in waited_for), saved_ns)


def loops(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about device loops between whose iterations all engines synchronise."""
    on_path = [link for link in facts.links if facts.of(link).at(link.number)[3].cause.waited is Waited.loop]
    if not on_path or not all(core.is_whole for core in facts.launch.cores):
        return
    saved_ns = retimed_ns(facts.launch) - retimed_ns(facts.launch, Changes(meets_at_loops=False))
    if facts.share(saved_ns) < _SAVED_AT_LOOPS_FROM:
        return
    held_up = Counter(facts.line_of(link) for link in {link.number: link for link in on_path}.values())
    (line, count), *_ = held_up.most_common(1)
    yield Finding(
        "loops",
        f"All engines synchronise at device loops and between their iterations, {times(count)} before {line}. If no "
        f"engine waited for the others there, the same instructions would take about "
        f"{_instead(facts, saved_ns)}. Do the work of several iterations in one.",
        saved_ns / NS_PER_US,
        line.rpartition(" ")[0],
        saved_ns / NS_PER_US,
    )


def _pause_ns(model: TimeModel, kind: InstructionKind) -> float:
    """Return how much longer, or shorter, a queue pauses between transfers with the other kind of descriptors."""
    return model.trigger_ns(kind.other_queue) - model.trigger_ns(kind.queue)


def _described(model: TimeModel, queue: str) -> str:
    """Return words for the kind of descriptors of a queue, and for how often it can trigger a transfer."""
    if is_software(queue):
        kind = "software descriptors, which GpSimd writes"
    elif model.generation.timing.dma.has_hardware_descriptors:
        kind = "hardware descriptors"
    else:
        kind = "descriptors that the host has written"
    return f"{kind} (a trigger every {us(model.trigger_ns(queue))} in each direction)"


def _compared(facts: Facts, difference_ns: float) -> str:
    return f"{percent(abs(facts.share(difference_ns)))} {'more' if difference_ns > 0 else 'less'}"


def descriptors(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the launch takes at least 5% more or less time with the other kind of descriptors.

    It is about transfers whose kind the kernel leaves to the compiler.
    """
    cores, model = facts.launch.cores, facts.launch.model
    if not facts.links or not all(core.is_whole for core in cores):
        return
    kinds = [kind for core in cores for _, kind, *_ in core.notes if kind.other_queue]
    # No path through the launch gets longer, or shorter, by more than this.
    at_most_ns = sum(abs(_pause_ns(model, kind)) for kind in kinds)
    if facts.share(at_most_ns) < _DIFFERS_FROM:
        return
    difference_ns = retimed_ns(facts.launch, Changes(other_descriptors=True)) - retimed_ns(facts.launch)
    if abs(facts.share(difference_ns)) < _DIFFERS_FROM:
        return
    counts: dict[str, float] = {}
    places: dict[str, str] = {}
    for core in cores:
        for number, kind, *_ in core.notes:
            if kind.other_queue:
                line = facts.line(core, number)
                counts[line] = counts.get(line, 0.0) + 1.0
                places.setdefault(line, facts.short(core.place(number)))
    lines = largest(counts)
    modelled, other = (_described(model, queue) for queue in (kinds[0].queue, kinds[0].other_queue))
    yield Finding(
        "descriptors",
        f"The time depends on the compiler: the kernel leaves the kind of descriptors of {len(kinds):,} transfers to "
        f"it, most at {joined(f'{line} ({times(int(count))})' for line, count in lines)}. With {modelled}, as modelled "
        f"here, the launch takes {us(facts.time_ns)}; with {other}, the same instructions would take about "
        f"{us(facts.time_ns + difference_ns)} ({_compared(facts, difference_ns)}, an estimate). Choose the kind with "
        f"dma_copy(dge_mode=).",
        abs(difference_ns) / NS_PER_US,
        places[lines[0][0]],
        max(0.0, -difference_ns) / NS_PER_US,
    )


def same_work(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the cores load the same data, run the same instructions and store to the same place."""
    stored, cores = facts.launch.stored_by_every_core, facts.launch.cores
    if not stored or not facts.links:
        return
    saved_ns = facts.time_ns * (len(cores) - 1) / len(cores)
    (line, _), *_ = largest(facts.by_line(facts.links))
    yield Finding(
        "same work",
        f"Both cores do the same work: they run equal numbers of each instruction, load the same data and store the "
        f"same parts of {joined(stored)}. Most of the time is spent at {line}. Give each core a part of the work with "
        f"nl.program_id(0): that would save up to {us(saved_ns)} of {us(facts.time_ns)}.",
        saved_ns / NS_PER_US,
        line.rpartition(" ")[0],
        saved_ns / NS_PER_US,
    )


# In the order in which findings of equal weight are reported.
FINDERS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    triggers,
    small_rows,
    first_bytes,
    descriptors,
    second_buffers,
    loops,
    waits,
    idle_engines,
    small_instructions,
    latency,
    activation_tables,
    meetings,
    same_work,
)
