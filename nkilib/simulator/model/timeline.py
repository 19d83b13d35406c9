"""The model of time of one core: in-order streams of instructions, one for each engine, and the DMA engines.

An instruction starts when its engine is free and the parts of tensors that it reads or overwrites are ready. A transfer
starts when its queue may trigger it; its rows then pass through DMA engines of which each serves eight partitions.
Modelled, not measured: see docs/performance-model.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..enums import engine as engines
from ..hardware import Generation
from ..storage import Storage
from ..tensor import NkiTensor
from .busy_times import DmaEngines
from .parameters import ModelParameters
from .regions import Part, Uses, part_of
from .transfers import Side, Transfer, engine_times, fixed_ns, sides_of

_NS_PER_US = 1000.0

# The accesses of an instruction: what is known of the storage, which part of it, and whether it is written.
Accesses = list[tuple[Uses, Part, bool]]


class Span(NamedTuple):
    """When an engine is busy with an instruction, and from when on others can use what it leaves."""

    start_ns: float
    end_ns: float
    ready_ns: float


class Timeline:
    """When the engines of one core are busy, as far as the kernel has come."""

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self._timing = generation.timing
        self._parameters = parameters
        trigger_us = parameters.trigger_us
        self._trigger_ns = self._timing.dma.trigger_ns if trigger_us is None else trigger_us * _NS_PER_US
        self._free: dict[engines, float] = {}
        self._dma = DmaEngines(self._timing.dma.engines)
        self._busy = dict.fromkeys(self._timing.clock_ghz, 0.0)
        self._queue_free: dict[str, float] = {}
        # Of tensors in HBM. What is on chip belongs to one core and keeps its own, for as long as the kernel keeps it.
        self._hbm_uses: dict[Storage, Uses] = {}
        self._known_times: dict[tuple[tuple[Side, ...], int, bool], list[tuple[int, float]]] = {}
        self._table = ""
        self.end_ns = 0.0

    def compute(
        self,
        engine: engines,
        cycles: float,
        reads: Iterable[NkiTensor],
        writes: Iterable[NkiTensor],
        table: str = "",
    ) -> Span:
        """An instruction of an engine that computes; ``table`` names the activation table that it needs."""
        clock = self._timing.clock_ghz[engine]
        accesses = self._accesses(reads, writes)
        start = max(self.free_ns(engine), self._wait(engine, accesses))
        if table and table != self._table:
            start += self._timing.activation_table_ns
            self._table = table
        end = start + cycles / clock
        issue = 0.0 if engine is engines.tensor else self._timing.issue_cycles / clock
        self._free[engine] = end + issue
        self._busy[engine] += end - start
        return self._note(engine, Span(start, end, end + self._timing.result_ns[engine]), accesses)

    def transfer(self, transfer: Transfer, not_before_ns: float = 0.0) -> Span:
        """A DMA; it is not triggered before ``not_before_ns``."""
        dma = self._timing.dma
        accesses = self._accesses(transfer.reads, (transfer.dst,))
        trigger = max(self._trigger(transfer, accesses), not_before_ns)
        if transfer.rows:
            # GpSimd writes the descriptors first.
            busy = self._parameters.indirect_gpsimd_us * _NS_PER_US
            trigger = self._free[engines.gpsimd] = max(self.free_ns(engines.gpsimd), trigger) + busy
            self._busy[engines.gpsimd] += busy
        self._queue_free[transfer.queue] = trigger + self._trigger_ns
        end = self._dma.add(trigger + fixed_ns(transfer, dma, self._parameters), self._engine_times(transfer))
        return self._note(engines.dma, Span(trigger, end, end + dma.to_consumer_ns), accesses)

    def trigger_ns(self, transfer: Transfer) -> float:
        """When a queue can trigger a transfer."""
        return self._trigger(transfer, self._accesses(transfer.reads, (transfer.dst,)))

    def meet(self, engine: engines, data: NkiTensor, start_ns: float, met_ns: float) -> Span:
        """A barrier on ``data``, to which this core came at ``start_ns`` and the last one at ``met_ns``.

        It holds up its engine and whatever touches ``data`` afterwards.
        """
        end = met_ns + self._parameters.barrier_us * _NS_PER_US
        self._free[engine] = end
        return self._note(engine, Span(start_ns, end, end), self._accesses((), (data,)))

    def arrival(self, engine: engines, data: NkiTensor) -> float:
        """When an engine is free and all that was done to ``data`` before is done."""
        return max(self.free_ns(engine), self._wait(engine, self._accesses((), (data,))))

    def free_ns(self, engine: engines) -> float:
        """From when on an engine has nothing to do."""
        return self._free.get(engine, 0.0)

    def busy_ns(self) -> dict[str, float]:
        """Busy time by engine; that of ``dma`` is of the DMA engine that is busy longest."""
        return {engine.name: busy for engine, busy in self._busy.items()} | {"dma": self._dma.longest_ns}

    def _engine_times(self, transfer: Transfer) -> list[tuple[int, float]]:
        """How long each DMA engine works on a transfer; those of a kernel are mostly alike."""
        key = sides_of(transfer), transfer.rows, transfer.is_transpose
        times = self._known_times.get(key)
        if times is None:
            times = self._known_times[key] = engine_times(*key, self._timing.dma, self._parameters)
        return times

    def _trigger(self, transfer: Transfer, accesses: Accesses) -> float:
        return max(self._queue_free.get(transfer.queue, 0.0), self._wait(engines.dma, accesses))

    def _accesses(self, reads: Iterable[NkiTensor], writes: Iterable[NkiTensor]) -> Accesses:
        found: Accesses = []
        for is_write, tensors in ((False, reads), (True, writes)):
            for tensor in tensors:
                part = part_of(tensor)
                if part is not None:
                    found.append((self._uses_of(tensor, part), part, is_write))
        return found

    def _uses_of(self, tensor: NkiTensor, part: Part) -> Uses:
        storage = tensor.storage
        uses: Uses | None = storage.uses or self._hbm_uses.get(storage)
        if uses is None:
            uses = Uses(part)
            if tensor.is_on_chip():
                storage.uses = uses
            else:
                self._hbm_uses[storage] = uses
        return uses

    def _wait(self, engine: engines, accesses: Accesses) -> float:
        """From when on everything that an instruction reads or overwrites is ready."""
        latest = 0.0
        for uses, part, is_write in accesses:
            for use in uses.before_write(part) if is_write else uses.before_read(part):
                by = use.by
                if by is engine:
                    # What the engine itself did to a part that it overwrites it has done before: it works in order.
                    if is_write and engine is not engines.dma:
                        continue
                    ready = use.until_ns
                else:
                    # The end of a DMA has in it what others take to notice it.
                    ready = use.until_ns + (0.0 if by is engines.dma else self._timing.sync_ns)
                if ready > latest:
                    latest = ready
        return latest

    def _note(self, engine: engines, span: Span, accesses: Accesses) -> Span:
        for uses, part, is_write in accesses:
            if is_write:
                uses.note_write(part, engine, span.ready_ns)
            else:
                uses.note_read(part, engine, span.end_ns)
        if span.ready_ns > self.end_ns:
            self.end_ns = span.ready_ns
        return span
