# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Everything that a page shows of a profile, as compact lists and dictionaries of JSON: its *content*.

:func:`content_of` makes the content of an object with the properties of :class:`Profiled`. Times are whole picoseconds.
A column of increasing numbers holds the difference from the number before. Texts and sites are listed once, and
referred to by their index; a *site* is the properties that instructions of one line have in common.

A page shows at most :data:`MOST_SHOWN` instructions. If a launch has more, each core gets an equal share: the first
third of its share are the core's first instructions, the rest its last ones. The time in between is the *gap*, which
the page marks. Sums cover all instructions.
"""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

from ...hardware.generations import PSUM_PARTITION_BYTES, generation
from ...timing.instruction_log import Event
from ...timing.timeline import Waited
from ..details import Details
from ..profiled_launch import ProfiledLaunch, TensorLife
from ..why.critical_path import LinkKind
from ..why.facts import Finding

# The version of the content; a page shows content of its own version only.
FORMAT = 1
MOST_SHOWN = 100_000
# Of a file with more lines than this, only those near a line that issues instructions are shown.
_LONG_FILE = 3_000
_NEAR = 50
# As many instructions at both ends of a gap tell from when to when it is: engines run ahead of each other.
_AT_THE_ENDS = 64
_PS_PER_US = 1e6
_PS_PER_NS = 1e3

Content = dict[str, Any]


class Profiled(Protocol):
    """The properties of a profile that a page shows; they are those of ``nkilib.simulator.Profile``."""

    @property
    def kernel(self) -> str: ...
    @property
    def generation(self) -> str: ...
    @property
    def cores(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def note(self) -> str: ...
    @property
    def time_us(self) -> float: ...
    @property
    def bound_us(self) -> float | None: ...
    @property
    def bound_by(self) -> str | None: ...
    @property
    def hbm_read_bytes_by_tensor(self) -> Mapping[str, int]: ...
    @property
    def hbm_written_bytes_by_tensor(self) -> Mapping[str, int]: ...
    @property
    def instruction_counts(self) -> Mapping[str, int]: ...
    @property
    def sbuf_peak_bytes_per_partition(self) -> int: ...
    @property
    def psum_peak_bytes_per_partition(self) -> int: ...
    @property
    def sbuf_peak_tensors(self) -> Sequence[TensorLife]: ...
    @property
    def psum_peak_tensors(self) -> Sequence[TensorLife]: ...
    @property
    def why(self) -> Sequence[Finding]: ...
    @property
    def critical_path_us(self) -> Mapping[str, float]: ...
    @property
    def untimed(self) -> Mapping[str, int]: ...
    @property
    def recorded(self) -> ProfiledLaunch: ...


def _ps(us: float) -> int:
    return round(us * _PS_PER_US)


def _differences(numbers: Sequence[int]) -> list[int]:
    return [later - earlier for earlier, later in pairwise((0, *numbers))]


class _Index:
    """Values in the order in which they were first added, each with its index."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = len(self.values)
            self.values.append(value)
        return known


class _Files:
    """The files of the kernel. A *line* is a pair (index of its file, its number)."""

    def __init__(self) -> None:
        self._paths = _Index()

    def line(self, place: str) -> tuple[int, int]:
        """Return the line of a ``file:line``; the number is 0 if the text has none, as in ``<unknown>``."""
        path, _, number = place.rpartition(":")
        return (self._paths.of(path), int(number)) if number.isdigit() and path else (self._paths.of(place), 0)

    def found(self, place: str) -> tuple[int, int] | None:
        """Return the line of a ``file:line`` whose path is known, or is the end of a known path; None if there is
        none.
        """
        path, _, number = place.rpartition(":")
        for index, known in enumerate(self._paths.values):
            if number.isdigit() and (known == path or known.endswith(os.sep + path)):
                return index, int(number)
        return None

    def written(self, used: Mapping[int, set[int]]) -> list[dict[str, Any]]:
        """Return ``name``, ``size`` (number of lines) and ``parts`` of each file; a part is (number of its first line,
        lines).

        Args:
            used: the numbers of the lines that issue instructions, by the index of the file. A short file is one part;
                the parts of a long file have only the lines near these.
        """
        paths = self._paths.values
        names = Counter(os.path.basename(path) for path in paths)
        files = []
        for index, path in enumerate(paths):
            name, folder = os.path.basename(path), os.path.basename(os.path.dirname(path))
            text = [line.rstrip("\r\n") for line in linecache.getlines(path)]
            parts = [(1, text)] if len(text) <= _LONG_FILE else _near(text, used.get(index, set()))
            files.append({"name": name if names[name] == 1 else f"{folder}/{name}", "size": len(text), "parts": parts})
        return files


