"""The instructions of one core on its timeline, as they are issued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..enums import engine as engines
from ..errors import kernel_location
from ..hardware import Generation
from ..memory import HBM
from ..tensor import NkiTensor
from . import costs
from .costs import Call
from .event import Event, tensors_of
from .parameters import ModelParameters
from .timeline import Span, Timeline
from .transfers import Transfer, queue_of

if TYPE_CHECKING:
    from ..capacity import Peak
    from ..instruction import Definition
    from ..live_ranges import LiveRange
    from ..memory import MemoryRegion
    from ..tensor_indirection import IndirectOperand

_NS_PER_US = 1000.0


class Trace:
    """What one core did, and when it is modelled to have done it.

    Attributes:
        core: its number.
        events: one for each instruction, in program order.
        timeline: the engines.
        hbm_read, hbm_written: bytes by the name of the tensor in HBM.
        met_ns: when the last core came to the meeting that the running instruction is; None if it is none.
        lives: the on-chip tensors of the core, known at the end of the kernel.
        peaks: the most bytes of a partition that they take at one time, and which do.
    """

    def __init__(self, core: int, generation: Generation, parameters: ModelParameters) -> None:
        self.core = core
        self.events: list[Event] = []
        self.timeline = Timeline(generation, parameters)
        self.hbm_read: Counter[str] = Counter()
        self.hbm_written: Counter[str] = Counter()
        self.met_ns: float | None = None
        self.lives: Sequence[LiveRange] = ()
        self.peaks: dict[MemoryRegion, Peak] = {}
        self._generation = generation
        self._parameters = parameters

    def add(
        self,
        number: int,
        definition: Definition,
        engine: engines,
        label: str,
        values: dict[str, Any],
        indirect: Sequence[IndirectOperand],
    ) -> None:
        """An instruction has been issued with these parameters."""
        cycles = 0.0
        met_ns, self.met_ns = self.met_ns, None
        tensors = tensors_of(values)
        reads, writes = _accesses(definition, tensors, indirect)
        if definition.is_transfer:
            transfer = self._transfer(definition, values, reads)
            self._count(transfer)
            start = 0.0 if met_ns is None else met_ns + self._parameters.barrier_us * _NS_PER_US
            span = self.timeline.transfer(transfer, start)
        elif definition.cost is not None:
            cycles = definition.cost(Call(engine, values, self._generation, self._parameters))
            span = self.timeline.compute(engine, cycles, reads, writes, self._table(engine, values))
        elif met_ns is not None:  # a barrier
            (data,) = reads
            span = self.timeline.meet(engine, data, self.timeline.arrival(engine, data), met_ns)
        else:  # registers, and a barrier of one core: they take no time here
            now = self.timeline.free_ns(engine)
            span = Span(now, now, now)
        shown = "dma" if definition.is_transfer else engine.name
        self._show(number, shown, definition.name, label, tensors, cycles, span)

    def add_fill(self, number: int, dst: NkiTensor, value: Any) -> None:
        """A tensor was made with a value: by a ``memset`` on chip, by a DMA in HBM."""
        values = {"dst": dst, "value": value}
        if dst.is_on_chip():
            cycles = costs.filled(Call(engines.vector, values, self._generation, self._parameters))
            span = self.timeline.compute(engines.vector, cycles, (), (dst,))
            self._show(number, "vector", "memset", "", {"dst": dst}, cycles, span)
            return
        transfer = Transfer(dst, (), (), queue_of(values, False, self._parameters), False, 0)
        self._count(transfer)
        self._show(number, "dma", "dma_copy", "", {"dst": dst}, 0.0, self.timeline.transfer(transfer))

    def arrival_at_barrier(self, engine: engines, data: NkiTensor) -> float:
        """When this core comes to a barrier on ``data``."""
        return self.timeline.arrival(engine, data)

    def arrival_at_exchange(self, src: NkiTensor, dst: NkiTensor, values: dict[str, Any]) -> float:
        """When this core is ready to swap tiles with the other one."""
        queue = queue_of({**values, "dst": dst}, False, self._parameters)
        return self.timeline.trigger_ns(Transfer(dst, (src,), (), queue, False, 0))

    def _show(
        self,
        number: int,
        engine: str,
        name: str,
        label: str,
        tensors: dict[str, NkiTensor],
        cycles: float,
        span: Span,
    ) -> None:
        operands = {key: (tensor.shape, str(tensor.dtype)) for key, tensor in tensors.items()}
        start, end = span.start_ns / _NS_PER_US, span.end_ns / _NS_PER_US
        place = kernel_location()
        self.events.append(Event(self.core, engine, name, label or "", operands, cycles, start, end, place, number))

    def _table(self, engine: engines, values: dict[str, Any]) -> str:
        """The activation table that an instruction of the Scalar engine needs; empty if none."""
        if engine is not engines.scalar:
            return ""
        function = getattr(values.get("op"), "key", "")
        return self._parameters.table_of(function) if function else ""

    def _transfer(self, definition: Definition, values: dict[str, Any], sources: list[NkiTensor]) -> Transfer:
        dst = values["dst"]
        offsets = [access for access in (tensor.indirect_access for tensor in (dst, *sources)) if access is not None]
        is_vector = any(access.kind == "vector" for access in offsets)
        indices = [access.index for access in offsets if isinstance(access.index, NkiTensor)]
        is_transpose = definition.name == "dma_transpose"
        rows = max(tensor.shape[0] for tensor in (dst, *sources) if _is_gathered(tensor)) if is_vector else 0
        return Transfer(dst, sources, indices, queue_of(values, is_vector, self._parameters), is_transpose, rows)

    def _count(self, transfer: Transfer) -> None:
        """The bytes that cross HBM, by tensor."""
        for tensor in transfer.sources:
            if tensor.buffer in HBM:
                self.hbm_read[_name(tensor)] += tensor.size * tensor.dtype.itemsize
        if transfer.dst.buffer in HBM:
            self.hbm_written[_name(transfer.dst)] += transfer.dst.size * transfer.dst.dtype.itemsize


def _is_gathered(tensor: NkiTensor) -> bool:
    return tensor.indirect_access is not None and tensor.indirect_access.kind == "vector"


def _name(tensor: NkiTensor) -> str:
    """What a tensor in HBM is called; one without a name after its shape and type."""
    storage = tensor.storage
    return storage.name or f"{list(storage.shape)} {storage.dtype}"


def _accesses(
    definition: Definition, tensors: dict[str, NkiTensor], indirect: Sequence[IndirectOperand]
) -> tuple[list[NkiTensor], list[NkiTensor]]:
    """The tensors that an instruction reads and those that it writes, tensor indirection included."""
    outputs = definition.output_names
    reads = [tensor for name, tensor in tensors.items() if name not in outputs]
    writes = [tensor for name, tensor in tensors.items() if name in outputs]
    for operand in indirect:
        reads.append(operand.index)
        (writes if operand.is_output else reads).append(operand.base)
    return reads, writes
