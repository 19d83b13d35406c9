# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The details of a launch that only the HTML page shows: sums by line, device loops, unused times of tiles.

:func:`details_of` computes the :class:`Details` from the records of the cores: the sums of each line of the kernel
(:class:`LineTotal`), the runs of device loops (:class:`LoopSpan`), and the times in which a tile is *unused*, because
no instruction reads its content later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ..memory.capacity import LiveRange
from ..timing.instruction_log import InstructionLog, Lines
from ..timing.parameters import NS_PER_US
from ..timing.recording import Recording, Step
from ..timing.timeline import Waited
from ..timing.trace import LoopNote
from .why.critical_path import ENGINES, AnalysedCore, AnalysedLaunch, Link, TimeModel
from .why.flow import reads_of, writes_of

# The most runs of device loops on a core that are listed.
MOST_LOOPS = 2_000

Spans = tuple[tuple[float, float], ...]


@dataclass
class LineTotal:
    """The sums of a line of the kernel over all cores.

    Attributes:
        count: the number of instructions, including iterations that were not run because they repeat others.
        nbytes: the bytes that its transfers move.
        busy_us: microseconds by engine; for ``dma``, of the DMA engine that works longest on the line.
        path_us: microseconds of the critical path.
    """

    count: int = 0
    nbytes: int = 0
    busy_us: dict[str, float] = field(default_factory=dict)
    path_us: float = 0.0


class LoopSpan(NamedTuple):
    """A run of a device loop on the timeline.

    Attributes:
        core: the number of the core.
        what: the function that the kernel calls to start the loop, ``nl.fori_loop`` for instance.
        place: ``file:line`` in the kernel.
        depth: the number of device loops around it.
        start_us: the start of its first instruction.
        end_us: the end of its last instruction.
        iterations: the number of iterations.
        left_out: the number of iterations that were not run because they only repeat others.
    """

    core: int
    what: str
    place: str
    depth: int
    start_us: float
    end_us: float
    iterations: int
    left_out: int


class CoreRecord(NamedTuple):
    """The records of a core.

    Attributes:
        core: the number of the core.
        log: its instructions.
        lives: its on-chip tensors.
        recording: the record of the tensors that its instructions touched.
        loops: its runs of device loops.
        busy_ns: the busy time by engine.
    """

    core: int
    log: InstructionLog
    lives: Sequence[LiveRange]
    recording: Recording
    loops: Sequence[LoopNote]
    busy_ns: Mapping[str, float]


@dataclass(frozen=True)
class Details:
    """The details of a launch.

    Attributes:
        lines: the sums of each line, by ``file:line`` of the kernel.
        loops: the runs of device loops, at most 2,000 a core.
        loops_left_out: the number of further runs of device loops.
        meetings: the synchronisations of the cores, as a dict from (core, number of the instruction that waited) to
            (other core, number of its instruction at the same synchronisation).
        unused_us: for each tensor of ``ProfiledLaunch.tensors``, the times (start, end) in which it is unused; None if
            there were too many instructions to record.
        busy_us: the busy microseconds by core and engine.
    """

    lines: dict[str, LineTotal]
    loops: tuple[LoopSpan, ...]
    loops_left_out: int
    meetings: dict[tuple[int, int], tuple[int, int]]
    unused_us: tuple[Spans, ...] | None
    busy_us: dict[int, dict[str, float]]


def _lines_of(cores: Sequence[CoreRecord], model: TimeModel) -> dict[str, LineTotal]:
    totals: defaultdict[str, LineTotal] = defaultdict(LineTotal)
    clocks = model.generation.timing.clock_ghz
    for record in cores:
        places = Lines()
        moved: defaultdict[str, Counter[int]] = defaultdict(Counter)  # by line, nanoseconds of each DMA engine
        for site, count in record.log.site_counts():
            kind, place = site.kind, places.place(site.code, site.position)
            total = totals[place]
            total.count += count
            busy: dict[str, float] = {}
            if kind.work is not None:
                total.nbytes += count * kind.work.nbytes
                for engine, duration in kind.work.times:
                    moved[place][engine] += count * duration  # type: ignore[assignment]
                if kind.work.is_gathered:
                    busy["gpsimd"] = model.descriptors_ns
            elif kind.cycles and not kind.dropped_by:
                busy[kind.engine] = kind.cycles / clocks[ENGINES[kind.engine]]
            for engine_name, duration in busy.items():
                spent = count * duration / NS_PER_US
                total.busy_us[engine_name] = total.busy_us.get(engine_name, 0.0) + spent
        for place, times in moved.items():
            spent = max(times.values(), default=0.0) / NS_PER_US
            totals[place].busy_us["dma"] = totals[place].busy_us.get("dma", 0.0) + spent
    return dict(totals)


def _add_path(lines: dict[str, LineTotal], links: Sequence[Link], launch: AnalysedLaunch) -> None:
    cores = {core.number: core for core in launch.cores}
    for link in links:
        line = lines.setdefault(cores[link.core].place(link.number), LineTotal())
        line.path_us += link.duration_ns / NS_PER_US


