"""The instructions of one core on its timeline, as they are issued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..enums import engine as engines
from ..errors import kernel_frame
from ..hardware import Generation
from ..memory import ON_CHIP
from ..storage import Storage
from ..tensor import NkiTensor
from .event import Note
from .footprints import Footprint, Form, Tracked, tracked
from .parameters import ModelParameters
from .plans import Plan, plans_for, roles_of
from .timeline import Places, Span, Timeline
from .transfers import queue_of

if TYPE_CHECKING:
    from ..capacity import Peak
    from ..instruction import Definition
    from ..live_ranges import LiveRange
    from ..memory import MemoryRegion
    from ..tensor_indirection import IndirectOperand

_NS_PER_US = 1000.0

# Frames between a note and what called the instruction: its function, ``issue``, ``Trace.add`` and ``_note``.
_FRAMES = 4


class Trace:
    """What one core did, and when it is modelled to have done it.

    Attributes:
        core: its number.
        notes: one for each instruction, in program order.
        timeline: the engines.
        hbm_read, hbm_written: bytes by the name of the tensor in HBM.
        met_ns: when the last core came to the meeting that the running instruction is; None if it is none.
        lives: the on-chip tensors of the core, known at the end of the kernel.
        peaks: the most bytes of a partition that they take at one time, and which do.
    """

    def __init__(self, core: int, generation: Generation, parameters: ModelParameters) -> None:
        self.core = core
        self.notes: list[Note] = []
        self.timeline = Timeline(generation, parameters)
        self.hbm_read: Counter[str] = Counter()
        self.hbm_written: Counter[str] = Counter()
        self.met_ns: float | None = None
        self.lives: Sequence[LiveRange] = ()
        self.peaks: dict[MemoryRegion, Peak] = {}
        self._parameters = parameters
        self._plans = plans_for(generation, parameters)
        # What is on chip belongs to one core and keeps what is known of it, for as long as the kernel keeps it.
        self._in_hbm: dict[Storage, Tracked] = {}

    def add(
        self,
        number: int,
        definition: Definition,
        engine: engines,
        label: str,
        values: list[Any],
        indirect: Sequence[IndirectOperand],
    ) -> None:
        """An instruction has been issued with these parameters."""
        met_ns, self.met_ns = self.met_ns, None
        if definition.is_transfer:
            self._add_transfer(number, definition, engine, label, values, met_ns)
            return
        reads: Places = []
        writes: Places = []
        forms: list[Form | None] = []
        roles = roles_of(definition)
        for at in roles.reads:
            value = values[at]
            forms.append(self._touch(value, reads).form if type(value) is NkiTensor else None)
        for at in roles.writes:
            value = values[at]
            forms.append(self._touch(value, writes).form if type(value) is NkiTensor else None)
        for operand in indirect:
            self._touch(operand.index, reads)
            self._touch(operand.base, writes if operand.is_output else reads)
        plan = self._plans.plan(definition, engine, values, forms)
        if definition.cost is not None:
            span = self.timeline.compute(engine, plan.cycles, reads, writes, plan.table)
        elif met_ns is not None:  # a barrier
            span = self.timeline.meet(engine, reads, met_ns)
        else:  # registers, and a barrier of one core: they take no time here
            now = self.timeline.free_ns(engine)
            span = now, now
        self._note(number, plan, label, span)

    def add_fill(self, number: int, dst: NkiTensor, value: Any) -> None:
        """A tensor was made with a value: by a ``memset`` on chip, by a DMA in HBM."""
        writes: Places = []
        footprint = self._touch(dst, writes, self.hbm_written)
        plan = self._plans.fill(dst, value)
        if plan.queue:
            work = self._plans.work((footprint.side,), 0, False)
            span = self.timeline.transfer(plan.queue, work, False, [], writes)
        else:
            span = self.timeline.compute(engines.vector, plan.cycles, [], writes)
        self._note(number, plan, "", span)

    def arrival_at_barrier(self, engine: engines, data: NkiTensor) -> float:
        """When this core comes to a barrier on ``data``."""
        writes: Places = []
        self._touch(data, writes)
        return self.timeline.arrival(engine, [], writes)

    def arrival_at_exchange(self, src: NkiTensor, dst: NkiTensor, values: dict[str, Any]) -> float:
        """When this core is ready to swap tiles with the other one."""
        reads: Places = []
        writes: Places = []
        self._touch(src, reads)
        self._touch(dst, writes)
        return self.timeline.trigger_ns(queue_of(values, False, dst.is_on_chip(), self._parameters), reads, writes)

    def _add_transfer(
        self,
        number: int,
        definition: Definition,
        engine: engines,
        label: str,
        values: list[Any],
        met_ns: float | None,
    ) -> None:
        roles = roles_of(definition)
        reads: Places = []
        writes: Places = []
        tensors = [values[at] for at in roles.writes]
        footprints = [self._touch(tensor, writes, self.hbm_written) for tensor in tensors]
        for at in roles.reads:
            value = values[at]
            for tensor in (value,) if type(value) is NkiTensor else value:
                tensors.append(tensor)
                footprints.append(self._touch(tensor, reads, self.hbm_read))
        rows, is_gathered = 0, False
        for tensor in tensors:
            indirect = tensor._indirect
            if indirect is None:
                continue
            if isinstance(indirect.index, NkiTensor):
                self._touch(indirect.index, reads)
            if indirect.kind == "vector":
                rows, is_gathered = max(rows, tensor.shape[0]), True
        plan = self._plans.plan(definition, engine, values, [footprint.form for footprint in footprints], is_gathered)
        sides = tuple([footprint.side for footprint in footprints])
        work = self._plans.work(sides, rows, definition.name == "dma_transpose")
        start = 0.0 if met_ns is None else met_ns + self._parameters.barrier_us * _NS_PER_US
        span = self.timeline.transfer(plan.queue, work, rows > 0, reads, writes, start)
        self._note(number, plan, label, span)

    def _touch(self, tensor: NkiTensor, places: Places, counter: Counter[str] | None = None) -> Footprint:
        """Enter a tensor among what an instruction reads, or writes, and its bytes among those that cross HBM."""
        storage = tensor.storage
        known = storage.uses
        if known is None:
            known = self._tracked(storage)
        footprint: Footprint = known.views.footprint(tensor)
        part = footprint.part
        if part is not None:
            places.append(known.uses[part])
        if counter is not None and footprint.form.is_in_hbm:
            counter[known.name] += footprint.form.nbytes
        return footprint

    def _tracked(self, storage: Storage) -> Tracked:
        """What is known of a storage that is in HBM, or not used yet."""
        known = self._in_hbm.get(storage)
        if known is None:
            known = tracked(storage)
            if storage.region in ON_CHIP:
                storage.uses = known
            else:
                self._in_hbm[storage] = known
        return known

    def _note(self, number: int, plan: Plan, label: str, span: Span) -> None:
        frame = kernel_frame(_FRAMES)
        code, at = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        self.notes.append((number, plan, label, span, code, at))
