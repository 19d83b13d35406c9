# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The times in which on-chip tensors are alive, and the bytes of a partition that they take over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..memory.lives import LiveRange
from ..timing.notes import Notes

_NS_PER_US = 1000.0


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
        start_us, end_us: the start of the first instruction that touches it, and the end of the last one.
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


def lives_of(core: int, lives: Iterable[LiveRange], notes: Notes, *, repeats: bool = True) -> Iterator[TensorLife]:
    """Yield the on-chip tensors of a core, with their times; tensors that are never used are left out.

    Args:
        core: the number of the core.
        lives: the on-chip tensors of the core.
        notes: the instructions of the core.
        repeats: whether to yield the tensors of every iteration of repeated loops, instead of one.

    Yields:
        One life for each tensor and iteration.
    """
    for life in lives:
        if not life.is_used:
            continue
        begin = life.earlier[0][0] if life.earlier else life.first
        first, last = notes.span_of(begin), notes.span_of(life.last)
        start_ns, end_ns = first.start_ns, max(first.end_ns, last.end_ns)
        tensor, place = life.tensor, life.place
        for later_ns in (0.0, *(notes.again(begin, life.last) if repeats else ())):
            start, end = (start_ns + later_ns) / _NS_PER_US, (end_ns + later_ns) / _NS_PER_US
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


def listed(tensors: Iterable[TensorLife]) -> list[str]:
    """Return a line of text for each group of equal tensors made at one place: number, bytes of a partition, name."""
    counts = Counter((life.nbytes, life.tensor, life.place) for life in tensors)
    return [
        f"{f'{count} x' if count > 1 else '':>6} {nbytes:>8,} {tensor}, made at {_nearest(place)}"
        for (nbytes, tensor, place), count in counts.items()
    ]


def _nearest(place: str) -> str:
    """Return a ``file:line`` relative to the current directory if the file is in it."""
    path = Path(place)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else place
