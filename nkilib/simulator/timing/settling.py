# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The settling of instructions: each issued instruction of a core gets its time on the timeline, and a note in the log.

:meth:`Settling.add` distinguishes four kinds of instructions. Computing instructions and transfers take time; *untimed*
ones, of unknown duration, take none. All three wait for the tensors that they access. *Dropped* instructions, which the
device does not run, neither wait nor take time.

The simulator does not limit the number of tiles in PSUM, but on the device a partition has 8 banks of 2 KiB
(``trainium_inferentia2_arch.rst``). If PSUM is full, a new tile (:class:`Banks`) takes the *place*, that is the bytes,
of the tiles that were used longest ago, and waits for the accesses to them (:class:`_Vacated`). The compiler's choice
of the place is not published. SBUF is not modelled this way: a compiler loads into SBUF out of order, and a published
measurement of a matrix product whose tiles fill SBUF shows no such waits.

The arguments ``reads`` and ``writes`` list the parts of tensors (:class:`~.dependencies.Place`) that an instruction
accesses.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from ..hardware.generations import PARTITIONS, PSUM_BANK_BYTES, PSUM_PARTITION_BYTES, Generation
from ..machine.loops import IterationCounters, Skip
from ..terms.enums import Engine, MemoryRegion
from .dependencies import NOTHING, Done, HbmUses, Place, TileUses, Tracked
from .dma import Address
from .footprints import Footprint, Form
from .instruction import InstructionKind, PendingInstruction, TensorAccess, kinds_for
from .instruction_log import InstructionLog
from .parameters import NS_PER_US, ModelParameters
from .passes.engine_choice import BY_WORKLOAD, engines_for
from .recording import Recording
from .repetition import Period
from .timeline import NO_CAUSE, Places, Span, Timeline

_QUARTER = PARTITIONS // 4

# Members of an Enum are looked up by a Python function before 3.12.
_PSUM = MemoryRegion.psum

# The engines of instructions on registers and scalars, which compute nothing and have no clock of their own here.
SEQUENCER = (Engine.sync,)
LOADS = frozenset({"register_load", "scalar_load"})


class _Vacated:
    """The tiles that lost their place in PSUM to a new tile, which waits until all accesses to them are complete.

    Attributes:
        storage: the number of the storage of the first of these tiles.
    """

    __slots__ = ("_uses", "storage")

    def __init__(self, uses: Sequence[TileUses]) -> None:
        self._uses = uses
        self.storage = uses[0].storage

    def last_write(self, by: Engine) -> Done:
        """Return the last access to any of the tiles: even a read of the new tile waits until its place is free."""
        return self.last_access(by)[0]

    def last_access(self, by: Engine) -> tuple[Done, bool]:
        """Return the last access to any of the tiles, and whether it is a read."""
        accesses = [place.last_access(by) for uses in self._uses for place in uses.values()]
        return max(accesses, key=lambda access: access[0].ready_ns(by), default=(NOTHING, False))

    def note_read(self, done: Done) -> None:
        """Do nothing: reads of the new tile are recorded with the new tile's own part."""

    def note_write(self, done: Done) -> None:
        """Do nothing: writes to the new tile are recorded with the new tile's own part."""


