# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The data of findings: sums over the critical path, waits, work that all cores repeat, and the format of figures.

- :class:`Facts`: sums and waits (:class:`Wait`) of a launch; :class:`Finding`: a sentence of a profile about the
  launch;
- :func:`stored_by_every_core`: the tensors that show that the cores do not divide the work;
- :func:`us`, :func:`percent`, :func:`nbytes`, :func:`times`, :func:`wrapped`, :func:`fitted`, :func:`joined`: texts;
- :func:`summed`, :func:`largest`: sums.

A *link* is a stretch of the critical path (:class:`.critical_path.Link`); a *note* is the record of an instruction.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap
from typing import NamedTuple, TypeVar

from ...terms.layout import Layout
from ...timing.dependencies import Tracked
from ...timing.footprints import OccupiedBytes
from ...timing.timeline import Waited
from ...timing.trace import Collection, Trace
from .critical_path import AnalysedCore, AnalysedLaunch, Link, LinkKind, critical_path

NS_PER_US = 1000.0

_KIB = 1024.0
# The most columns of a printed line.
_WIDTH = 88
_MOST_LISTED = 3

Key = TypeVar("Key", bound=Hashable)


def us(nanoseconds: float) -> str:
    """Return the text for a duration, in microseconds with the unit."""
    return f"{nanoseconds / 1000.0:,.1f} us"


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{share:.0%}"


def nbytes(count: float) -> str:
    """Return the text for a number of bytes in B, KiB or MiB."""
    if count < _KIB:
        return f"{count:,.0f} B"
    return f"{count / _KIB:,.1f} KiB" if count < _KIB * _KIB else f"{count / _KIB / _KIB:,.1f} MiB"


def times(count: int) -> str:
    """Return "once" or "n times"."""
    return "once" if count == 1 else f"{count:,} times"


