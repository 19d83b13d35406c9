# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The performance model of one core. Each engine runs its instructions in order.

- :class:`Timeline`: the times at which engines and queues of the core are busy; :class:`Marks`: a copy of its state;
- :class:`Span`: the start and end of an engine's work on an instruction;
- :class:`Cause`: what an instruction waited for; :class:`Waited` lists the kinds of such things.

An instruction starts when its engine is free and the parts of tensors that it reads or overwrites are ready. A transfer
starts when its queue may trigger it; its rows then pass through the DMA engines, each of which serves eight partitions.
Modelled, not measured: see docs/explanation/performance_model.md.

The *number* of an instruction counts the instructions of its core in program order, from 1. A :class:`Place` is a part
of a tensor that an instruction reads or writes.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import IntEnum
from typing import NamedTuple

from ..hardware.generations import Generation
from ..terms.enums import Engine
from .dependencies import NOTHING, Done, Place, RegisterPlace
from .dma import BusyIntervals, DmaEngines, DmaWork, between_triggers_ns
from .parameters import NS_PER_US, SAME_NS, ModelParameters

Places = list[Place]


class Waited(IntEnum):
    """The kind of thing that an instruction waited for last."""

    nothing = 0
    engine = 1  # the engine runs the previous instructions
    data = 2  # the data that it reads are not ready
    reuse = 3  # others still read or write what it overwrites
    trigger = 4  # the DMA queue triggers one transfer after the other
    meeting = 5  # the other core came later to a barrier or exchange
    loop = 6  # all engines synchronise at the start, end or next iteration of a device loop


class Cause(NamedTuple):
    """The cause of the start time of an instruction, from which it can be timed again under another assumption.

    A *distance* is the number of this instruction minus the number of an earlier one of the same core, so that the same
    instruction in two iterations of a loop has equal causes.

    Attributes:
        waited: the kind of thing that the instruction waited for last.
        on: the distance to the instruction that delayed it; 0 if none did.
        reads: for each tensor that it reads and that was written, the distance to the last write.
        overwrites: the distance to the last access to the memory that it overwrites; 0 if there was none.
        reused: the number of the storage that it overwrites, if the last access was a read by another engine; else 0.
        meets: whether it synchronises with the other core.
    """

    waited: Waited = Waited.nothing
    on: int = 0
    reads: tuple[int, ...] = ()
    overwrites: int = 0
    reused: int = 0
    meets: bool = False


NO_CAUSE = Cause()

_Key = tuple[Waited, int, tuple[int, ...], int, int, bool]


class Causes(dict[_Key, Cause]):
    """A cache of causes by their fields: equal causes are one object, which saves memory."""

    def __missing__(self, key: _Key) -> Cause:
        cause = self[key] = Cause(*key)
        return cause


# Members of an Enum are looked up by a Python function before 3.12.
_TENSOR, _DMA, _GPSIMD = Engine.tensor, Engine.dma, Engine.gpsimd
_NOTHING, _ENGINE, _DATA = Waited.nothing, Waited.engine, Waited.data
_REUSE, _TRIGGER, _MEETING, _LOOP = Waited.reuse, Waited.trigger, Waited.meeting, Waited.loop


class Span(NamedTuple):
    """The start and the end of an engine's work on an instruction, in nanoseconds, and the cause of the start time."""

    start_ns: float
    end_ns: float
    cause: Cause


class Marks(NamedTuple):
    """The state of a timeline at the end of an iteration of a loop.

    Attributes:
        times: in nanoseconds, when each engine and queue is free (by :class:`Engine` or ``("queue", name)``), when the
            engines last synchronised at a loop (``"met"``), and when everything is done (``"end"``).
        table: the activation table that is loaded.
        busy: the total busy time of each engine.
        dma: the busy intervals of each DMA engine.
    """

    times: dict[Hashable, float]
    table: str
    busy: dict[Engine, float]
    dma: list[BusyIntervals]

    def repeats(self, before: Marks, shift_ns: float, begin_ns: float) -> bool:
        """Return whether this state is the state ``before``, moved by ``shift_ns``.

        A time may also be unchanged; but if an engine is free from that time on, the time must not be later than
        ``begin_ns``, the start of the last period. The DMA engines' busy intervals are compared from ``begin_ns`` on.
        """
        if self.table != before.table or self.times.keys() != before.times.keys():
            return False
        for key, time in self.times.items():
            later = time - before.times[key]
            if abs(later - shift_ns) <= SAME_NS:
                continue
            # An engine that is still busy with earlier work could be chosen as soon as it is free.
            if abs(later) > SAME_NS or (isinstance(key, Engine) and time > begin_ns):
                return False
        return all(mine.repeats(other, shift_ns, begin_ns) for mine, other in zip(self.dma, before.dma, strict=True))