def _size(known: Tracked) -> float:
    """Return the bytes that a tile takes in PSUM, averaged over all partitions.

    A tile of at most 32 or 64 partitions takes a quarter or a half of the partitions; the rest is free for others.
    """
    views = known.views
    nbytes = views.bytes_each
    if nbytes > PSUM_BANK_BYTES:
        nbytes = -(-nbytes // PSUM_BANK_BYTES) * PSUM_BANK_BYTES
    quarters = next(count for count in (1, 2, 4) if views.partitions <= count * _QUARTER)
    return nbytes * quarters / 4


class Banks:
    """The tiles that have a place in the PSUM of one core, ordered by their last use, the earliest first."""

    def __init__(self) -> None:
        self._free = float(PSUM_PARTITION_BYTES)
        self._tiles: OrderedDict[Tracked, float] = OrderedDict()

    def use(self, known: Tracked) -> Place | None:
        """Record the use of a tile, and give it a place at its first use.

        Returns:
            The tiles that lost their place to this tile, which has to wait for them; None if no tile lost its place.
        """
        tiles = self._tiles
        if known.has_place:
            if known in tiles:
                tiles.move_to_end(known)
            return None
        known.has_place = True
        size = _size(known)
        vacated: list[TileUses] = []
        while self._free < size and tiles:
            old, freed = tiles.popitem(last=False)
            self._free += freed
            if isinstance(old.uses, TileUses):
                vacated.append(old.uses)
        self._free -= size
        tiles[known] = size
        return _Vacated(vacated) if vacated else None


def _footprint(access: TensorAccess) -> Footprint:
    known, layout, dtype, reach, _ = access
    return known.views.footprint(layout, dtype, reach)


class Settling:
    """The timeline of a core, with notes of the instructions on it and counts of the bytes that they moved.

    Attributes:
        log: a note for each instruction, in program order.
        recording: the parts of tensors that each instruction touched.
        timeline: the timeline of the engines.
        hbm_read: the bytes that were read, by the name of the tensor in HBM.
        hbm_written: the bytes that were written, by the name of the tensor in HBM.
        untimed: the number of instructions whose time is not modelled, by the name of the instruction.
        tally: advances ``hbm_read``, ``hbm_written`` and ``untimed`` for iterations that are not run.
    """

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self.log = InstructionLog()
        self.recording = Recording()
        self.timeline = Timeline(generation, parameters)
        self.hbm_read: Counter[str] = Counter()
        self.hbm_written: Counter[str] = Counter()
        self.untimed: Counter[str] = Counter()
        self.tally = IterationCounters(lambda: [self.hbm_read, self.hbm_written, self.untimed])
        self._parameters = parameters
        self._kinds = kinds_for(generation, parameters)
        self._banks = Banks() if parameters.reuses_psum_banks else None
        # The kinds of the present instruction among which the model chooses.
        self._choices: tuple[InstructionKind, ...] = ()

    def add(self, pending: Iterable[PendingInstruction]) -> None:
        """Put instructions on the timeline, in program order, and add a note of each to the log."""
        for instruction in pending:
            if instruction.dropped_by:
                kind, span = self._dropped(instruction)
            elif instruction.definition.is_untimed:
                kind, span = self._untimed(instruction)
            elif instruction.definition.is_transfer:
                kind, span = self._transfer(instruction)
            else:
                kind, span = self._compute(instruction)
            self.log.add(instruction.number, kind, instruction.label, span, instruction.code, instruction.position)
            choices, self._choices = self._choices, ()
            self.recording.add(instruction, kind, choices)

    def drain(self, after_us: float, register: int = 0, *, is_between: bool = False, is_wait: bool = True) -> None:
        """Put a synchronisation at a device loop on the timeline, and record it.

        The arguments are the fields of :class:`.recording.Drain`.
        """
        wait = self.timeline.drain if is_wait else self.timeline.hold_up
        wait(after_us, register)
        self.recording.drain(after_us, register, is_between=is_between, is_wait=is_wait)

    def repeat(self, period: Period, skip: Skip) -> None:
        """Repeat the instructions of ``period`` for the iterations that are not run.

        Args:
            period: the latest iterations of the loop that were run.
            skip: the number of repetitions, and the numbers of iterations and of instructions in each.
        """
        self.log.repeat(period.first, skip.times, period.ns, skip.instructions)
        self.tally.repeat(skip)
        self.timeline.repeat(period.before, period.numbers, period.ns, skip.times)

    def arrival_at_barrier(self, engine: Engine, data: TensorAccess) -> float:
        """Return when the core arrives at a barrier on the tensor ``data``, in nanoseconds."""
        writes: Places = []
        self._touch(data, writes)
        self.recording.begin()
        return self.timeline.arrival(engine, [], writes)

    def arrival_at_exchange(self, src: TensorAccess, dst: TensorAccess, values: dict[str, Any]) -> float:
        """Return when the core is ready to swap tiles with the other core, in nanoseconds.

        Args:
            src: the tile that the core sends.
            dst: the tile that it receives into.
            values: the deciding parameters of the instruction, by name.
        """
        reads: Places = []
        writes: Places = []
        self._touch(src, reads)
        to_chip = self._touch(dst, writes).form.is_on_chip
        self.recording.begin()
        return self.timeline.trigger_ns(self._kinds.queue(values, Address.known, to_chip).name, reads, writes)

    def _compute(self, instruction: PendingInstruction) -> tuple[InstructionKind, Span]:
        # Every instruction that is no transfer: it computes, works on a register, or is a barrier.
        definition, engine, met_ns = instruction.definition, instruction.engine, instruction.met_ns
        reads: Places = []
        writes: Places = []
        forms: list[Form | None] = []
        written = len(instruction.roles.writes)
        for access in instruction.operands:
            # The written operands come first.
            places = writes if len(forms) < written else reads
            forms.append(None if access is None else self._touch(access, places).form)
        for index, base, is_output, _ in instruction.besides:
            self._touch(index, reads)
            self._touch(base, writes if is_output else reads)
        self._register(instruction, reads)
        if definition.cost is not None and definition.name in BY_WORKLOAD and self._parameters.chooses_engines:
            engine = self._least_loaded(instruction, forms, reads, writes)
        kind = self._kind(instruction, engine, forms)
        if definition.cost is not None:
            return kind, self.timeline.compute(instruction.number, engine, kind.cycles, reads, writes, kind.table)
        if met_ns is not None:  # a barrier
            return kind, self.timeline.meet(instruction.number, engine, reads, met_ns)
        if definition.engines == SEQUENCER:
            return kind, self._sequence(instruction, reads, writes)
        now = self.timeline.free_ns(engine)  # a barrier of one core takes no time here
        return kind, Span(now, now, NO_CAUSE)

    def _kind(self, instruction: PendingInstruction, engine: Engine, forms: list[Form | None]) -> InstructionKind:
        indirect = tuple([name for *_, name in instruction.besides]) if instruction.besides else ()
        return self._kinds.kind(instruction.definition, engine, forms, instruction.deciding, indirect=indirect)

    def _sequence(self, instruction: PendingInstruction, reads: Places, writes: Places) -> Span:
        # Registers and scalars: the sequencer runs such instructions one after the other.
        parameters = self._parameters
        is_load = instruction.definition.name in LOADS
        duration = (parameters.register_load_us if is_load else parameters.register_us) * NS_PER_US
        if not parameters.waits_for_registers:
            return self.timeline.sequence(instruction.number, instruction.engine, duration, [], [])
        return self.timeline.sequence(instruction.number, instruction.engine, duration, reads, writes)

    def _register(self, instruction: PendingInstruction, reads: Places) -> None:
        # The instruction waits until the register with the address of an operand is loaded.
        if instruction.register and self._parameters.waits_for_registers:
            reads.append(self.timeline.register(instruction.register))

    def _least_loaded(
        self, instruction: PendingInstruction, forms: list[Form | None], reads: Places, writes: Places
    ) -> Engine:
        # The engine that would finish the instruction first, if the kernel leaves the engine open.
        engines = engines_for(
            instruction, self._kind(instruction, instruction.engine, forms).others, self._kinds.generation
        )
        if len(engines) == 1:
            return engines[0]
        self._choices = tuple([self._kind(instruction, engine, forms) for engine in engines])
        ends = [
            self.timeline.would_end(engine, kind.cycles, reads, writes)
            for engine, kind in zip(engines, self._choices, strict=True)
        ]
        return engines[ends.index(min(ends))]

    def _dropped(self, instruction: PendingInstruction) -> tuple[InstructionKind, Span]:
        # The device does not run it, so that it takes no time.
        forms = [None if access is None else _footprint(access).form for access in instruction.operands]
        kind = self._kinds.kind(instruction.definition, instruction.engine, forms, instruction.deciding)
        kind = kind._replace(cycles=0.0, table="", dropped_by=instruction.dropped_by)
        now = self.timeline.free_ns(instruction.engine)
        return kind, Span(now, now, NO_CAUSE)

    def _untimed(self, instruction: PendingInstruction) -> tuple[InstructionKind, Span]:
        # It takes no time, but later accesses to its tensors wait for the accesses before it.
        places: Places = []
        for access in instruction.operands:
            if access is not None:
                self._touch(access, places)
        name, engine = instruction.definition.name, instruction.engine
        self.untimed[name] += 1
        return InstructionKind(name, engine.name, {}), self.timeline.pass_on(
            instruction.number, engine, places, instruction.met_ns or 0.0
        )

    def _transfer(self, instruction: PendingInstruction) -> tuple[InstructionKind, Span]:
        # Also counts the bytes that the transfer reads and writes in HBM.
        definition, met_ns = instruction.definition, instruction.met_ns
        reads: Places = []
        writes: Places = []
        footprints: list[Footprint] = []
        rows, address = 0, Address.known
        for access in instruction.operands:
            if access is None:  # a constant takes the place of the source
                continue
            known, layout, _, reach, index = access
            places, counter = (reads, self.hbm_read) if footprints else (writes, self.hbm_written)
            footprint = self._touch(access, places)
            footprints.append(footprint)
            if footprint.form.is_in_hbm:
                counter[known.name] += footprint.form.nbytes
                if reach is not None and footprint.part is not None and isinstance(known.uses, HbmUses):
                    known.uses.note_reached(footprint.part, footprint.form.nbytes, is_write=len(footprints) == 1)
            if index is not None:
                self._touch(index, reads)
            if reach is not None and reach.kind == "vector":
                rows, address = max(rows, layout.shape[0]), Address.rows
            elif reach is not None and address is Address.known:
                address = Address.register
        self._register(instruction, reads)
        forms: list[Form | None] = [item.form for item in footprints]
        if len(forms) < len(instruction.operands):
            forms.append(None)
        kind = self._kinds.kind(definition, instruction.engine, forms, instruction.deciding, address)
        sides = [item.side for item in footprints]
        if definition.name == "sendrecv_compute":  # the engines read two sources, of which the other core has one
            sides.append(sides[-1])
        work = self._kinds.work(tuple(sides), rows, definition.name == "dma_transpose")
        kind = self._kinds.moving(kind, work)
        return kind, self.timeline.transfer(instruction.number, kind.queue, work, reads, writes, met_ns)

    def _touch(self, access: TensorAccess, places: Places) -> Footprint:
        """Add the part of a tensor to ``places``, and return the tensor's footprint.

        For a new tile in PSUM, the function adds the tiles that lose their place to it too.

        Args:
            access: a tensor of an instruction.
            places: the list of the parts that the instruction reads, or the list of those that it writes.
        """
        known = access[0]
        footprint = _footprint(access)
        part = footprint.part
        self.recording.touch(known, footprint)
        if part is not None:
            places.append(known.uses[part])
            if self._banks is not None and known.views.region is _PSUM:
                vacated = self._banks.use(known)
                if vacated is not None:
                    places.append(vacated)
        return footprint
