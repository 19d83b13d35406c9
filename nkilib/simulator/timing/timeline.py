"""The model of time of one core: in-order streams of instructions, one for each engine, and the DMA engines.

An instruction starts when its engine is free and the parts of tensors that it reads or overwrites are ready. A transfer
starts when its queue may trigger it; its rows then pass through DMA engines of which each serves eight partitions.
Modelled, not measured: see docs/performance-model.md.
"""

from __future__ import annotations

from ..target.generation import Generation
from ..terms.enums import Engine
from .busy_times import DmaEngines, DmaWork
from .parameters import ModelParameters
from .transfers import OPEN_QUEUES, SOFTWARE_QUEUE
from .uses import Place

_NS_PER_US = 1000.0

Places = list[Place]

# When an engine starts an instruction and when it is done with it, in nanoseconds.
Span = tuple[float, float]

# Members of an Enum are looked up by a Python function before 3.12.
_TENSOR, _DMA, _GPSIMD = Engine.tensor, Engine.dma, Engine.gpsimd


class Timeline:
    """When the engines of one core are busy, as far as the kernel has come."""

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self._timing = generation.timing
        self._parameters = parameters
        trigger_us = parameters.trigger_us
        self._trigger_ns = self._timing.dma.trigger_ns if trigger_us is None else trigger_us * _NS_PER_US
        self._free: dict[Engine, float] = {}
        self._dma = DmaEngines(self._timing.dma.engines)
        self._busy = dict.fromkeys(self._timing.clock_ghz, 0.0)
        self._queue_free: dict[str, float] = {}
        self._open_queue_ns = self._trigger_ns / parameters.descriptor_units
        queue_us = parameters.queue_us
        self._named_queue_ns = self._trigger_ns if queue_us is None else queue_us * _NS_PER_US
        self._table = ""
        self.end_ns = 0.0

    def compute(self, engine: Engine, cycles: float, reads: Places, writes: Places, table: str = "") -> Span:
        """An instruction of an engine that computes; ``table`` names the activation table that it needs."""
        timing = self._timing
        clock = timing.clock_ghz[engine]
        start = self.arrival(engine, reads, writes)
        if table and table != self._table:
            start += timing.activation_table_ns
            self._table = table
        end = start + cycles / clock
        self._free[engine] = end if engine is _TENSOR else end + timing.issue_cycles / clock
        self._busy[engine] += end - start
        self._note(engine, end, end + timing.result_ns[engine], reads, writes)
        return start, end

    def transfer(
        self, queue: str, work: DmaWork, is_gathered: bool, reads: Places, writes: Places, not_before_ns: float = 0.0
    ) -> Span:
        """A DMA.

        Args:
            queue: that triggers it.
            work: of the DMA engines.
            is_gathered: whether a vector offset names its rows.
            reads, writes: the tensors.
            not_before_ns: when it can be triggered at the earliest.
        """
        dma = self._timing.dma
        trigger = max(self.trigger_ns(queue, reads, writes), not_before_ns)
        fixed_ns = dma.fixed_ns
        if is_gathered:
            # GpSimd writes the descriptors first.
            busy = self._parameters.indirect_gpsimd_us * _NS_PER_US
            trigger = self._free[_GPSIMD] = max(self.free_ns(_GPSIMD), trigger) + busy
            self._busy[_GPSIMD] += busy
            fixed_ns = self._parameters.indirect_base_us * _NS_PER_US
        self._queue_free[queue] = trigger + self._between_triggers_ns(queue)
        end = self._dma.add(trigger + fixed_ns, work)
        self._note(_DMA, end, end + dma.to_consumer_ns, reads, writes)
        return trigger, end

    def trigger_ns(self, queue: str, reads: Places, writes: Places) -> float:
        """When a queue can trigger a transfer."""
        return max(self._queue_free.get(queue, 0.0), self._ready_ns(_DMA, reads, writes))

    def _between_triggers_ns(self, queue: str) -> float:
        """From one trigger of a queue to the next."""
        if queue in OPEN_QUEUES:
            return self._open_queue_ns
        return self._trigger_ns if queue == SOFTWARE_QUEUE else self._named_queue_ns

    def meet(self, engine: Engine, data: Places, met_ns: float) -> Span:
        """A barrier, to which the last core came at ``met_ns``.

        It holds up its engine and whatever touches its data, which it is said to write, afterwards.
        """
        start = self.arrival(engine, [], data)
        end = met_ns + self._parameters.barrier_us * _NS_PER_US
        self._free[engine] = end
        self._note(engine, end, end, [], data)
        return start, end

    def pass_on(self, engine: Engine, data: Places, not_before_ns: float) -> Span:
        """What takes no time and no engine: whatever touches its data afterwards comes after what did so before."""
        now = max(self._ready_ns(engine, [], data), not_before_ns)
        self._note(engine, now, now, [], data)
        return now, now

    def sequence(self, engine: Engine, duration_ns: float) -> Span:
        """What a sequencer does to registers and scalars, one after the other."""
        start = self.free_ns(engine)
        end = self._free[engine] = start + duration_ns
        self.end_ns = max(self.end_ns, end)
        return start, end

    def would_end(self, engine: Engine, cycles: float, reads: Places, writes: Places) -> float:
        """When others could use the result if this engine ran an instruction next."""
        timing = self._timing
        return self.arrival(engine, reads, writes) + cycles / timing.clock_ghz[engine] + timing.result_ns[engine]

    def arrival(self, engine: Engine, reads: Places, writes: Places) -> float:
        """When an engine is free and everything that it reads or overwrites is ready."""
        return max(self._free.get(engine, 0.0), self._ready_ns(engine, reads, writes))

    def free_ns(self, engine: Engine) -> float:
        """From when on an engine has nothing to do."""
        return self._free.get(engine, 0.0)

    def busy_ns(self) -> dict[str, float]:
        """Busy time by engine; that of ``dma`` is of the DMA engine that is busy longest."""
        return {engine.name: busy for engine, busy in self._busy.items()} | {"dma": self._dma.longest_ns}

    def _ready_ns(self, engine: Engine, reads: Places, writes: Places) -> float:
        """From when on everything that an instruction reads or overwrites is ready."""
        latest = 0.0
        sync_ns = self._timing.sync_ns
        for place in reads:
            ready = place.ready_to_read(engine, sync_ns)
            if ready > latest:
                latest = ready
        for place in writes:
            ready = place.ready_to_write(engine, sync_ns)
            if ready > latest:
                latest = ready
        return latest

    def _note(self, engine: Engine, end_ns: float, ready_ns: float, reads: Places, writes: Places) -> None:
        """The engine is done at ``end_ns``; others can use what it leaves from ``ready_ns`` on."""
        for place in reads:
            place.note_read(engine, end_ns)
        for place in writes:
            place.note_write(engine, ready_ns)
        if ready_ns > self.end_ns:
            self.end_ns = ready_ns
