# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The traces of launches to profile: the instructions of each core, which are put on its timeline in batches.

:class:`Trace` observes one core; :func:`collecting` puts the traces of the launches of a ``with`` block into a
:class:`Collection`.

To *settle* an instruction is to give it a time on the timeline. A trace records instructions and settles them in
batches, because the data of the kernel evict the model's code and tables from the caches of the CPU; without batches
each instruction would load them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

from ..hardware.current import current_generation
from ..hardware.generations import Generation
from ..isa.indirection import IndirectOperand
from ..machine.loops import LoopRun, Skip
from ..machine.observer import Issued, Observer, Observers, Watcher, watching
from ..machine.records import Lives, lives_of
from ..memory.storage import Storage
from ..tensors.tensor import NkiTensor
from ..tensors.view import View
from ..terms.enums import ON_CHIP
from ..terms.errors import kernel_frame
from ..terms.scopes import CORE
from .dependencies import HbmUses, Tracked, tracked
from .footprints import Reach
from .instruction import IndirectAccess, PendingInstruction, TensorAccess, roles_of
from .parameters import ModelParameters
from .passes.registry import window_for
from .recording import CONSTANTS_OF
from .repetition import Accesses, Period, Watch
from .settling import Settling

# The number of instructions that are settled at a time.
_BATCH = 256


class _Body:
    """The body of a device loop: its tiles and inner loops, in the order in which an iteration reaches them.

    The device has one copy of a body, so that each of its tiles has one place in memory for all iterations. In an
    iteration, successive calls of :meth:`tile` and :meth:`loop` return the tiles and loops in order; :meth:`again`
    starts from the first one.
    """

    def __init__(self) -> None:
        self._tiles: list[tuple[object, Tracked]] = []
        self._loops: list[_Body] = []
        self._tile = self._loop = 0

    def again(self) -> None:
        self._tile = self._loop = 0

    def tile(self, storage: Storage) -> Tracked:
        """Return the record of the tile that the body makes next: the same record in every iteration.

        If the tile differs from the previous iteration's in shape, type or memory, it gets a new record.
        """
        key = storage.shape, storage.dtype, storage.region
        at, self._tile = self._tile, self._tile + 1
        if at == len(self._tiles):
            self._tiles.append((key, tracked(storage)))
        elif self._tiles[at][0] != key:  # the front end of 0.6 may choose by iteration
            self._tiles[at] = (key, tracked(storage))
        return self._tiles[at][1]

    def loop(self) -> _Body:
        at, self._loop = self._loop, self._loop + 1
        if at == len(self._loops):
            self._loops.append(_Body())
        self._loops[at].again()
        return self._loops[at]


def _accesses(operands: Sequence[TensorAccess | None], written: int, besides: Sequence[IndirectAccess]) -> Accesses:
    """Return a pair (tensor, whether the instruction writes it) for each tensor of an instruction.

    Args:
        operands: the tensors of the parameters, the written ones first; None where a parameter is no tensor.
        written: the number of parameters that are written.
        besides: the operands with tensor indirection.
    """
    accesses = [(access, at < written) for at, access in enumerate(operands) if access is not None]
    accesses += [(access[4], False) for access, _ in accesses if access[4] is not None]
    for index, base, is_output, _ in besides:
        accesses += [(index, False), (base, is_output)]
    return accesses


@dataclass
class LoopNote:
    """A run of a device loop on a core.

    Attributes:
        loop: the loop.
        first: the number of its first instruction; 0 if it ran none.
        last: the number of the last of its instructions that were run; 0 if it ran none.
        left_out: the number of iterations that were not run because they only repeat others.
    """

    loop: LoopRun
    first: int = 0
    last: int = 0
    left_out: int = 0