def _near(text: Sequence[str], lines: Iterable[int]) -> list[tuple[int, Sequence[str]]]:
    # Parts of a text near some lines, each with the number of its first line.
    parts: list[tuple[int, int]] = []
    for line in sorted(lines):
        first, end = max(1, line - _NEAR), min(len(text), line + _NEAR) + 1
        if parts and first <= parts[-1][1]:
            parts[-1] = (parts[-1][0], end)
        elif line:
            parts.append((first, end))
    return [(first, text[first - 1 : end - 1]) for first, end in parts]


def _shown_operands(event: Event) -> str:
    shown = (f"{name} [{', '.join(map(str, shape))}] {dtype}" for name, (shape, dtype) in event.operands.items())
    return "; ".join(shown)


def _windows(total: int, most: int) -> list[tuple[int, int]]:
    # The positions of the shown instructions of a core: all, or its first and its last ones.
    if total <= most:
        return [(0, total)]
    first = most // 3
    return [(0, first), (total - most + first, total)]


class _Columns:
    """The instructions of a core, column by column."""

    def __init__(self, core: int, total: int) -> None:
        self.core, self.total = core, total
        self.site: list[int] = []
        self.number: list[int] = []
        self.start: list[int] = []
        self.duration: list[int] = []
        self.waited: list[int] = []
        self.on: list[int] = []
        self.gap: list[int] | None = None

    def add(self, event: Event, site: int) -> None:
        start = _ps(event.start_us)
        self.site.append(site)
        self.number.append(event.number)
        self.start.append(start)
        self.duration.append(_ps(event.end_us) - start)
        self.waited.append(Waited[event.waited].value if event.waited else 0)
        self.on.append(event.number - event.waited_for if event.waited_for else 0)

    def is_shown(self, start_ps: int, end_ps: int) -> bool:
        """Return whether the time from ``start_ps`` to ``end_ps`` is at least partly outside the gap."""
        return self.gap is None or start_ps < self.gap[2] or end_ps > self.gap[3]

    def written(self) -> dict[str, Any]:
        return {
            "core": self.core,
            "total": self.total,
            "site": self.site,
            "number": _differences(self.number),
            "start": _differences(self.start),
            "duration": self.duration,
            "waited": self.waited,
            "on": self.on,
            "gap": self.gap,
        }


def _core_of(recorded: ProfiledLaunch, core: int, total: int, most: int, sites: _Index, files: _Files) -> _Columns:
    columns = _Columns(core, total)
    for first, end in _windows(total, most):
        events = recorded.of_core(core, first, end)
        if first:
            left_out = recorded.of_core(core, len(columns.site), min(first, len(columns.site) + _AT_THE_ENDS))
            begin = min(_ps(event.start_us) for event in left_out)
            left_out = recorded.of_core(core, max(len(columns.site), first - _AT_THE_ENDS), first)
            columns.gap = [len(columns.site), total - most, begin, max(_ps(event.end_us) for event in left_out)]
        for event in events:
            site = (
                *(event.engine, event.name, event.label, *files.line(event.place), _shown_operands(event)),
                *(event.cycles, event.queue, event.nbytes, event.row_bytes, event.dropped_by),
            )
            columns.add(event, sites.of(site))
    return columns


def _path_of(recorded: ProfiledLaunch, cores: Mapping[int, _Columns]) -> dict[str, Any]:
    shown = {core: set(columns.number) for core, columns in cores.items() if columns.gap}
    kinds = _Index()
    rows = [
        (
            link.core,
            link.number,
            kinds.of(link.kind),
            round(link.start_ns * _PS_PER_NS),
            round(link.end_ns * _PS_PER_NS),
        )
        for link in recorded.report.links
        if link.core not in shown or link.number in shown[link.core]
    ]
    core, number, kind, start, end = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return {
        "core": core,
        "number": _differences(number),
        "kind": kind,
        "kinds": [LinkKind(value).value for value in kinds.values],
        "start": _differences(start),
        "duration": [later - earlier for earlier, later in zip(start, end, strict=True)],
        "links": len(recorded.report.links),
    }


def _tiles_of(recorded: ProfiledLaunch, details: Details, cores: Mapping[int, _Columns], files: _Files) -> Content:
    kinds = _Index()
    rows: list[tuple[int, int, int]] = []
    unused: list[list[int]] = []
    for index, life in enumerate(recorded.tensors):
        start, end = _ps(life.start_us), _ps(life.end_us)
        if not cores[life.core].is_shown(start, end):
            continue
        kind = life.core, life.region, life.tensor, *files.line(life.place), life.partitions, life.nbytes
        for first, last in details.unused_us[index] if details.unused_us else ():
            unused.append([len(rows), _ps(first) - start, _ps(last) - _ps(first)])
        rows.append((kinds.of(kind), start, end - start))
    kind_of, start_of, duration = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        "kinds": kinds.values,
        "kind": kind_of,
        "start": _differences(start_of),
        "duration": duration,
        "unused": unused,
        "total": len(recorded.tensors),
        "knows_unused": details.unused_us is not None,
    }


