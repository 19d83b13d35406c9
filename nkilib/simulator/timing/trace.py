"""The instructions of one core as they are issued. They are put on its timeline many at a time.

While a kernel computes, its data drive the code and the tables of the model out of the caches of the CPU, and each
instruction would bring them in again: it is only noted, and what is noted is settled in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..memory.storage import Storage
from ..target.generation import Generation
from ..tensors.tensor import NkiTensor
from ..terms.enums import engine as engines
from ..terms.errors import kernel_frame
from ..terms.regions import ON_CHIP
from .footprints import Tracked, tracked
from .parameters import ModelParameters
from .parts import Reach
from .plans import roles_of
from .settling import Access, Indirection, Issued, Settling

if TYPE_CHECKING:
    from ..isa.indirection import IndirectOperand
    from ..isa.instruction import Definition
    from ..memory.capacity import Peak
    from ..memory.lives import LiveRange
    from ..terms.regions import MemoryRegion

# How many instructions are settled at a time.
_BATCH = 256
# Frames between the note and what called the instruction: its function, ``issue`` and ``Trace.add``.
_FRAMES = 3


class Trace:
    """What one core did, and when it is modelled to have done it.

    Attributes:
        core: its number.
        settled: when instructions run, and what they move.
        met_ns: when the last core came to the meeting that the running instruction is; None if it is none.
        lives: the on-chip tensors of the core, known at the end of the kernel.
        peaks: the most bytes of a partition that they take at one time, and which do.
    """

    def __init__(self, core: int, generation: Generation, parameters: ModelParameters) -> None:
        self.core = core
        self.settled = Settling(generation, parameters)
        self.met_ns: float | None = None
        self.lives: Sequence[LiveRange] = ()
        self.peaks: dict[MemoryRegion, Peak] = {}
        self._pending: list[Issued] = []
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
        roles = roles_of(definition)
        operands: list[Access | None] = []
        for at in roles.tensors:
            value = values[at]
            kind = type(value)
            if kind is NkiTensor:
                known = value.storage.uses
                if known is None or value._indirect is not None:
                    operands.append(self._access(value))
                else:  # most of them
                    operands.append((known, value.layout, value.dtype, None, None))
            elif kind is list or kind is tuple:
                operands += [self._access(item) for item in value]
            else:
                operands.append(None)
        deciding = [values[at] for at in roles.deciding] if roles.deciding else ()
        besides = [self._of_indirection(operand) for operand in indirect] if indirect else ()
        frame = kernel_frame(_FRAMES)
        code, position = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        self._pending.append((number, definition, engine, label, operands, deciding, besides, met_ns, code, position))
        if len(self._pending) >= _BATCH:
            self.settle()

    def add_fill(self, number: int, dst: NkiTensor, value: Any) -> None:
        """A tensor was made with a value: by a ``memset`` on chip, by a DMA in HBM."""
        self.settle()
        self.settled.add_fill(number, self._access(dst), value, kernel_frame())

    def settle(self) -> None:
        """Put what is noted on the timeline."""
        pending, self._pending = self._pending, []
        self.settled.add(pending)

    def arrival_at_barrier(self, engine: engines, data: NkiTensor) -> float:
        """When this core comes to a barrier on ``data``."""
        self.settle()
        return self.settled.arrival_at_barrier(engine, self._access(data))

    def arrival_at_exchange(self, src: NkiTensor, dst: NkiTensor, values: dict[str, Any]) -> float:
        """When this core is ready to swap tiles with the other one."""
        self.settle()
        return self.settled.arrival_at_exchange(self._access(src), self._access(dst), values)

    def _access(self, tensor: NkiTensor) -> Access:
        """A tensor, as far as the model has to know it."""
        known = tensor.storage.uses
        if known is None:
            known = self._tracked(tensor.storage)
        indirect = tensor._indirect
        if indirect is None:
            return known, tensor.layout, tensor.dtype, None, None
        index = self._access(indirect.index) if isinstance(indirect.index, NkiTensor) else None
        return known, tensor.layout, tensor.dtype, Reach(indirect.kind, indirect.stride, indirect.limit), index

    def _of_indirection(self, operand: IndirectOperand) -> Indirection:
        return self._access(operand.index), self._access(operand.base), operand.is_output

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
