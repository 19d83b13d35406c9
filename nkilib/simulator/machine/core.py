"""The state of a simulated core, and which one the current thread is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..memory.deferred import DeferredContents
from ..memory.lives import LiveRange
from ..memory.storage import Storage
from ..target.generation import Generation
from ..target.limits import PARTITIONS
from ..target.options import Options, current_options
from ..terms.dtypes import DType
from ..terms.errors import NkiValidationError
from ..terms.regions import MemoryRegion
from .barrier import CoreBarrier
from .loops import Loops
from .races import SharedAccesses
from .random import RandomState
from .record import Record

if TYPE_CHECKING:
    from ..isa.indirection import IndirectOperand
    from ..timing.trace import Trace

if TYPE_CHECKING:
    from ..tensors.tensor import NkiTensor


@dataclass
class Launch:
    """What the cores of one kernel launch share.

    Attributes:
        is_recorded: whether somebody asks for its record or its profile.
        is_abstract: whether its tensors have shapes and types and no memory; see spec.py.
    """

    options: Options
    cores: int
    grid_dimensions: int
    barrier: CoreBarrier
    is_abstract: bool = False
    is_recorded: bool = False
    shared: list[Storage] = field(default_factory=list)
    constants: dict[Hashable, Storage] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def shared_storage(
        self, position: int, shape: tuple[int, ...], dtype: DType, make: Callable[[], Storage]
    ) -> Storage:
        """The shared allocation number ``position``: the first core to ask makes it, the other one gets the same.

        Raises:
            NkiValidationError: if the cores ask for different tensors.
        """
        with self.lock:
            if position == len(self.shared):
                self.shared.append(make())
            storage = self.shared[position]
        if (storage.shape, storage.dtype) != (shape, dtype):
            raise NkiValidationError(
                f"nl.ndarray in shared_hbm: all cores must make the same shared tensors in the same order; number "
                f"{position} is {list(storage.shape)} {storage.dtype} on one core and {list(shape)} {dtype} on another"
            )
        return storage

    def constant(self, key: Hashable, make: Callable[[], Storage]) -> Storage:
        """The constant named ``key``: the first core to ask makes it, the other one gets the same."""
        with self.lock:
            if key not in self.constants:
                self.constants[key] = make()
            return self.constants[key]


class Accumulators:
    """The accumulator registers of an engine, one float32 a partition, and which of them hold a known value."""

    def __init__(self) -> None:
        self.values = np.full(PARTITIONS, np.nan, np.float32)
        self.known = np.zeros(PARTITIONS, np.bool_)

    def forget(self, lanes: slice) -> None:
        """The registers of ``lanes`` hold something that the documentation does not define."""
        self.values[lanes] = np.nan
        self.known[lanes] = False

    def set(self, lanes: slice, values: Any) -> None:
        self.values[lanes] = values
        self.known[lanes] = True


class Core:
    """One simulated core.

    Attributes:
        version_number: the generation as a number, so that instructions need not ask an Enum for it.
        instruction_number: number of the instruction that runs, from 1.
        trace: the model of time, while a profile is made.
        names: the ``name=`` of every instruction that had one.
        lives: the life of every on-chip tensor that the kernel made.
        loops: the dynamic loops and ``no_reorder`` regions that it is in.
        random: the random number generators of its engines.
        defers_results: whether results that are reduced as well wait for a reader; see deferred.py.
        loads: the tiles whose contents come from HBM and may not be made yet.
        shared_accesses: what it did to shared HBM, if the launch has two cores and looks for races.
    """

    def __init__(self, number: int, launch: Launch) -> None:
        self.number = number
        self.launch = launch
        self.options = launch.options
        self.generation: Generation = launch.options.generation
        self.version_number: int = self.generation.version.value
        self.record = Record()
        self.instruction_number = 0
        self.names: set[str] = set()
        self.trace: Trace | None = None
        self.defers_results = True
        self.loads = DeferredContents()
        self.shared_accesses = SharedAccesses()
        self._sees_races = launch.cores > 1 and launch.options.races == "error"
        self.lives: list[LiveRange] = []
        self.indirect_operands: list[IndirectOperand] = []
        self.scalar_accumulators = Accumulators()
        self.vector_accumulators = Accumulators()
        self.loops = Loops()
        self.random = RandomState(number)
        self.shared_allocations = 0
        self.shared_constants = 0
        self._scratch: dict[str, npt.NDArray[np.float32]] = {}

    def note_shared(
        self,
        base: NkiTensor,
        is_write: bool,
        rows: npt.NDArray[np.int64] | None = None,
        values: npt.NDArray[Any] | None = None,
    ) -> None:
        """The core reads ``base`` in HBM, or those of its rows that ``rows`` names, or writes ``values`` there."""
        if self._sees_races and base.buffer is MemoryRegion.shared_hbm:
            self.shared_accesses.note(base, is_write, rows, values)

    def scratch(self, slot: str, elements: int) -> npt.NDArray[np.float32]:
        """A float32 work buffer of the core, reused from instruction to instruction; its content is arbitrary."""
        buffer = self._scratch.get(slot)
        if buffer is None or buffer.size < elements:
            buffer = self._scratch[slot] = np.empty(elements, np.float32)
        return buffer[:elements]


class _Thread(threading.local):
    """What is known of a thread: the core that it simulates, or None outside a kernel."""

    core: Core | None = None


_CURRENT = _Thread()


def current_core_or_none() -> Core | None:
    """The core that this thread simulates, or None outside a kernel."""
    return _CURRENT.core


def current_core(what: str) -> Core:
    """The core that this thread simulates.

    Raises:
        NkiValidationError: outside a kernel, naming ``what`` was called there.
    """
    core = _CURRENT.core
    if core is None:
        raise NkiValidationError(f"{what} works inside a kernel only: decorate the function with @nki.jit and call it")
    return core


def is_abstract_launch() -> bool:
    """Whether the running kernel has shapes and no data."""
    core = current_core_or_none()
    return core is not None and core.launch.is_abstract


def enter(core: Core | None) -> None:
    """Make this thread simulate ``core``; None ends it."""
    _CURRENT.core = core


def current_generation() -> Generation:
    """The generation of the running kernel, or the one that the next launch would have."""
    core = current_core_or_none()
    return core.generation if core is not None else current_options().generation