def wrapped(sentence: str, first: str = "", others: str = "  ") -> list[str]:
    """Return the lines of a sentence, of at most 88 columns where words and calls allow it.

    Args:
        sentence: the text.
        first: the text at the beginning of the first line.
        others: the text at the beginning of the other lines.
    """
    lines: list[str] = wrap(
        sentence, _WIDTH, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
    return lines


def fitted(text: str, width: int) -> str:
    """Return ``text`` in ``width`` characters: followed by blanks, or with ``...`` in place of its beginning."""
    return f"{text:<{width}}" if len(text) <= width else f"...{text[3 - width :]}"


def summed(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sum of the values for each key."""
    sums: dict[Key, float] = {}
    for key, value in pairs:
        sums[key] = sums.get(key, 0.0) + value
    return sums


def largest(durations: Mapping[str, float], most: int = _MOST_LISTED) -> list[tuple[str, float]]:
    """Return the ``most`` entries with the longest durations, the longest first."""
    return sorted(durations.items(), key=lambda item: (-item[1], item[0]))[:most]


def joined(items: Iterable[str]) -> str:
    """Join items as ``a, b and c``."""
    listed: Sequence[str] = list(items)
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)


@dataclass(frozen=True)
class Finding:
    """A change that makes a kernel faster in the model, or a fact about its time. Modelled, not measured.

    Attributes:
        about: for a change ``"same work"``, ``"fusion"``, ``"engine"``, ``"buffers"``, ``"order"``,
            ``"repeated load"``, ``"transfers"``, ``"queues"``, ``"descriptors"``, ``"larger instructions"`` or
            ``"loops"``; for a fact ``"busiest engine"``, ``"triggers"``, ``"small rows"``, ``"first byte"``,
            ``"waits"``, ``"small instructions"``, ``"latency"``, ``"activation tables"``, ``"meetings"`` or
            ``"choice of descriptors"``.
        text: the change, its line in the kernel and the modelled saving; or the fact, with figures.
        time_us: for a change the saving; for a fact the part of the time that it is about. Several findings may be
            about the same time.
        place: ``file:line`` of the kernel where most of this time is spent.
        saved_us: the time that the change saves in the model; 0 for a fact.
        places: ``file:line`` of all lines of the kernel that a change is about.
        numbers: the numbers of the first instructions of these lines on the core that finishes last.
        calls: the calls to write instead, for a change that replaces instructions.
    """

    about: str
    text: str
    time_us: float
    place: str
    saved_us: float = 0.0
    places: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def is_advice(self) -> bool:
        """Whether the finding is a change to make, with a saving that the model confirms; False for a fact."""
        return self.saved_us > 0.0

    def __str__(self) -> str:
        return self.text


class Wait(NamedTuple):
    """A time in which an engine was free, but could not start its next instruction yet.

    Attributes:
        engine: the name of the engine.
        waited: the cause of the wait.
        number: the number of the instruction that starts late.
        on: the number of the instruction that delayed it; 0 if no instruction of this core did.
        duration_ns: the length of the wait.
    """

    engine: str
    waited: Waited
    number: int
    on: int
    duration_ns: float


class Facts:
    """Facts about a launch that follow from the notes of its instructions.

    Attributes:
        launch: the examined instructions.
        time_ns: the analysed time: the time of the launch, or of its last instructions.
        links: the links of the critical path.
        busy_shares: the busy share of each engine in the time of the whole launch, on the core on which it is busy
            longest.
        bound_ns: the least time that the hardware needs for the work; 0 if it is not known.
    """

    def __init__(self, launch: AnalysedLaunch, busy_us: Mapping[str, float], bound_us: float = 0.0) -> None:
        self.launch = launch
        self.bound_ns = bound_us * NS_PER_US
        whole_ns = max((core.end_ns for core in launch.cores), default=0.0)
        self.busy_shares = {name: busy * NS_PER_US / whole_ns if whole_ns else 0.0 for name, busy in busy_us.items()}
        self.links = critical_path(launch)
        self._line_texts: dict[tuple[str, str], str] = {}
        self.time_ns = self.links[-1].end_ns - self.links[0].start_ns if self.links else 0.0

    @property
    def core(self) -> AnalysedCore:
        """The core that finishes last."""
        return self.of(self.links[-1])

    def of(self, link: Link) -> AnalysedCore:
        """Return the core of a link."""
        return next(core for core in self.launch.cores if core.number == link.core)

    def share(self, duration_ns: float) -> float:
        """Return a duration as a share of the analysed time."""
        return duration_ns / self.time_ns if self.time_ns else 0.0

    def links_of(self, *kinds: LinkKind) -> list[Link]:
        """Return the links of the critical path that are of one of these kinds."""
        return [link for link in self.links if link.kind in kinds]

    def engine_of(self, link: Link) -> str:
        """Return the engine of the instruction on which a link's time is spent."""
        return self.of(link).at(link.number)[1].engine

    def line_of(self, link: Link) -> str:
        """Return ``file:line`` and the name of the instruction on which a link's time is spent, as one text."""
        return self.line(self.of(link), link.number)

    def line(self, core: AnalysedCore, number: int) -> str:
        """Return ``file:line`` in the kernel and the name of an instruction, as one text."""
        key = core.place(number), core.at(number)[1].name
        text = self._line_texts.get(key)
        if text is None:
            text = self._line_texts[key] = f"{self.short(key[0])} {key[1]}"
        return text

    @staticmethod
    def engine_name(engine: str) -> str:
        """Return the name of an engine for a sentence."""
        return "The busiest DMA engine" if engine == "dma" else engine.capitalize()

    def by_line(self, links: Iterable[Link]) -> dict[str, float]:
        """Return the nanoseconds of links, added up by the text of :meth:`line_of`."""
        return summed((self.line_of(link), link.duration_ns) for link in links)

    def short(self, place: str) -> str:
        """Return ``file:line`` without directories; one directory stays if several files have the same name."""
        path, _, line = place.rpartition(":")
        return f"{self._short_files.get(path, path)}:{line}"

    @cached_property
    def _short_files(self) -> dict[str, str]:
        codes = {note[4] for core in self.launch.cores for note in core.notes if note[4] is not None}
        files = {code.co_filename for code in codes}
        names = Counter(os.path.basename(file) for file in files)
        return {
            file: os.path.basename(file)
            if names[os.path.basename(file)] == 1
            else os.path.join(os.path.basename(os.path.dirname(file)), os.path.basename(file))
            for file in files
        }

    @cached_property
    def waits(self) -> list[Wait]:
        """The waits of the compute engines, on the core that finishes last."""
        return list(self._waits()) if self.links else []

    def _waits(self) -> Iterator[Wait]:
        model, core = self.launch.model, self.core
        timing = model.generation.timing
        issue_ns = {engine.name: model.issue_ns(engine) for engine in timing.clock_ghz}
        free: dict[str, float] = {}
        for number, kind, _, span, *_ in core.notes:
            if not kind.cycles:
                continue
            if kind.engine not in free and not core.is_whole:
                free[kind.engine] = span.end_ns + issue_ns[kind.engine]
                continue
            start = span.start_ns - (timing.activation_table_ns if number in core.table_loads else 0.0)
            waited = start - free.get(kind.engine, 0.0)
            free[kind.engine] = span.end_ns + issue_ns[kind.engine]
            if waited > 0.0 and span.cause.waited is not Waited.engine:
                on = number - span.cause.on if span.cause.on else 0
                yield Wait(kind.engine, span.cause.waited, number, on, waited)


def _totals(trace: Trace) -> tuple[Counter[str], Counter[str], Counter[str]]:
    # The numbers of instructions by name, and the bytes loaded and stored by tensor.
    counts: Counter[str] = Counter()
    for kind, count in trace.settled.log.kinds():
        counts[kind.name] += count
    return counts, trace.settled.hbm_read, trace.settled.hbm_written


def _ends_of(trace: Trace, collection: Collection) -> dict[int, Tracked]:
    # Tensors that come from the caller or go back to it, by number.
    numbers = collection.given | collection.returned
    return {number: known for number, known in trace.in_hbm.items() if number in numbers}


def _places(parts: Iterable[OccupiedBytes]) -> set[tuple[Layout, int]]:
    # Equal parts compare equal, also if two cores have different objects for them.
    return {(part.layout, part.width) for part in parts}


def _are_alike(values: Iterable[object]) -> bool:
    first, *others = values
    return all(other == first for other in others)


def stored_by_every_core(collection: Collection) -> Sequence[str]:
    """Return the names of the tensors that every core of a launch stores, if all cores do the same work; else none.

    Cores do the same work if they run equal numbers of each instruction, and load and store the same parts of the
    tensors that come from the caller or go back to it. If an index chooses the stored elements, the parts are not
    known, and the cores count as different.
    """
    traces = collection.traces
    if len(traces) < 2 or not _are_alike(_totals(trace) for trace in traces):
        return ()
    ends = [_ends_of(trace, collection) for trace in traces]
    if any(known.hbm_uses.scattered_bytes for tensors in ends for known in tensors.values()):
        return ()
    # Most launches differ in what they store, which is cheaper to find out than what they load.
    if not _are_alike({at: _places(known.hbm_uses.written()) for at, known in tensors.items()} for tensors in ends):
        return ()
    if not _are_alike({at: _places(known.hbm_uses.brought_in()) for at, known in tensors.items()} for tensors in ends):
        return ()
    # A barrier on a tensor delays its later readers like a store, but stores nothing.
    return tuple(known.name for known in ends[0].values() if traces[0].settled.hbm_written[known.name])
