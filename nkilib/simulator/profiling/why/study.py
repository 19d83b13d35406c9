# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The trial of changes on the recorded programs of a launch: which of them save time in the model, and how much.

- :class:`Study`: the programs of the launch, on which :meth:`Study.advice` tries candidates;
- :class:`Candidate`: a change that may save time, with the sentence that asks for it.

A *program* is the recorded instructions of a core (its *steps*); a *call* (:data:`Site`) is a call in the source of the
kernel, which may issue many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from ...terms.enums import MemoryRegion
from ...timing.instruction import InstructionKinds, kinds_for
from ...timing.recording import CoreProgram, Step
from .critical_path import AnalysedCore
from .facts import NS_PER_US, Facts, Finding, percent, us
from .flow import Flow
from .retiming import retimed_ns

# The share of the time from which a saving is worth an advice.
SAVED_FROM = 0.02
# Of a long launch a beginning of this number of instructions tells which changes to try on all of it, and how many.
_SHORT = 4_000
_MOST_TRIED_WHOLE = 10
# A change is not tried on the whole launch if it saves a smaller share of the beginning.
_PROMISING_FROM = 0.01
# Of alternatives the first one is taken that saves this share of what the best one does.
_ENOUGH = 0.93

Programs = Sequence[CoreProgram]
Change = Callable[[Programs], Programs | None]
Site = tuple[int, int]


class Candidate(NamedTuple):
    """A change that may save time.

    Attributes:
        about: the kind of change; see :class:`.facts.Finding`.
        change: the function that makes the changed programs; it returns None if it does not apply.
        text: the sentence that asks for the change, without its full stop.
        sites: the calls in the kernel that it is about, the main one first.
        group: a value that alternatives share. Of a group one is recommended: the first one that saves nearly as much
            as the best.
        calls: the calls to write instead.
        place: ``file:line``; empty for the line of the first call.
    """

    about: str
    change: Change
    text: str
    sites: tuple[Site, ...]
    group: object
    calls: tuple[str, ...] = ()
    place: str = ""


class Study:
    """The programs of a launch, on which changes are tried.

    Attributes:
        facts: the facts about the launch.
        programs: the recorded program of each core.
        room: the bytes of a partition that the launch leaves free, by memory region.
    """

    def __init__(self, facts: Facts, room: Mapping[MemoryRegion, int]) -> None:
        self.facts = facts
        self.model = facts.launch.model
        self.room = room
        self.programs: Programs = [core.program for core in facts.launch.cores]
        self._flows: dict[int, tuple[CoreProgram, Flow]] = {}

    @cached_property
    def kinds(self) -> InstructionKinds:
        """The kinds of instructions, with their costs, in the model of the launch."""
        return kinds_for(self.model.generation, self.model.parameters)

    @cached_property
    def time_ns(self) -> float:
        """The time that the recorded programs take, in nanoseconds."""
        return self.facts.time_ns

    @property
    def main(self) -> CoreProgram:
        """The program of the core that finishes last."""
        core = self.facts.core
        return next(
            program for program, other in zip(self.programs, self.facts.launch.cores, strict=True) if other is core
        )

    @cached_property
    def first_steps(self) -> dict[Site, Step]:
        """The first step of each call in the kernel, if possible on the core that finishes last."""
        return {site: step for site, (_, step) in self._firsts.items()}

    @cached_property
    def _firsts(self) -> dict[Site, tuple[AnalysedCore, Step]]:
        firsts: dict[Site, tuple[AnalysedCore, Step]] = {}
        last = self.facts.core
        for core in (last, *(core for core in self.facts.launch.cores if core is not last)):
            for step in core.program.steps:
                if isinstance(step, Step):
                    firsts.setdefault(step.site, (core, step))
        return firsts

    def flow(self, program: CoreProgram) -> Flow:
        """Return the flow of values in a program, from a cache."""
        known = self._flows.get(id(program))
        if known is None:
            known = self._flows[id(program)] = program, Flow(program)
        return known[1]

    def place(self, site: Site) -> str:
        """Return ``file:line`` of a call."""
        core, step = self._firsts[site]
        return self.facts.short(core.place(step.number))

    def line(self, site: Site) -> str:
        """Return ``file:line`` of a call and the name of the instruction."""
        core, step = self._firsts[site]
        return self.facts.line(core, step.number)

    def advice(self, candidates: Iterable[Candidate]) -> Iterator[Finding]:
        """Try candidates, and yield a finding for each that saves enough, at most one for each group."""
        by_group: dict[object, list[tuple[Candidate, float]]] = {}
        for candidate, saved_ns in self._tried(list(candidates)):
            by_group.setdefault(candidate.group, []).append((candidate, saved_ns))
        for tried in by_group.values():
            best = max(saved_ns for _, saved_ns in tried)
            least = max(_ENOUGH * best, SAVED_FROM * self.time_ns)
            for candidate, saved_ns in tried:
                if saved_ns >= least:
                    yield self._finding(candidate, saved_ns)
                    break

    def saved_ns(self, change: Change) -> float:
        """Return the time in nanoseconds that a change of the whole launch saves; 0 if it does not apply."""
        changed = change(self.programs)
        return 0.0 if changed is None else self.time_ns - retimed_ns(changed, self.model)

    def _tried(self, candidates: list[Candidate]) -> Iterator[tuple[Candidate, float]]:
        # Of a long launch, only those candidates are tried that save most on its beginning.
        if self._beginning is not None:
            short, short_ns = self._beginning
            promising: list[tuple[float, int]] = []
            for number, candidate in enumerate(candidates):
                changed = candidate.change(short)
                share = 0.0 if changed is None else 1.0 - retimed_ns(changed, self.model) / short_ns
                if share >= _PROMISING_FROM:
                    promising.append((-share, number))
            candidates = [candidates[number] for number in sorted(n for _, n in sorted(promising)[:_MOST_TRIED_WHOLE])]
        for candidate in candidates:
            yield candidate, self.saved_ns(candidate.change)

    @cached_property
    def _beginning(self) -> tuple[Programs, float] | None:
        # The first instructions of a long launch, with their time; None if the launch is short.
        if sum(len(program.steps) for program in self.programs) <= 2 * _SHORT:
            return None
        each = _SHORT // len(self.programs)
        short = [CoreProgram(program.steps[:each], program.storages) for program in self.programs]
        return short, retimed_ns(short, self.model)

    def _finding(self, candidate: Candidate, saved_ns: float) -> Finding:
        before, after = us(self.time_ns), us(self.time_ns - saved_ns)
        places = tuple(dict.fromkeys(self.place(site) for site in candidate.sites if site in self.first_steps))
        numbers = tuple(self.first_steps[site].number for site in candidate.sites if site in self.first_steps)
        return Finding(
            candidate.about,
            f"{candidate.text}. The model then takes {after} instead of {before} "
            f"({percent(saved_ns / self.time_ns)} less).",
            saved_ns / NS_PER_US,
            candidate.place or (places[0] if places else ""),
            saved_ns / NS_PER_US,
            places,
            numbers,
            candidate.calls,
        )


def on_each_core(change: Callable[[CoreProgram], CoreProgram | None]) -> Change:
    """Return a change of a whole launch that makes ``change`` on the program of each core.

    The result applies if ``change`` applies to at least one core.
    """

    def changed(programs: Programs) -> Programs | None:
        results = [change(program) for program in programs]
        if all(result is None for result in results):
            return None
        return [before if result is None else result for before, result in zip(programs, results, strict=True)]

    return changed
