# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The time of a launch under another assumption, found by timing its noted instructions again.

:func:`retimed_ns` returns the time of a launch under :class:`Changes`.

Some tensors may have unlimited buffers, loops no synchronisation, or transfers the other kind of descriptors where the
compiler chooses. The noted causes tell for each instruction the results that it waits for, and the last access to the
data that it overwrites. With all of these waits the new times equal the original ones.
"""

from __future__ import annotations

from collections.abc import Generator, Set
from typing import NamedTuple

from ...terms.enums import Engine
from ...timing.dependencies import NOTHING, Done
from ...timing.instruction import InstructionKind
from ...timing.instruction_log import Note
from ...timing.parameters import NS_PER_US
from ...timing.timeline import Places, Timeline, Waited
from .critical_path import ENGINES, AnalysedCore, AnalysedLaunch, TimeModel


class _Known:
    """A part of a tensor whose last access is given, for an instruction that waits for it."""

    storage = 0

    def __init__(self, done: Done) -> None:
        self._done = done

    def last_write(self, by: Engine) -> Done:
        return self._done

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        return self._done, False

    def note_read(self, done: Done) -> None:
        return

    def note_write(self, done: Done) -> None:
        return


class _Left(_Known):
    """The times from which on later instructions need not wait for an instruction any more.

    Attributes:
        has_read: the completion of its reads, for an instruction that overwrites what it reads.
        wrote: the completion of its writes, for an instruction that needs what it writes.
    """

    def __init__(self) -> None:
        super().__init__(NOTHING)
        self.has_read = self.wrote = NOTHING

    def note_read(self, done: Done) -> None:
        self.has_read = done

    def note_write(self, done: Done) -> None:
        self.wrote = done


class Changes(NamedTuple):
    """The changed assumptions; the defaults are those of the launch as it was.

    Attributes:
        buffered: the numbers of the storages whose writes do not wait for reads of what they overwrite.
        meets_at_loops: whether all engines synchronise at device loops where they did so in the launch.
        other_descriptors: whether transfers whose descriptors the compiler chooses have the other kind.
    """

    buffered: Set[int] = frozenset()
    meets_at_loops: bool = True
    other_descriptors: bool = False

    def queue(self, kind: InstructionKind) -> str:
        """Return the queue that triggers a transfer under these assumptions."""
        return kind.other_queue if self.other_descriptors and kind.other_queue else kind.queue


_AS_IT_WAS = Changes()


def _send(run: _Retiming, met_ns: float) -> float | None:
    try:
        return run.send(met_ns)
    except StopIteration:
        return None


def _places(note: Note, left: dict[int, _Left], own: _Left, buffered: Set[int]) -> tuple[Places, Places]:
    """Return the places that an instruction reads, and those that it overwrites.

    ``own``, which is among both, receives the times of the instruction; ``left`` has those of earlier ones, by number.
    """
    number, _, _, span, *_ = note
    cause = span.cause
    reads: Places = [_Known(left[number - distance].wrote) for distance in cause.reads]
    writes: Places = []
    if cause.overwrites and cause.reused not in buffered:
        last = left[number - cause.overwrites]
        writes.append(_Known(last.has_read if cause.reused else last.wrote))
    return [*reads, own], [*writes, own]


def _retime(core: AnalysedCore, model: TimeModel, timeline: Timeline, changes: Changes) -> _Retiming:
    """Put the instructions of a core on a new timeline.

    At each barrier or exchange it yields the time at which the core comes there, and receives the time at which the
    last core does.
    """
    left: dict[int, _Left] = {}
    last_done = core.last_done(model)
    met_ns = 0.0  # when the engines synchronised last at a loop in the original launch
    for position, note in enumerate(core.notes):
        number, kind, _, span, *_ = note
        if span.cause.waited is Waited.loop and changes.meets_at_loops:
            table_ns = model.generation.timing.activation_table_ns if number in core.table_loads else 0.0
            done_ns = model.finish_ns(core.at(last_done[position - 1])) if position else 0.0
            if span.start_ns - table_ns > met_ns:
                met_ns = span.start_ns - table_ns
                timeline.drain((met_ns - done_ns) / NS_PER_US)
        own = left[number] = _Left()
        reads, writes = _places(note, left, own, changes.buffered)
        if kind.work is not None:
            queue = changes.queue(kind)
            met = (yield timeline.trigger_ns(queue, reads, writes)) if span.cause.meets else None
            timeline.transfer(number, queue, kind.work, reads, writes, met)
        elif span.cause.meets:
            engine = ENGINES[kind.engine]
            met = yield timeline.arrival(engine, reads, writes)
            timeline.meet(number, engine, writes, met)
        elif kind.cycles:
            timeline.compute(number, ENGINES[kind.engine], kind.cycles, reads, writes, kind.table)
        elif span.end_ns > span.start_ns:
            timeline.sequence(number, ENGINES[kind.engine], span.end_ns - span.start_ns, reads, writes)
        else:
            timeline.pass_on(number, ENGINES[kind.engine], writes, 0.0)
    if changes.meets_at_loops and core.notes:
        done_ns = model.finish_ns(core.at(last_done[-1]))
        if core.end_ns > done_ns:
            timeline.drain((core.end_ns - done_ns) / NS_PER_US)


def retimed_ns(launch: AnalysedLaunch, changes: Changes = _AS_IT_WAS) -> float:
    """Return the time that a launch would take under changed assumptions."""
    timelines = [Timeline(launch.model.generation, launch.model.parameters) for _ in launch.cores]
    running = [
        _retime(core, launch.model, timeline, changes) for core, timeline in zip(launch.cores, timelines, strict=True)
    ]
    arrivals = [next(run, None) for run in running]
    while any(arrival is not None for arrival in arrivals):
        met = max(arrival for arrival in arrivals if arrival is not None)
        arrivals = [_send(run, met) for run in running]
    return max(timeline.end_ns for timeline in timelines)


_Retiming = Generator[float, float, None]