def _finding_of(finding: Finding, files: _Files) -> Content:
    places = finding.places or ((finding.place,) if finding.place else ())
    return {
        "about": finding.about,
        "text": finding.text,
        "saved": _ps(finding.saved_us),
        "lines": [line for line in map(files.found, places) if line],
        "numbers": finding.numbers,
        "calls": finding.calls,
    }


def _peak_of(bytes_each: int, capacity: int, tensors: Sequence[TensorLife], files: _Files) -> Content:
    counts = Counter((life.nbytes, life.tensor, files.line(life.place)) for life in tensors)
    return {
        "bytes": bytes_each,
        "capacity": capacity,
        "tensors": [(count, nbytes, tensor, line) for (nbytes, tensor, line), count in counts.items()],
        "start": _ps(max((life.start_us for life in tensors), default=0.0)),
    }


def _figures_of(profiled: Profiled, sentences: Sequence[str], details: Details, files: _Files) -> Content:
    capacity = generation(profiled.generation).sbuf_usable_bytes
    read, written = profiled.hbm_read_bytes_by_tensor, profiled.hbm_written_bytes_by_tensor
    return {
        "kernel": profiled.kernel,
        "generation": profiled.generation,
        "rank": [profiled.rank, profiled.ranks],
        "title": profiled.title,
        "note": profiled.note,
        "sentences": list(sentences),
        "time": _ps(profiled.time_us),
        "bound": None if profiled.bound_us is None else _ps(profiled.bound_us),
        "bound_by": profiled.bound_by,
        "busy": [
            [core, {name: _ps(busy) for name, busy in engines.items()}] for core, engines in details.busy_us.items()
        ],
        "hbm": [[name, read.get(name, 0), written.get(name, 0)] for name in {**read, **written}],
        "counts": sorted(profiled.instruction_counts.items(), key=lambda item: -item[1]),
        "untimed": dict(profiled.untimed),
        "path_by_use": [[use, _ps(spent)] for use, spent in profiled.critical_path_us.items()],
        "findings": [_finding_of(finding, files) for finding in profiled.why],
        "sbuf": _peak_of(profiled.sbuf_peak_bytes_per_partition, capacity, profiled.sbuf_peak_tensors, files),
        "psum": _peak_of(
            profiled.psum_peak_bytes_per_partition, PSUM_PARTITION_BYTES, profiled.psum_peak_tensors, files
        ),
    }


def content_of(profiled: Profiled, sentences: Sequence[str], most: int = MOST_SHOWN) -> Content:
    """Return the content of a page about a profile, as a dictionary that ``json.dumps`` accepts.

    Args:
        profiled: the profile.
        sentences: the first sentences of the page: the kernel and its time, the bound, and the limiting engine.
        most: the number of instructions that the page may show.
    """
    recorded = profiled.recorded
    details, counts = recorded.details, recorded.counts()
    sites, files = _Index(), _Files()
    share = most // max(1, len(counts))
    if sum(counts.values()) <= most:
        share = most
    cores = {core: _core_of(recorded, core, total, share, sites, files) for core, total in counts.items()}
    lines = [
        (
            *files.line(place),
            _ps(total.path_us),
            total.count,
            total.nbytes,
            {e: _ps(us) for e, us in total.busy_us.items()},
        )
        for place, total in details.lines.items()
    ]
    loops = [
        (loop.core, loop.what, *files.line(loop.place), loop.depth, _ps(loop.start_us), _ps(loop.end_us), *loop[-2:])
        for loop in details.loops
    ]
    figures = _figures_of(profiled, sentences, details, files)
    tiles = _tiles_of(recorded, details, cores, files)
    used: dict[int, set[int]] = {}
    for file, line in (row[:2] for row in lines):
        used.setdefault(file, set()).add(line)
    return {
        "format": FORMAT,
        **figures,
        "files": files.written(used),
        "sites": sites.values,
        "waited": [waited.name for waited in Waited],
        "cores": [columns.written() for columns in cores.values()],
        "path": _path_of(recorded, cores),
        "meetings": [(*met, *other) for met, other in details.meetings.items()],
        "lines": lines,
        "loops": loops,
        "loops_left_out": details.loops_left_out,
        "tiles": tiles,
    }
