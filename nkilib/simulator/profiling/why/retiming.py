# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The time of a launch after a change of its recorded instructions, which are put on new timelines.

:func:`retimed_ns` returns the time of programs (recorded instructions), one for each core. An unchanged program takes
its original time: the instructions wait for each other by the parts of storages that they access, as in the launch.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ...terms.enums import MemoryRegion
from ...timing.dependencies import HbmUses, TileUses, Tracked
from ...timing.parameters import NS_PER_US
from ...timing.recording import Access, CoreProgram, Drain, Step
from ...timing.settling import LOADS, SEQUENCER, Banks
from ...timing.timeline import Places, Timeline
from .critical_path import ENGINES, TimeModel

_PSUM = MemoryRegion.psum


class _Core:
    """The state of a core while its changed program is put on a new timeline."""

    def __init__(self, program: CoreProgram, model: TimeModel) -> None:
        self._program = program
        self._model = model
        self.timeline = Timeline(model.generation, model.parameters)
        self._known: dict[int, Tracked] = {}
        self._banks = Banks() if model.parameters.reuses_psum_banks else None

    def run(self) -> Generator[float, float, None]:
        """Put the instructions on the timeline.

        At each barrier or exchange, the generator yields the time at which this core arrives, and is sent the time at
        which the last core arrives.
        """
        timeline = self.timeline
        for step in self._program.steps:
            if type(step) is Drain:
                (timeline.drain if step.is_wait else timeline.hold_up)(step.after_us, step.register)
                continue
            assert isinstance(step, Step)
            number, action = step.number, step.action
            kind = action.kind
            if kind.dropped_by:
                continue
            reads, writes = self._places(step)
            if kind.work is not None:
                met = (yield timeline.trigger_ns(kind.queue, reads, writes)) if action.meets else None
                timeline.transfer(number, kind.queue, kind.work, reads, writes, met)
            elif action.definition.is_untimed:
                timeline.pass_on(number, ENGINES[kind.engine], writes + reads, 0.0)
            elif kind.cycles:
                if action.choices:
                    ends = [self._end(choice.engine, choice.cycles, reads, writes) for choice in action.choices]
                    kind = action.choices[ends.index(min(ends))]
                timeline.compute(number, ENGINES[kind.engine], kind.cycles, reads, writes, kind.table)
            elif action.meets:
                engine = ENGINES[kind.engine]
                met = yield timeline.arrival(engine, [], reads)
                timeline.meet(number, engine, reads, met)
            elif action.definition.engines == SEQUENCER:
                self._sequence(step, reads, writes)

    def _end(self, engine: str, cycles: float, reads: Places, writes: Places) -> float:
        return self.timeline.would_end(ENGINES[engine], cycles, reads, writes)

    def _sequence(self, step: Step, reads: Places, writes: Places) -> None:
        parameters = self._model.parameters
        is_load = step.action.definition.name in LOADS
        duration = (parameters.register_load_us if is_load else parameters.register_us) * NS_PER_US
        if not parameters.waits_for_registers:
            reads, writes = [], []
        self.timeline.sequence(step.number, ENGINES[step.action.kind.engine], duration, reads, writes)

    def _places(self, step: Step) -> tuple[Places, Places]:
        action = step.action
        reads: Places = []
        writes: Places = []
        written = len(action.definition.output_names)
        for at, access in enumerate(action.operands):
            if access is not None:
                self._touch(access, writes if at < written else reads)
        for access in action.index_reads:
            self._touch(access, reads)
        for access in action.index_writes:
            self._touch(access, writes)
        if step.register and self._model.parameters.waits_for_registers:
            reads.append(self.timeline.register(step.register))
        return reads, writes

    def _touch(self, access: Access, places: Places) -> None:
        number, footprint = access
        known = self._known.get(number)
        if known is None:
            views, is_placed = self._program.storages[number]
            uses = TileUses(number) if footprint.form.is_on_chip else HbmUses(number)
            known = self._known[number] = Tracked(uses, views, "", 0)
            known.has_place = is_placed
        part = footprint.part
        if part is not None:
            places.append(known.uses[part])
            if self._banks is not None and known.views.region is _PSUM:
                vacated = self._banks.use(known)
                if vacated is not None:
                    places.append(vacated)


def _send(run: Generator[float, float, None], met_ns: float) -> float | None:
    try:
        return run.send(met_ns)
    except StopIteration:
        return None


def retimed_ns(programs: Sequence[CoreProgram], model: TimeModel) -> float:
    """Return the time in nanoseconds that the programs of a launch take, one for each core."""
    cores = [_Core(program, model) for program in programs]
    running = [core.run() for core in cores]
    arrivals = [next(run, None) for run in running]
    while any(arrival is not None for arrival in arrivals):
        met = max(arrival for arrival in arrivals if arrival is not None)
        arrivals = [_send(run, met) for run in running]
    return max(core.timeline.end_ns for core in cores)
