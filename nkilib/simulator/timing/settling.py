# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The settling of instructions: each issued instruction of a core gets its time on the timeline, and a note of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..hardware.generation import Generation
from ..machine.repetition import Skip, Tally
from ..terms.enums import Engine
from ..terms.regions import MemoryRegion
from .banks import Banks
from .causes import NO_CAUSE
from .footprints import Footprint, Form
from .noted import Access, Noted
from .notes import Notes
from .parameters import ModelParameters
from .passes.engine_choice import BY_WORKLOAD, engines_for
from .plans import Plan, plans_for
from .timeline import Places, Span, Timeline
from .transfers import Address
from .uses import HbmUses
from .watch import Period

_NS_PER_US = 1000.0

# Members of an Enum are looked up by a Python function before 3.12.
_PSUM = MemoryRegion.psum

# The engines of instructions on registers and scalars, which compute nothing and have no clock of their own here.
SEQUENCER = (Engine.sync,)
_LOADS = frozenset({"register_load", "scalar_load"})


class Settling:
    """The timeline of a core, with notes of the instructions on it and counts of what they moved.

    Attributes:
        notes: a note for each instruction, in program order.
        timeline: the timeline of the engines.
        hbm_read, hbm_written: the bytes that were read and written, by the name of the tensor in HBM.
        untimed: by name, the number of instructions whose time is not modelled.
        tally: the values of these three counters at the ends of iterations, from which repetitions are counted.
    """

    def __init__(self, generation: Generation, parameters: ModelParameters) -> None:
        self.notes = Notes()
        self.timeline = Timeline(generation, parameters)
        self.hbm_read: Counter[str] = Counter()
        self.hbm_written: Counter[str] = Counter()
        self.untimed: Counter[str] = Counter()
        self.tally = Tally(lambda: [self.hbm_read, self.hbm_written, self.untimed])
        self._parameters = parameters
        self._plans = plans_for(generation, parameters)
        self._banks = Banks() if parameters.reuses_psum_banks else None

    def add(self, pending: Iterable[Noted]) -> None:
        """Put instructions on the timeline, in program order, and note them."""
        for noted in pending:
            if noted.dropped_by:
                plan, span = self._dropped(noted)
            elif noted.definition.is_untimed:
                plan, span = self._untimed(noted)
            elif noted.definition.is_transfer:
                plan, span = self._transfer(noted)
            else:
                plan, span = self._compute(noted)
            self.notes.add(noted.number, plan, noted.label, span, noted.code, noted.position)

    def _compute(self, noted: Noted) -> tuple[Plan, Span]:
        definition, engine, met_ns = noted.definition, noted.engine, noted.met_ns
        reads: Places = []
        writes: Places = []
        forms: list[Form | None] = []
        written = len(noted.roles.writes)
        for access in noted.operands:
            # The written operands come first.
            places = writes if len(forms) < written else reads
            forms.append(None if access is None else self._touch(access, places).form)
        for index, base, is_output, _ in noted.besides:
            self._touch(index, reads)
            self._touch(base, writes if is_output else reads)
        self._register(noted, reads)
        if definition.cost is not None and definition.name in BY_WORKLOAD and self._parameters.chooses_engines:
            engine = self._least_loaded(noted, forms, reads, writes)
        plan = self._plan(noted, engine, forms)
        if definition.cost is not None:
            return plan, self.timeline.compute(noted.number, engine, plan.cycles, reads, writes, plan.table)
        if met_ns is not None:  # a barrier
            return plan, self.timeline.meet(noted.number, engine, reads, met_ns)
        if definition.engines == SEQUENCER:
            return plan, self._sequence(noted, reads, writes)
        now = self.timeline.free_ns(engine)  # a barrier of one core takes no time here
        return plan, Span(now, now, NO_CAUSE)

    def _plan(self, noted: Noted, engine: Engine, forms: list[Form | None]) -> Plan:
        """Return the plan of an instruction that is no transfer, on an engine."""
        indirect = tuple([name for *_, name in noted.besides]) if noted.besides else ()
        return self._plans.plan(noted.definition, engine, forms, noted.deciding, indirect=indirect)

    def _sequence(self, noted: Noted, reads: Places, writes: Places) -> Span:
        """Put an instruction on a register or a scalar on the timeline."""
        parameters = self._parameters
        is_load = noted.definition.name in _LOADS
        duration = (parameters.register_load_us if is_load else parameters.register_us) * _NS_PER_US
        if not parameters.waits_for_registers:
            return self.timeline.sequence(noted.number, noted.engine, duration, [], [])
        return self.timeline.sequence(noted.number, noted.engine, duration, reads, writes)

    def _register(self, noted: Noted, reads: Places) -> None:
        """Add the register that holds the address of an operand to the places that an instruction reads."""
        if noted.register and self._parameters.waits_for_registers:
            reads.append(self.timeline.register(noted.register))

    def _least_loaded(self, noted: Noted, forms: list[Form | None], reads: Places, writes: Places) -> Engine:
        """Return the engine on which an instruction would be done first, if the kernel leaves the engine open."""
        engines = engines_for(noted, self._plan(noted, noted.engine, forms).others, self._plans.generation)
        if len(engines) == 1:
            return engines[0]
        ends = [
            self.timeline.would_end(engine, self._plan(noted, engine, forms).cycles, reads, writes)
            for engine in engines
        ]
        return engines[ends.index(min(ends))]

    def _dropped(self, noted: Noted) -> tuple[Plan, Span]:
        """Return the plan and the span, without time, of an instruction that the device does not run."""
        forms = [None if access is None else _footprint(access).form for access in noted.operands]
        plan = self._plans.plan(noted.definition, noted.engine, forms, noted.deciding)
        plan = plan._replace(cycles=0.0, table="", dropped_by=noted.dropped_by)
        now = self.timeline.free_ns(noted.engine)
        return plan, Span(now, now, NO_CAUSE)

    def _untimed(self, noted: Noted) -> tuple[Plan, Span]:
        """Put an instruction whose time is not modelled on the timeline.

        It takes no time, but accesses to its tensors after it wait for those before it.
        """
        places: Places = []
        for access in noted.operands:
            if access is not None:
                self._touch(access, places)
        name, engine = noted.definition.name, noted.engine
        self.untimed[name] += 1
        return Plan(name, engine.name, {}), self.timeline.pass_on(noted.number, engine, places, noted.met_ns or 0.0)

    def _transfer(self, noted: Noted) -> tuple[Plan, Span]:
        definition, met_ns = noted.definition, noted.met_ns
        reads: Places = []
        writes: Places = []
        footprints: list[Footprint] = []
        rows, address = 0, Address.known
        for access in noted.operands:
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
        self._register(noted, reads)
        forms: list[Form | None] = [item.form for item in footprints]
        if len(forms) < len(noted.operands):
            forms.append(None)
        plan = self._plans.plan(definition, noted.engine, forms, noted.deciding, address)
        sides = [item.side for item in footprints]
        if definition.name == "sendrecv_compute":  # the engines read two sources, of which the other core has one
            sides.append(sides[-1])
        work = self._plans.work(tuple(sides), rows, definition.name == "dma_transpose")
        plan = self._plans.moving(plan, work)
        return plan, self.timeline.transfer(noted.number, plan.queue, work, reads, writes, met_ns)

    def repeat(self, period: Period, skip: Skip) -> None:
        """Repeat the instructions of the last period of a loop, for iterations that are skipped."""
        self.notes.repeat(period.first, skip.times, period.ns, skip.instructions)
        self.tally.repeat(skip)
        self.timeline.repeat(period.before, period.numbers, period.ns, skip.times)

    def _touch(self, access: Access, places: Places) -> Footprint:
        """Add a tensor to ``places``, those that an instruction reads or those that it writes."""
        known = access[0]
        footprint = _footprint(access)
        part = footprint.part
        if part is not None:
            places.append(known.uses[part])
            if self._banks is not None and known.views.region is _PSUM:
                vacated = self._banks.use(known)
                if vacated is not None:
                    places.append(vacated)
        return footprint

    def arrival_at_barrier(self, engine: Engine, data: Access) -> float:
        """Return when the core comes to a barrier on ``data``."""
        writes: Places = []
        self._touch(data, writes)
        return self.timeline.arrival(engine, [], writes)

    def arrival_at_exchange(self, src: Access, dst: Access, values: dict[str, Any]) -> float:
        """Return when the core is ready to swap tiles with the other core."""
        reads: Places = []
        writes: Places = []
        self._touch(src, reads)
        to_chip = self._touch(dst, writes).form.is_on_chip
        return self.timeline.trigger_ns(self._plans.queue(values, Address.known, to_chip).name, reads, writes)


def _footprint(access: Access) -> Footprint:
    known, layout, dtype, reach, _ = access
    return known.views.footprint(layout, dtype, reach)