class _Ready:
    """When an instruction may access all of its tensors, and for which earlier access it waits longest."""

    __slots__ = ("last", "last_access", "ns", "reads", "reused", "waited")

    def __init__(self, engine: Engine, reads: Places, writes: Places) -> None:
        latest_ns, waited, last = 0.0, _NOTHING, 0
        numbers: list[int] = []
        for place in reads:
            write = place.last_write(engine)
            if write.number:
                numbers.append(write.number)
                ready = write.own_ns if write.by is engine else write.other_ns
                if ready > latest_ns:
                    latest_ns, waited, last = ready, _DATA, write.number
        overwritten_ns, last_access, reused = 0.0, 0, 0
        for place in writes:
            access, is_read = place.last_access(engine)
            ready = access.own_ns if access.by is engine else access.other_ns
            if ready > overwritten_ns:
                overwritten_ns, last_access, reused = ready, access.number, place.storage if is_read else 0
        if overwritten_ns > latest_ns:
            latest_ns, waited, last = overwritten_ns, _REUSE, last_access
        self.ns, self.waited, self.last, self.reads = latest_ns, waited, last, numbers
        self.last_access, self.reused = last_access, reused


class Timeline:
    """The times at which the engines of one core are busy, for the instructions that were added so far.

    The methods that add an instruction return its :class:`Span`.

    Attributes:
        end_ns: the time at which all results are ready.
    """

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self._timing = generation.timing
        self._parameters = parameters
        self._issue_cycles = parameters.issue_cycles_of(self._timing)
        self._free: dict[Engine, float] = {}
        self._dma = DmaEngines(self._timing.dma.engines)
        self._busy = dict.fromkeys(self._timing.clock_ghz, 0.0)
        self._queue_free: dict[str, float] = {}
        # The last instruction of each engine, and of each queue.
        self._last: dict[Engine, int] = {}
        self._queue_last: dict[str, int] = {}
        self._causes = Causes()
        # When all engines and queues last synchronised at a loop; and the loads of registers by their numbers.
        self._met_ns = 0.0
        self._registers: dict[int, Done] = {}
        # The completions of instructions since remember() was called.
        self._recent: list[Done] | None = None
        self._table = ""
        self.end_ns = 0.0

    def compute(
        self, number: int, engine: Engine, cycles: float, reads: Places, writes: Places, table: str = ""
    ) -> Span:
        """Add an instruction of a compute engine.

        Args:
            number: the number of the instruction.
            engine: the engine that runs it.
            cycles: its cycles on that engine.
            reads: the parts of tensors that it reads.
            writes: the parts of tensors that it writes.
            table: the activation table that it needs; empty if none.
        """
        timing = self._timing
        clock = timing.clock_ghz[engine]
        ready = _Ready(engine, reads, writes)
        start, waited, last = self._start(engine, ready)
        if table and table != self._table:
            start += timing.activation_table_ns
            self._table = table
        end = start + cycles / clock
        self._free[engine] = end if engine is _TENSOR else end + self._issue_cycles / clock
        self._busy[engine] += end - start
        self._last[engine] = number
        self._note(number, engine, end, end + timing.result_ns[engine], reads, writes)
        return Span(start, end, self._cause(number, waited, last, ready))

    def transfer(
        self,
        number: int,
        queue: str,
        work: DmaWork,
        reads: Places,
        writes: Places,
        met_ns: float | None = None,
    ) -> Span:
        """Add a DMA transfer.

        Args:
            number: the number of the instruction.
            queue: the queue that triggers it.
            work: its work for the DMA engines.
            reads: the parts of tensors that it reads.
            writes: the parts of tensors that it writes.
            met_ns: for an exchange between the cores, the time at which the last core arrived; else None.
        """
        dma = self._timing.dma
        ready = _Ready(_DMA, reads, writes)
        trigger, waited, last = ready.ns, ready.waited, ready.last
        queue_free = self._queue_free.get(queue, self._met_ns)
        if queue_free > trigger:
            has_met = queue_free == self._met_ns
            trigger, waited, last = queue_free, *((_LOOP, 0) if has_met else (_TRIGGER, self._queue_last[queue]))
        if met_ns is not None:
            if met_ns > trigger:
                waited, last = _MEETING, 0
            trigger = max(trigger, met_ns + self._parameters.barrier_us * NS_PER_US)
        fixed_ns = dma.fixed_ns
        if work.is_gathered:
            # GpSimd writes the descriptors first.
            busy = self._parameters.indirect_gpsimd_us * NS_PER_US
            gpsimd_free = self.free_ns(_GPSIMD)
            if gpsimd_free > trigger:
                has_met = gpsimd_free == self._met_ns
                trigger, waited, last = gpsimd_free, *((_LOOP, 0) if has_met else (_ENGINE, self._last[_GPSIMD]))
            trigger = self._free[_GPSIMD] = trigger + busy
            self._last[_GPSIMD] = number
            self._busy[_GPSIMD] += busy
            fixed_ns = self._parameters.indirect_base_us * NS_PER_US
        self._queue_free[queue] = trigger + between_triggers_ns(queue, dma, self._parameters)
        self._queue_last[queue] = number
        end = self._dma.add(trigger + fixed_ns, work)
        self._note(number, _DMA, end, end + dma.to_consumer_ns, reads, writes)
        return Span(trigger, end, self._cause(number, waited, last, ready, met_ns is not None))

    def trigger_ns(self, queue: str, reads: Places, writes: Places) -> float:
        """Return when a queue can trigger a transfer that reads and writes these parts of tensors, in nanoseconds."""
        return max(self._queue_free.get(queue, self._met_ns), _Ready(_DMA, reads, writes).ns)

    def meet(self, number: int, engine: Engine, data: Places, met_ns: float) -> Span:
        """Add a barrier, which delays later accesses to its data as a write would.

        Args:
            number: the number of the instruction.
            engine: the engine that waits.
            data: the parts of tensors that the barrier orders.
            met_ns: the time at which the last core arrived.
        """
        ready = _Ready(engine, [], data)
        start, waited, last = self._start(engine, ready)
        if met_ns > start:
            waited, last = _MEETING, 0
        cause = self._cause(number, waited, last, ready, meets=True)
        end = met_ns + self._parameters.barrier_us * NS_PER_US
        self._free[engine] = end
        self._last[engine] = number
        self._note(number, engine, end, end, [], data)
        return Span(start, end, cause)

    def pass_on(self, number: int, engine: Engine, data: Places, met_ns: float) -> Span:
        """Add an instruction that takes no time, waits for earlier accesses to its tensors, and delays later ones.

        Args:
            number: the number of the instruction.
            engine: its engine.
            data: the parts of its tensors.
            met_ns: the time at which the last core arrived, before which the instruction cannot end; 0 if it does not
                synchronise.
        """
        ready = _Ready(engine, [], data)
        now, waited = ready.ns, ready.waited
        if met_ns > now:
            now, waited = met_ns, _MEETING
        self._note(number, engine, now, now, [], data)
        return Span(now, now, self._cause(number, waited, ready.last if waited is _REUSE else 0, ready))

    def sequence(self, number: int, engine: Engine, duration_ns: float, reads: Places, writes: Places) -> Span:
        """Add an instruction on registers or scalars, which the sequencer of an engine runs one after the other."""
        ready = _Ready(engine, reads, writes)
        start, waited, last = self._start(engine, ready)
        end = self._free[engine] = start + duration_ns
        self._last[engine] = number
        self._note(number, engine, end, end, reads, writes)
        self._registers[number] = loaded = Done(engine, end, end + self._timing.sync_ns, number)
        if self._recent is not None:
            self._recent.append(loaded)
        return Span(start, end, self._cause(number, waited, last, ready))

    def marks(self) -> Marks:
        """Return the state of the timeline, for a comparison with the state after other iterations."""
        times: dict[Hashable, float] = dict(self._free.items())
        times |= {("queue", queue): free for queue, free in self._queue_free.items()}
        times["met"], times["end"] = self._met_ns, self.end_ns
        return Marks(times, self._table, dict(self._busy), self._dma.intervals())

    def remember(self, number: int | None) -> None:
        """Keep the completions of instructions from ``number`` on, which :meth:`repeat` will shift to later times.

        If ``number`` is None, keep none.
        """
        if number is None:
            self._recent = None
        else:
            self._recent = [done for done in self._recent or () if done.number >= number]

    def repeat(self, before: Marks, numbers: range, shift_ns: float, times: int) -> None:
        """Advance the timeline as if the last period of a loop had run ``times`` more times.

        Args:
            before: the state of the timeline before the last period.
            numbers: the numbers of the instructions of the last period.
            shift_ns: the time from one repetition to the next.
            times: the number of repetitions.
        """
        later_ns, further = times * shift_ns, times * len(numbers)
        for engine, free in self._free.items():
            if free != before.times.get(engine):
                self._free[engine] = free + later_ns
        for queue, free in self._queue_free.items():
            if free != before.times.get(("queue", queue)):
                self._queue_free[queue] = free + later_ns
        self._met_ns += later_ns if self._met_ns != before.times["met"] else 0.0
        self.end_ns += later_ns if self.end_ns != before.times["end"] else 0.0
        for last in (self._last, self._queue_last):
            for key, number in last.items():
                last[key] = number + further if number in numbers else number  # type: ignore[index]
        for engine, busy in self._busy.items():
            self._busy[engine] = busy + times * (busy - before.busy[engine])
        self._dma.repeat(before.dma, shift_ns, times)
        for done in self._recent or ():
            if done.number in numbers:
                done.own_ns, done.other_ns = done.own_ns + later_ns, done.other_ns + later_ns
                done.number += further

    def register(self, number: int) -> RegisterPlace:
        """Return the register that instruction ``number`` has loaded, as a place for which other instructions wait."""
        return RegisterPlace(self._registers.get(number, NOTHING))

    def drain(self, after_us: float, register: int = 0) -> None:
        """Let all engines and queues wait until everything that was issued is done.

        Args:
            after_us: the time that they wait after that.
            register: the number of an instruction that loads a register, for which they wait too; 0 for none.
        """
        loaded = self._registers.get(register, NOTHING).other_ns
        self._met_ns = max(self.end_ns, loaded, self._met_ns, *self._free.values(), 0.0) + after_us * NS_PER_US
        self._free = dict.fromkeys(self._free, self._met_ns)
        self._queue_free = dict.fromkeys(self._queue_free, self._met_ns)
        self.end_ns = self._met_ns

    def hold_up(self, by_us: float, register: int = 0) -> None:
        """Delay each engine, without synchronising the engines.

        Args:
            by_us: the delay, after the engine's previous work and the load of the register.
            register: the number of the instruction that loads the register; 0 for none.
        """
        loaded = self._registers.get(register, NOTHING).other_ns
        for engine, free in self._free.items():
            self._free[engine] = max(free, loaded) + by_us * NS_PER_US
        self.end_ns = max(self.end_ns, *self._free.values(), 0.0)

    def would_end(self, engine: Engine, cycles: float, reads: Places, writes: Places) -> float:
        """Return when other engines could use the result of an instruction run next by ``engine``, in nanoseconds."""
        timing = self._timing
        return self.arrival(engine, reads, writes) + cycles / timing.clock_ghz[engine] + timing.result_ns[engine]

    def arrival(self, engine: Engine, reads: Places, writes: Places) -> float:
        """Return when ``engine`` is free and the parts ``reads`` and ``writes`` are ready, in nanoseconds."""
        return max(self.free_ns(engine), _Ready(engine, reads, writes).ns)

    def free_ns(self, engine: Engine) -> float:
        """Return the time in nanoseconds at which an engine has finished all instructions that were added for it."""
        return self._free.get(engine, self._met_ns)

    def busy_ns(self) -> dict[str, float]:
        """Return the busy time by engine, in nanoseconds; ``dma`` stands for the DMA engine with the longest time."""
        return {engine.name: busy for engine, busy in self._busy.items()} | {"dma": self._dma.longest_ns}

    def _start(self, engine: Engine, ready: _Ready) -> tuple[float, Waited, int]:
        # The start time, the kind of thing that the instruction waits for, and the number of the instruction that
        # delays it.
        free = self._free.get(engine, self._met_ns)
        if free >= ready.ns and free:
            if free == self._met_ns:
                return free, _LOOP, 0
            return free, _ENGINE, self._last[engine]
        return ready.ns, ready.waited, ready.last

    def _cause(self, number: int, waited: Waited, last: int, ready: _Ready, meets: bool = False) -> Cause:
        reads = ready.reads
        return self._causes[
            waited,
            number - last if last else 0,
            tuple([number - read for read in reads]) if reads else (),
            number - ready.last_access if ready.last_access else 0,
            ready.reused,
            meets,
        ]

    def _note(self, number: int, engine: Engine, end_ns: float, ready_ns: float, reads: Places, writes: Places) -> None:
        # ``ready_ns`` is the time from which other engines can use the result, if they notice at once.
        # The end of a DMA includes the time that others take to notice it.
        sync_ns = 0.0 if engine is _DMA else self._timing.sync_ns
        if reads:
            has_read = Done(engine, end_ns, end_ns + sync_ns, number)
            if self._recent is not None:
                self._recent.append(has_read)
            for place in reads:
                place.note_read(has_read)
        if writes:
            wrote = Done(engine, ready_ns, ready_ns + sync_ns, number)
            if self._recent is not None:
                self._recent.append(wrote)
            for place in writes:
                place.note_write(wrote)
        if ready_ns > self.end_ns:
            self.end_ns = ready_ns
