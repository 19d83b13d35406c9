# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The state of a simulated core and of its launch, and the core of the current thread.

- :class:`Launch`: the state that the cores of a launch share.
- :class:`Core`: one core, with its random numbers and its :class:`Accumulators`.
- :func:`current_core` and :func:`current_core_or_none`: the core of the current thread.
- :class:`Emitter`: the interface that records instructions instead of running them; implemented in replay/.

A *scope* is a tuple that identifies a launch, a core and the iterations of dynamic loops; see terms/scopes.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ..hardware.current import THREAD
from ..hardware.generations import PARTITIONS, Generation
from ..hardware.options import Options
from ..memory.byte_spans import HbmPlaces
from ..memory.storage import DeferredLoads, Storage
from ..numerics.random_state import RandomState
from ..tensors.view import View
from ..terms.compilation import CompileConfig
from ..terms.dtypes import DType
from ..terms.errors import ArgumentTypeError, NkiValidationError
from ..terms.scopes import Scope, new_scope
from ..terms.spec import DataNeeded
from .left_out import LeftOut
from .loops import IterationCounters, Loops, Trips, current_trips
from .observer import Observers
from .synchronisation import CoreBarrier, Seat

State = TypeVar("State")


@dataclass
class Launch:
    """The state that the cores of one kernel launch share.

    Attributes:
        options: the options in force.
        cores: the number of cores.
        grid_dimensions: the number of dimensions of the launch grid.
        barrier: the barrier of the cores.
        is_abstract: whether tensors have shapes and types but no memory; see terms/spec.py.
        seat: the rank of the launch among launches that run in parallel; None for a launch without other ranks.
        shared: the storages in shared HBM, in the order in which a core makes them.
        hbm_places: the tensors in shared HBM to which the kernel gives an address.
        kernel: the name of the launched kernel.
        compile_config: the compiler settings of the launched kernel, which also hold for the kernels that it calls.
        allows_other_configs: whether nested kernels may have other settings, which are then ignored.
        constants: the storages of constants, by key.
        lock: the lock for changes of ``shared`` and ``constants``.
        trips: the iteration counts of loops whose bounds only the device knows.
        left_out: the values that the launch does not compute; None if it computes all values, or has shapes only.
        scope: the scope of arguments and of other tensors that all cores share.
    """

    options: Options
    cores: int
    grid_dimensions: int
    barrier: CoreBarrier
    is_abstract: bool = False
    seat: Seat | None = None
    shared: list[Storage] = field(default_factory=list)
    hbm_places: HbmPlaces = field(default_factory=HbmPlaces)
    kernel: str = ""
    compile_config: CompileConfig = field(default_factory=CompileConfig)
    allows_other_configs: bool = False
    constants: dict[Hashable, Storage] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    trips: Trips = field(default_factory=current_trips)
    left_out: LeftOut | None = None
    scope: Scope = field(default_factory=new_scope)

    def name_of(self, core: int) -> str:
        """Return the name of core number ``core`` for messages: rank, number, or both; empty if only one core runs."""
        named = [] if self.seat is None else [f"rank {self.seat.rank}"]
        return ", ".join([*named, f"core {core}"] if self.cores > 1 else named)

    def finish(self, core: int) -> None:
        """Record that core number ``core`` has ended without an error."""
        self.barrier.finish(self._number_of(core))

    def fail(self, core: int, failed_after: int | None) -> None:
        """Record that a core has ended early.

        Cores with lower numbers run on, because the launch raises the error of the failed core with the lowest number.

        Args:
            core: the number of the core.
            failed_after: the number of instructions that the core had issued; None if another core made it end.
        """
        self.barrier.fail(self._number_of(core), failed_after)
        if self.seat is not None:
            self.seat.world.tell_failed()

    def _number_of(self, core: int) -> int:
        return core if self.seat is None else self.seat.rank * self.cores + core

    def abort(self) -> None:
        """Make all cores of this launch, and of launches that run in parallel, end at their next instruction."""
        self.barrier.abort()
        if self.seat is not None:
            self.seat.world.tell_failed()

    def shared_storage(
        self,
        position: int,
        shape: tuple[int, ...],
        dtype: DType,
        address: tuple[int, ...] | None,
        make: Callable[[], Storage],
    ) -> Storage:
        """Return the storage of a tensor in shared HBM. The first core that asks for the tensor makes the storage.

        Args:
            position: the index of the tensor among the tensors that this core makes in shared HBM, from 0.
            shape: the shape of the tensor.
            dtype: the type of the tensor.
            address: the address that the kernel gives, or None.
            make: a function that makes the storage.

        Raises:
            NkiValidationError: the two cores ask for different shapes, types or addresses.
        """
        with self.lock:
            if position == len(self.shared):
                self.shared.append(make())
            storage = self.shared[position]
        made, asked = (storage.shape, storage.dtype, storage.address), (shape, dtype, address)
        if made != asked:
            first, second = (
                f"{list(sizes)} {kind}{'' if place is None else f' at address {place}'}"
                for sizes, kind, place in (made, asked)
            )
            raise NkiValidationError(
                f"nl.ndarray in shared_hbm: all cores must make the same shared tensors in the same order; number "
                f"{position} is {first} on one core and {second} on another"
            )
        return storage

    def constant(self, key: Hashable, make: Callable[[], Storage]) -> Storage:
        """Return the constant with the key ``key``, which all cores share. The first core that asks for it calls
        ``make``.
        """
        with self.lock:
            if key not in self.constants:
                self.constants[key] = make()
            return self.constants[key]