class Trace(Observer):
    """The instructions of one core, and their modelled times.

    Attributes:
        core: the number of the core.
        lives: its on-chip tensors, and the most bytes of a partition that they take at one time.
        settled: the times of the instructions, and the bytes that they move.
        loops: the runs of device loops, in the order in which they ended.
    """

    def __init__(self, core: int, lives: Lives, generation: Generation, parameters: ModelParameters) -> None:
        self.core = core
        self.lives = lives
        self.settled = Settling(generation, parameters)
        self._pending: list[PendingInstruction] = []
        self._window = window_for(generation, parameters)
        self._constants_of = self._window.constants_of | CONSTANTS_OF
        # The records of storages by their numbers; for storages on chip as long as the kernel keeps them.
        self._known: dict[int, Tracked] = {}
        self._kept: dict[int, ref[Storage]] = {}
        self._parameters = parameters
        # The kernel, and the bodies of the device loops that it is in.
        self._bodies = [_Body()]
        self.loops: list[LoopNote] = []
        # The loops that the kernel is in, each with the position of its first instruction.
        self._entered: list[tuple[LoopNote, int]] = []
        # The watches of these loops if iterations may be left out, and the accesses of instructions in the outermost.
        self._watches: list[Watch | None] = []
        self._accesses: list[Accesses] = []
        self._period: Period | None = None
        # When this core came to the barrier or exchange that is running, and when the last core did.
        self._arrival_ns = 0.0
        self._met_ns: float | None = None

    def issued(self, call: Issued) -> None:
        met_ns, self._met_ns = self._met_ns, None
        definition, values, known_of = call.definition, call.values, self._known
        roles = roles_of(definition)
        operands: list[TensorAccess | None] = []
        if definition.is_untimed:  # it waits for all of its tensors, and all wait for it
            operands += [self._access(view) for view in call.reads]
        for at in () if definition.is_untimed else roles.tensors:
            value = values[at]
            kind = type(value)
            if kind is NkiTensor:
                known = known_of.get(value.storage.number)
                if known is None or value.indirect_access is not None:
                    operands.append(self._access(value))
                else:  # most of them
                    operands.append((known, value.layout, value.dtype, None, None))
            elif kind is list or kind is tuple:
                operands += [self._access(item) for item in value]
            else:
                operands.append(None)
        deciding = [values[at] for at in roles.deciding] if roles.deciding else ()
        besides = [self._of_indirection(operand) for operand in call.indirect] if call.indirect else ()
        if self._is_watching:
            self._accesses.append(_accesses(operands, len(roles.writes), besides))
        constants: tuple[Any, ...] = ()
        if definition.name in self._constants_of:
            constants = tuple([value for value in values[:-1] if type(value) is not NkiTensor])
        frame = kernel_frame()
        code, position = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        self._pending.append(
            PendingInstruction(
                call.number,
                definition,
                roles,
                call.engine,
                values[-1],
                operands,
                deciding,
                besides,
                met_ns,
                code,
                position,
                call.function,
                constants,
                call.register,
            )
        )
        if len(self._pending) >= _BATCH:
            self._settle()

    @property
    def in_hbm(self) -> dict[int, Tracked]:
        """The records of the storages in HBM, by their numbers."""
        return {number: known for number, known in self._known.items() if isinstance(known.uses, HbmUses)}

    def settle(self) -> None:
        """Put all recorded instructions on the timeline. The window of the passes is empty afterwards."""
        self._settle()
        self.settled.add(self._window.flush())

    def _settle(self) -> None:
        # The last instructions stay in the window, where passes may change them.
        pending, self._pending = self._pending, []
        self.settled.add(self._window.take(pending))
        for number in [number for number, storage in self._kept.items() if storage() is None]:
            del self._known[number], self._kept[number]

    def arrives(self, call: Issued) -> float:
        """Return when this core arrives at the barrier or exchange ``call``, in nanoseconds."""
        self.settle()
        roles = roles_of(call.definition)
        accesses = [self._access(call.values[at]) for at in roles.tensors]
        if call.definition.is_transfer:
            dst, src = accesses
            deciding = {call.definition.names[at]: call.values[at] for at in roles.deciding}
            self._arrival_ns = self.settled.arrival_at_exchange(src, dst, deciding)
        else:
            (data,) = accesses
            self._arrival_ns = self.settled.arrival_at_barrier(call.engine, data)
        return self._arrival_ns

    def meets(self, call: Issued, brought: float) -> None:
        # An instruction may synchronise several times, once for each of its tensors.
        self._met_ns = max(self._arrival_ns, brought, self._met_ns or 0.0)

    @property
    def _is_watching(self) -> bool:
        return any(watch is not None for watch in self._watches)

    def _first_number(self) -> int:
        # The first instruction that the watch of a loop may still compare or repeat.
        return min((watch.first_number for watch in self._watches if watch is not None), default=0)

    def entered(self, loop: LoopRun) -> None:
        self.settle()
        self._entered.append((LoopNote(loop), self.settled.log.run))
        self.settled.tally.enter()
        self._bodies.append(self._bodies[-1].loop())
        parameters = self._parameters
        register = loop.register if parameters.waits_for_registers else 0
        if parameters.loops_drain or parameters.loop_entry_us or register:
            self.settled.drain(parameters.loop_entry_us, register, is_wait=parameters.loops_drain)
        self._watch(loop)

    def _watch(self, loop: LoopRun) -> None:
        # The iterations of the loop are compared if some of them may be skipped.
        drains = self._parameters.iterations_drain
        settled = self.settled
        watch = None
        if loop.may_repeat:
            if not self._is_watching:
                self._accesses.clear()
            settled.timeline.remember(self._first_number())
            watch = Watch(settled.log, settled.timeline, self._accesses, drains=drains)
        self._watches.append(watch)

    def iterated(self, loop: LoopRun) -> None:
        self.settle()
        self._bodies[-1].again()
        parameters = self._parameters
        if parameters.iterations_drain or parameters.loop_iteration_us:
            self.settled.drain(parameters.loop_iteration_us, is_between=True, is_wait=parameters.iterations_drain)
        self.settled.tally.iterate()
        watch = self._watches[-1]
        if watch is not None:
            watch.end()
            self.settled.timeline.remember(self._first_number())

    def repeats(self, loop: LoopRun, left: int) -> Skip | None:
        watch = self._watches[-1]
        self._period = None if watch is None else watch.period()
        if self._period is None:
            return None
        # The last period runs: it leaves everything as the loop leaves it.
        times = left // self._period.iterations - 1
        if times < 1:
            return None
        return Skip(self._period.iterations, times, len(self._period.numbers))

    def repeated(self, loop: LoopRun, skip: Skip) -> None:
        watch = self._watches[-1]
        assert self._period is not None and watch is not None
        self._entered[-1][0].left_out += skip.period * skip.times
        self.settled.repeat(self._period, skip)
        watch.again()

    def left(self, loop: LoopRun) -> None:
        self.settle()
        note, begin = self._entered.pop()
        log = self.settled.log
        if log.run > begin:
            note.first, note.last = log.number(begin), log.number(log.run - 1)
        self.loops.append(note)
        self._bodies.pop()
        self.settled.tally.leave()
        self._watches.pop()
        if not self._is_watching:
            self._accesses.clear()
            self.settled.timeline.remember(None)
        if self._parameters.loops_drain:
            self.settled.drain(0.0)

    def ended(self) -> None:
        self.settle()

    def _access(self, tensor: View) -> TensorAccess:
        # The result does not keep the tensor's data alive.
        known = self._tracked(tensor.storage)
        indirect = tensor.indirect_access
        if indirect is None:
            return known, tensor.layout, tensor.dtype, None, None
        index = self._access(indirect.index) if isinstance(indirect.index, View) else None
        return known, tensor.layout, tensor.dtype, Reach(indirect.kind, indirect.stride, indirect.limit), index

    def _of_indirection(self, operand: IndirectOperand) -> IndirectAccess:
        return self._access(operand.index), self._access(operand.base), operand.is_output, operand.name

    def _tracked(self, storage: Storage) -> Tracked:
        number = storage.number
        known = self._known.get(number)
        if known is None:
            is_on_chip = storage.region in ON_CHIP
            known = self._of_body(storage) if is_on_chip and len(storage.scope) > CORE else tracked(storage)
            self._known[number] = known
            if is_on_chip:
                self._kept[number] = ref(storage)
        return known

    def _of_body(self, storage: Storage) -> Tracked:
        # With ``body_reuses_tiles`` it is the record that the same tile had in the previous iteration.
        if not self._parameters.body_reuses_tiles:
            return tracked(storage)
        return self._bodies[len(storage.scope) - CORE].tile(storage)


class Collection(Watcher):
    """The traces of the cores of all launches inside the ``with`` block of :func:`collecting`.

    Attributes:
        traces: the trace of each core.
        given: the numbers of the storages that the caller passed to a kernel.
        returned: the numbers of the storages that the caller got back.
    """

    def __init__(self, parameters: ModelParameters) -> None:
        self.traces: list[Trace] = []
        self.given: Set[int] = frozenset()
        self.returned: Set[int] = frozenset()
        self._parameters = parameters

    def watch(self, number: int, observers: Observers) -> Observer:
        self.traces.append(Trace(number, lives_of(observers), current_generation(), self._parameters))
        return self.traces[-1]

    def exchanged(self, given: Set[int], returned: Set[int]) -> None:
        self.given |= given
        self.returned |= returned

    def conclude(self, has_ended: bool) -> None:
        """Do nothing: the profile reads the traces after the block."""


@contextmanager
def collecting(parameters: ModelParameters) -> Iterator[Collection]:
    """Trace the kernels launched inside the ``with`` block, and yield the :class:`Collection` of their traces."""
    collection = Collection(parameters)
    with watching(collection):
        yield collection