def _loops_of(record: CoreRecord) -> Iterator[LoopSpan]:
    log = record.log
    for note in sorted(record.loops, key=lambda note: (note.first, note.loop.depth)):
        if not note.first:
            continue
        loop, start_ns = note.loop, log.span_of(note.first).start_ns
        # The last iteration ran, after those that were left out.
        end_ns = log.span_of(note.last).end_ns
        for later_ns in (0.0, *log.again(note.first, note.last)):
            start, end = (start_ns + later_ns) / NS_PER_US, (end_ns + later_ns) / NS_PER_US
            yield LoopSpan(record.core, loop.what, loop.place, loop.depth, start, end, loop.count, note.left_out)


def _meetings(cores: Sequence[AnalysedCore]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    # Pairs of the instruction that waited for the other core, and the instruction there at which they met.
    if len(cores) != 2:
        return
    for core, other in (cores, cores[::-1]):
        for own, theirs in zip(reversed(core.meetings), reversed(other.meetings), strict=False):
            if core.at(own)[3].cause.waited is Waited.meeting:
                yield (core.number, own), (other.number, theirs)


class _Use(NamedTuple):
    """An access to a tile: its instruction, its time in nanoseconds, and the part that it reads or overwrites.

    Attributes:
        number: the number of the instruction.
        start_ns: the start of the instruction.
        end_ns: the end of the instruction.
        is_read: whether the access is a read.
        part: the id of the part of the tile.
        overwritten: the number of bytes that the access certainly overwrites; 0 for a read.
    """

    number: int
    start_ns: float
    end_ns: float
    is_read: bool
    part: int
    overwritten: int


def _uses_of(record: CoreRecord) -> dict[int, list[_Use]]:
    # By the number of each on-chip storage, in program order.
    spans = {note[0]: note[3] for note in record.log}
    uses: defaultdict[int, list[_Use]] = defaultdict(list)
    for step in record.recording.program(record.log):
        if not isinstance(step, Step) or step.action.kind.dropped_by:
            continue
        span, action = spans[step.number], step.action
        leaves = action.definition.is_matmul or any(rule.may_leave for rule, _ in action.definition.outputs)
        accesses = [(access, True) for _, access in reads_of(action)]
        accesses += [(access, False) for _, access in writes_of(action)]
        for access, is_read in accesses:
            if access.footprint.form.is_on_chip and access.footprint.part is not None:
                part, covered = id(access.footprint.part), 0 if is_read or leaves else access.footprint.form.nbytes
                uses[access.storage].append(_Use(step.number, span.start_ns, span.end_ns, is_read, part, covered))
    return uses


def _unused(uses: Sequence[_Use], nbytes: int) -> Iterator[tuple[float, float]]:
    """Yield the times (start, end), in nanoseconds, in which a tile holds nothing that is read later.

    Such a time begins at the end of a read. It ends at the first write after that read, if the writes before the next
    read overwrite all ``nbytes`` of the tile. If writes follow the last read, it ends with the last access. For a tile
    that is never read, it begins at the first access.
    """
    done_ns, begin_ns = 0.0, None
    covered: dict[int, int] = {}
    for use in uses:
        if use.is_read:
            is_overwritten = begin_ns is not None and sum(covered.values()) >= nbytes
            if begin_ns is not None and is_overwritten and begin_ns > done_ns > 0.0:
                yield done_ns, begin_ns
            done_ns, begin_ns = max(done_ns, use.end_ns), None
            covered.clear()
        else:
            begin_ns = use.start_ns if begin_ns is None else begin_ns
            covered[use.part] = use.overwritten
    if begin_ns is not None:
        last_ns = max(use.end_ns for use in uses)
        start_ns = done_ns or uses[0].start_ns  # a tile that is never read
        if last_ns > start_ns:
            yield start_ns, last_ns


def _unused_of(record: CoreRecord) -> Iterator[Spans]:
    # The order of the tensors is that of ``tensor_lives``.
    all_uses = _uses_of(record)
    for life in record.lives:
        if not life.is_used:
            continue
        begin = life.earlier[0][0] if life.earlier else life.first
        uses = all_uses.get(life.storage, [])
        numbers = [use.number for use in uses]
        uses = uses[bisect_left(numbers, begin) : bisect_left(numbers, life.last + 1)]
        spans = list(_unused(uses, life.partitions * life.nbytes))
        for later_ns in (0.0, *record.log.again(begin, life.last)):
            yield tuple([((start + later_ns) / NS_PER_US, (end + later_ns) / NS_PER_US) for start, end in spans])


def details_of(cores: Sequence[CoreRecord], launch: AnalysedLaunch, links: Sequence[Link]) -> Details:
    """Return the details of a launch.

    Args:
        cores: the records of the cores.
        launch: the instructions that the analysis of the critical path examines.
        links: the stretches of time on the critical path.
    """
    lines = _lines_of(cores, launch.model)
    _add_path(lines, links, launch)
    loops: list[LoopSpan] = []
    left_out = 0
    for record in cores:
        spans = _loops_of(record)
        loops += islice(spans, MOST_LOOPS)
        left_out += sum(1 for _ in spans)
    is_known = all(core.is_whole and core.program.steps for core in launch.cores)
    unused = tuple(spans for record in cores for spans in _unused_of(record)) if is_known else None
    busy = {record.core: {name: busy_ns / NS_PER_US for name, busy_ns in record.busy_ns.items()} for record in cores}
    return Details(lines, tuple(loops), left_out, dict(_meetings(launch.cores)), unused, busy)