class Accumulators:
    """The accumulator registers of an engine, one float32 per partition. ``lanes`` is a slice of the partitions.

    Attributes:
        values: the values of the registers.
        known: a mask of the registers that hold a defined value.
        is_blank: whether no register holds a defined value; a plain attribute, because every instruction that resets
            registers reads it.
    """

    def __init__(self) -> None:
        self.values = np.full(PARTITIONS, np.nan, np.float32)
        self.known = np.zeros(PARTITIONS, np.bool_)
        self.is_blank = True
        self._left_out = np.zeros(PARTITIONS, np.bool_)
        self._is_any_left_out = False

    def forget(self, lanes: slice) -> None:
        """Mark registers as undefined, because the documentation does not say what they contain now."""
        self.values[lanes] = np.nan
        self.known[lanes] = False
        self.is_blank = not self.known.any()

    def set(self, lanes: slice, values: Any) -> None:
        """Write ``values``, one per register or one for all, to registers."""
        self.values[lanes] = values
        self.known[lanes] = True
        self.is_blank = False
        if self._is_any_left_out:
            self._left_out[lanes] = False

    def leave_out(self, lanes: slice) -> None:
        """Mark registers as defined, with values that this launch does not compute."""
        self.set(lanes, np.nan)
        self._left_out[lanes] = self._is_any_left_out = True

    def read(self, lanes: slice) -> npt.NDArray[np.float32]:
        """Return the values of registers.

        Raises:
            DataNeeded: this launch has not computed them.
        """
        if self._is_any_left_out and self._left_out[lanes].any():
            raise DataNeeded("the accumulator registers")
        return self.values[lanes]


class Emitter(Protocol):
    """The interface that records instructions instead of running them; replay/ implements it.

    In ordinary launches, functions of ``engines/`` do the work of an instruction. While an emitter records, these
    functions call the methods below instead, which record the work. If an instruction reads elements of a tensor in
    another way, ``DataNeeded`` is raised, and the emitter records a call of the whole instruction.
    """

    def elementwise(
        self, dst: View, tiles: Sequence[View], apply: Callable[..., object], reduction: Any, columns: Sequence[Any]
    ) -> None:
        """Record an elementwise operation, with the arguments of ``compute`` in engines/rowwise.py."""

    def reduce_rows(self, dst: View, tile: View, reduce: Callable[..., object], reads_bfloat16: bool) -> None:
        """Record a reduction of rows, with the arguments of ``reduce_rows`` in engines/rowwise.py."""

    def act(
        self,
        function: Callable[..., object],
        writes: Sequence[View],
        reads: Sequence[View],
        updates: Sequence[View],
        chosen: Sequence[View],
        may_refuse: bool,
    ) -> None:
        """Record a call of ``function`` with arrays of tensors; the arguments are those of ``act`` in
        engines/actions.py.
        """

    def move(self, target: View, source: View) -> None:
        """Record a transfer; see engines/dma_endpoints.py, ``move``."""

    def multiply(self, dst: View, stationary: View, moving: View, is_added: bool) -> None:
        """Record a matrix product. It is added to ``dst`` if ``is_added`` is true, and otherwise overwrites ``dst``."""


