"""When on-chip tensors are live on the timeline, and how much of a partition they take over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from ..memory.lives import LiveRange
from ..timing.notes import Notes

_NS_PER_US = 1000.0


@dataclass(frozen=True)
class TensorLife:
    """The life of one on-chip tensor.

    Attributes:
        core: number of the core.
        region: ``"sbuf"`` or ``"psum"``.
        what: shape, type, name and the line that made it.
        partitions: how many it takes.
        nbytes: bytes that it takes in each of them.
        start_us, end_us: from the first instruction that touches it to the last one.
    """

    core: int
    region: str
    what: str
    partitions: int
    nbytes: int
    start_us: float
    end_us: float


def lives_of(core: int, lives: Iterable[LiveRange], notes: Notes, *, repeats: bool = True) -> Iterator[TensorLife]:
    """Those on-chip tensors of a core that are used, with their times; with ``repeats`` each iteration's."""
    for life in lives:
        if not life.is_used:
            continue
        begin = life.earlier[0][0] if life.earlier else life.first
        first, last = notes.span_of(begin), notes.span_of(life.last)
        start_ns, end_ns, what = first.start_ns, max(first.end_ns, last.end_ns), str(life)
        for later_ns in (0.0, *(notes.again(begin, life.last) if repeats else ())):
            start, end = (start_ns + later_ns) / _NS_PER_US, (end_ns + later_ns) / _NS_PER_US
            yield TensorLife(core, str(life.region), what, life.partitions, life.nbytes, start, end)


def use_over_time(tensors: Iterable[TensorLife]) -> list[tuple[float, int]]:
    """Steps (microseconds, bytes of a partition from then on) of the tensors of one core and region together."""
    changes = sorted(
        [(life.start_us, life.nbytes) for life in tensors] + [(life.end_us, -life.nbytes) for life in tensors]
    )
    steps: list[tuple[float, int]] = []
    total = 0
    for time, group in groupby(changes, key=lambda change: change[0]):
        total += sum(change for _, change in group)
        steps.append((time, total))
    return steps
