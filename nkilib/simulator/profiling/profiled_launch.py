# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The record of a launch from which a profile computes its tensors, instructions and findings on request.

:class:`ProfiledLaunch` is the record. :func:`tensor_lives`, :func:`use_over_time` and :func:`listed` describe its
on-chip tensors (:class:`TensorLife`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from ..hardware.generations import PSUM_PARTITION_BYTES
from ..memory.capacity import LiveRange
from ..terms.enums import MemoryRegion
from ..timing.instruction_log import Event, InstructionLog, events_of
from ..timing.parameters import NS_PER_US
from ..timing.trace import Collection, Trace
from .details import CoreRecord, Details, details_of
from .why.critical_path import AnalysedCore, AnalysedLaunch, TimeModel
from .why.facts import stored_by_every_core
from .why.report import Report, report_of

# A core: its number, its instructions, and its on-chip tensors.
_Core = tuple[int, InstructionLog, Sequence[LiveRange]]


@dataclass(frozen=True)
class TensorLife:
    """An on-chip tensor and the time from its first to its last use.

    Attributes:
        core: the number of the core.
        region: ``"sbuf"`` or ``"psum"``.
        tensor: its name, shape and type.
        place: ``file:line`` of the kernel that made it.
        partitions: the number of partitions that it takes.
        nbytes: the bytes that it takes in each partition.
        start_us: the start of the first instruction that accesses it.
        end_us: the end of the last instruction that accesses it.
    """

    core: int
    region: str
    tensor: str
    place: str
    partitions: int
    nbytes: int
    start_us: float
    end_us: float

    @property
    def what(self) -> str:
        """The tensor, and the line that made it."""
        return f"{self.tensor}, made at {self.place}"


def tensor_lives(
    core: int, lives: Iterable[LiveRange], log: InstructionLog, *, repeats: bool = True
) -> Iterator[TensorLife]:
    """Yield the on-chip tensors of a core, with their times; tensors that are never used are left out.

    Args:
        core: the number of the core.
        lives: the on-chip tensors of the core.
        log: the instructions of the core.
        repeats: whether to yield the tensors of every iteration of repeated loops, instead of one iteration.
    """
    for life in lives:
        if not life.is_used:
            continue
        begin = life.earlier[0][0] if life.earlier else life.first
        first, last = log.span_of(begin), log.span_of(life.last)
        start_ns, end_ns = first.start_ns, max(first.end_ns, last.end_ns)
        tensor, place = life.tensor, life.place
        for later_ns in (0.0, *(log.again(begin, life.last) if repeats else ())):
            start, end = (start_ns + later_ns) / NS_PER_US, (end_ns + later_ns) / NS_PER_US
            yield TensorLife(core, str(life.region), tensor, place, life.partitions, life.nbytes, start, end)


def use_over_time(tensors: Iterable[TensorLife]) -> list[tuple[float, int]]:
    """Return pairs (microseconds, bytes of a partition in use from then on) for the tensors of one core and region."""
    changes = sorted(
        [(life.start_us, life.nbytes) for life in tensors] + [(life.end_us, -life.nbytes) for life in tensors]
    )
    steps: list[tuple[float, int]] = []
    total = 0
    for time, group in groupby(changes, key=lambda change: change[0]):
        total += sum(change for _, change in group)
        steps.append((time, total))
    return steps


def _nearest(place: str) -> str:
    # Relative to the current directory if the file is in it.
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place


def listed(tensors: Iterable[TensorLife]) -> list[str]:
    """Return one line of text for each group of equal tensors that one line of the kernel makes.

    The text has the number of tensors, the bytes of a partition, the tensor and the line of the kernel.
    """
    counts = Counter((life.nbytes, life.tensor, life.place) for life in tensors)
    return [
        f"{f'{count} x' if count > 1 else '':>6} {nbytes:>8,} {tensor}, made at {_nearest(place)}"
        for (nbytes, tensor, place), count in counts.items()
    ]


def _highest(traces: Sequence[Trace], region: MemoryRegion) -> _Core:
    # The core whose tensors take most bytes of a memory at one time, with the tensors alive at that time.
    highest = max(traces, key=lambda trace: trace.lives.peaks[region].nbytes if region in trace.lives.peaks else 0)
    lives = highest.lives.peaks[region].lives if region in highest.lives.peaks else ()
    return highest.core, highest.settled.log, lives


class ProfiledLaunch:
    """The instructions and the on-chip tensors of a launch, each computed when it is first asked for.

    Most profiles are only printed, which needs few of these values. The record keeps the logs of the cores instead of
    their traces, because traces hold the tensors in HBM.
    """

    def __init__(self, collection: Collection, model: TimeModel, busy_us: Mapping[str, float], bound_us: float) -> None:
        traces = collection.traces
        self._cores: Sequence[_Core] = [(trace.core, trace.settled.log, trace.lives.ranges) for trace in traces]
        self._recordings = [trace.settled.recording for trace in traces]
        self._loops = [trace.loops for trace in traces]
        self._busy_ns = [trace.settled.timeline.busy_ns() for trace in traces]
        self._ends_ns = [trace.settled.timeline.end_ns for trace in traces]
        self._model = model
        self._busy_us = busy_us
        self._bound_us = bound_us
        self._stored_by_every_core = stored_by_every_core(collection)
        self._peaks = {region: _highest(traces, region) for region in (MemoryRegion.sbuf, MemoryRegion.psum)}

    @cached_property
    def instructions(self) -> tuple[Event, ...]:
        """Every instruction, core by core, in program order."""
        return tuple(event for core, log, _ in self._cores for event in events_of(core, log))

    def counts(self) -> dict[int, int]:
        """Return the number of instructions of each core."""
        if "instructions" in self.__dict__:
            return dict(Counter(event.core for event in self.instructions))
        return {core: len(log) for core, log, _ in self._cores}

    def of_core(self, core: int, first: int, end: int) -> Sequence[Event]:
        """Return the instructions of a core at the positions ``first`` to ``end - 1``; no others are computed."""
        if "instructions" in self.__dict__:
            return [event for event in self.instructions if event.core == core][first:end]
        log = next(log for number, log, _ in self._cores if number == core)
        return list(events_of(core, log[first:end]))

    @cached_property
    def details(self) -> Details:
        """The sums by line, device loops, meetings of the cores and unused times of tiles, which only the HTML page
        shows.
        """
        rest = zip(self._recordings, self._loops, self._busy_ns, strict=True)
        cores = [CoreRecord(*core, *other) for core, other in zip(self._cores, rest, strict=True)]
        return details_of(cores, self.launch, self.report.links)

    @property
    def launch(self) -> AnalysedLaunch:
        """The instructions of each core in the form in which critical path and waits are computed from them."""
        cores = [
            AnalysedCore(*core, end_ns, recording)
            for core, end_ns, recording in zip(self._cores, self._ends_ns, self._recordings, strict=True)
        ]
        return AnalysedLaunch(cores, self._model, self._stored_by_every_core)

    @property
    def is_tried(self) -> bool:
        """Whether changes of the launch were tried, which needs the record of all instructions."""
        return self.report.is_tried

    @cached_property
    def report(self) -> Report:
        """The findings, critical path and waits of the launch."""
        peaks = {region: sum(life.nbytes for life in lives) for region, (_, _, lives) in self._peaks.items()}
        capacity = {
            MemoryRegion.sbuf: self._model.generation.sbuf_usable_bytes,
            MemoryRegion.psum: PSUM_PARTITION_BYTES,
        }
        room = {region: capacity[region] - peak for region, peak in peaks.items()}
        return report_of(self.launch, self._busy_us, self._bound_us, room)

    @cached_property
    def tensors(self) -> tuple[TensorLife, ...]:
        """The lives of all on-chip tensors that are used: one for each core, tensor and iteration."""
        return tuple(life for core, log, lives in self._cores for life in tensor_lives(core, lives, log))

    @cached_property
    def sbuf_peak_tensors(self) -> tuple[TensorLife, ...]:
        """The tensors that are alive when SBUF is used most, the largest first."""
        return self._peak_tensors(MemoryRegion.sbuf)

    @cached_property
    def psum_peak_tensors(self) -> tuple[TensorLife, ...]:
        """The tensors that are alive when PSUM is used most, the largest first."""
        return self._peak_tensors(MemoryRegion.psum)

    def _peak_tensors(self, region: MemoryRegion) -> tuple[TensorLife, ...]:
        core, log, lives = self._peaks[region]
        return tuple(sorted(tensor_lives(core, lives, log, repeats=False), key=lambda life: -life.nbytes))

    def _all(self) -> dict[str, Any]:
        names = ("instructions", "report", "tensors", "sbuf_peak_tensors", "psum_peak_tensors", "details")
        return {name: getattr(self, name) for name in names}

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, ProfiledLaunch) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        # Computed values instead of the logs, which refer to the kernel's code and cannot be pickled.
        return self._all()