class Core:
    """One simulated core.

    Attributes:
        is_abstract: whether tensors have shapes and types but no memory; see terms/spec.py.
        version_number: the hardware generation as a number, which is faster to compare than an Enum.
        issued: the number of instructions that the core has begun, which is the number of the last one.
        names: for the ``name=`` of every named instruction, the scopes in which it ran.
        observers: the core's observers.
        loops: the dynamic loops and ``no_reorder`` regions around the current instruction.
        random: the random number generators of the engines.
        defers_results: whether elementwise results are deferred until they are read; see memory/deferred.py.
        loads: the tiles that may have deferred contents from HBM.
        hbm_places: the tensors in private HBM to which the kernel gives an address.
        name: the core's name in messages; empty if no other core runs.
        language_function: the name of the function of ``nki.language`` that is running, or empty.
        shared_tensors: the number of tensors in shared HBM that this core has made.
        meetings: the number of synchronisations with other cores, plus the number of shared tensors and constants made;
            an iteration of a loop that increases this number cannot be skipped.
        tally: the counters that loops with skipped iterations update.
        at_end: checks to call at the end of the kernel.
        is_recorded: whether instructions are recorded for a replay.
        unrepeatable: text about a side effect that a replay would not repeat; empty if there is none.
        emitter: the object that records instructions instead of running them; None if instructions run.
    """

    def __init__(self, number: int, launch: Launch) -> None:
        self.number = number
        self.launch = launch
        self.is_abstract = launch.is_abstract
        self.options = launch.options
        self.generation: Generation = launch.options.generation
        self.version_number: int = self.generation.version.value
        self.names: dict[str, set[tuple[int, ...]]] = {}
        self.observers = Observers()
        self.defers_results = True
        self.loads = DeferredLoads()
        self.hbm_places = HbmPlaces()
        self.scalar_accumulators = Accumulators()
        self.vector_accumulators = Accumulators()
        self.loops = Loops(new_scope(launch.scope))
        rank = 0 if launch.seat is None else launch.seat.rank
        self.random = RandomState(rank * launch.cores + number)
        self.issued = 0
        self.name = launch.name_of(number)
        self.language_function = ""
        self.meetings = 0
        self.tally = IterationCounters(lambda: [launch.trips.ran_on(number)])
        self.at_end: list[Callable[[], None]] = []
        self.is_recorded = False
        self.unrepeatable = ""
        self.emitter: Emitter | None = None
        self._states: dict[type[Any], Any] = {}
        self.shared_tensors = 0
        self._shared_constants = 0
        self._scopes_of_shared: dict[int, Scope] = {}
        self._scratch: dict[str, npt.NDArray[np.float32]] = {}

    def state(self, kind: type[State]) -> State:
        """Return this core's object of class ``kind``, which keeps state of instructions; the first call creates it."""
        if kind not in self._states:
            self._states[kind] = kind()
        state: State = self._states[kind]
        return state

    def add_name(self, name: str) -> None:
        """Record, for checks of the order of named instructions, that ``name=name`` was used in the current scope.

        Raises:
            ArgumentTypeError: ``name`` is no string.
        """
        if not isinstance(name, str):
            raise ArgumentTypeError(f"name must be a string, got {name!r}")
        self.names.setdefault(name, set()).add(self.loops.scope)

    @property
    def is_traced(self) -> bool:
        """Whether the kernel runs under the rules of NKI's tracer, which refuses Python branches on run-time values."""
        return self.options.frontend == "tracer"

    @property
    def scope(self) -> Scope:
        """The scope of the current instruction."""
        return self.loops.scope

    def made_shared(self, storage: Storage) -> None:
        """Record that this core has made a tensor in shared HBM.

        In the body of a loop, the tensor belongs to this core's own iteration, even if the other core made the storage.
        """
        if storage.scope != self.launch.scope:
            self._scopes_of_shared[storage.number] = self.loops.scope

    def scope_of(self, storage: Storage) -> Scope:
        """Return the scope of a tensor as this core sees it.

        For a tensor in shared HBM, this is the scope in which this core made the tensor.
        """
        return self._scopes_of_shared.get(storage.number, storage.scope)

    def next_shared_allocation(self) -> int:
        """Count a new tensor in shared HBM, and return its number among those of this core, from 0."""
        self.shared_tensors += 1
        self.meetings += 1
        return self.shared_tensors - 1

    def next_shared_constant(self) -> int:
        """Count a new constant, and return its number among those of this core, from 0."""
        self._shared_constants += 1
        self.meetings += 1
        return self._shared_constants - 1

    def skip_numbers(self, count: int) -> None:
        """Advance the count of issued instructions by ``count``, for instructions of skipped loop iterations."""
        self.issued += count

    def stop_deferring(self) -> None:
        """Compute every further result at once. Call this when deferred results were computed twice: deferring saves
        nothing then.
        """
        self.defers_results = False

    def scratch(self, slot: str, elements: int) -> npt.NDArray[np.float32]:
        """Return the float32 work buffer ``slot``, which instructions share: ``elements`` elements with arbitrary
        content.
        """
        buffer = self._scratch.get(slot)
        if buffer is None or buffer.size < elements:
            buffer = self._scratch[slot] = np.empty(elements, np.float32)
        return buffer[:elements]


def current_core_or_none() -> Core | None:
    """Return the core that this thread simulates; None outside a kernel."""
    core = THREAD.simulated
    return core if isinstance(core, Core) else None


def current_core(what: str) -> Core:
    """Return the core that this thread simulates.

    Raises:
        NkiValidationError: no kernel is running; the message says that ``what`` was called outside a kernel.
    """
    core = THREAD.simulated
    if not isinstance(core, Core):
        raise NkiValidationError(f"{what} works inside a kernel only: decorate the function with @nki.jit and call it")
    return core
