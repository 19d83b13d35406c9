"""When on-chip tensors are live on the timeline, and how much of a partition they take over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from ..live_ranges import LiveRange
from .trace import Trace


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


def lives_of(trace: Trace) -> dict[LiveRange, TensorLife]:
    """The on-chip tensors of a core that are used, with their times."""
    times = {event.number: (event.start_us, event.end_us) for event in trace.events}
    found: dict[LiveRange, TensorLife] = {}
    for life in trace.lives:
        if not life.is_used:
            continue
        first = life.earlier[0][0] if life.earlier else life.first
        start, end = times[first][0], max(times[first][1], times[life.last][1])
        found[life] = TensorLife(trace.core, str(life.region), str(life), life.partitions, life.nbytes, start, end)
    return found


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
