# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Changes of transfers that may save time: :func:`changed` yields fewer transfers, other queues or other descriptors.

A *program* is the recorded instructions of a core (its *steps*); a *site* is a call in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ....timing.dma import DmaWork, is_software
from ....timing.recording import Access, Action, CoreProgram, Drain, Step
from ..critical_path import LinkKind
from ..facts import NS_PER_US, Finding, joined, largest, percent, summed, times, us
from ..flow import accesses_of, reads_of, with_storages, writes_of
from ..study import Candidate, Site, Study, on_each_core

# The most calls whose transfers are tried in other queues, or made larger.
_MOST_CALLS = 3
# The queue to which some transfers can go, and each how many.
_OTHER_QUEUE = "sync"
_STRIDES = (2, 3)
# The share of the time from which the choice of descriptors matters.
_DIFFERS_FROM = 0.05


def _is_transfer(step: Step | Drain, site: Site | None = None) -> bool:
    if not isinstance(step, Step) or step.action.kind.work is None or step.action.meets:
        return False
    return site is None or step.site == site


def _busy_calls(study: Study) -> list[Site]:
    # Calls of transfers before which the critical path waits for the queue or the first row.
    facts = study.facts
    waited: dict[int, float] = {}
    for link in facts.links_of(LinkKind.trigger, LinkKind.first_byte, LinkKind.busy_dma, LinkKind.rows):
        if facts.of(link) is facts.core:
            waited[link.number] = waited.get(link.number, 0.0) + link.duration_ns
    by_site: dict[Site, float] = {}
    for step in study.main.steps:
        if isinstance(step, Step) and step.number in waited and _is_transfer(step):
            by_site[step.site] = by_site.get(step.site, 0.0) + waited[step.number]
    return sorted(by_site, key=lambda site: -by_site[site])[:_MOST_CALLS]


def _without_repeats(study: Study, site: Site, program: CoreProgram) -> CoreProgram | None:
    # The call loads the same data each time, and then loads them once; None if it does not.
    loads = [(at, step) for at, step in enumerate(program.steps) if isinstance(step, Step) and step.site == site]
    actions = [step.action for _, step in loads]
    if len(loads) < 2 or not all(_is_transfer(step) and not step.register for _, step in loads):
        return None
    sources = {tuple(access for _, access in reads_of(action)) for action in actions}
    if len(sources) != 1 or any(action.index_reads or action.index_writes for action in actions):
        return None
    written = {
        access.storage for step in program.steps if isinstance(step, Step) for _, access in writes_of(step.action)
    }
    if any(access.storage in written for access in next(iter(sources))):
        return None
    flow = study.flow(program)
    targets: list[Access] = []
    for at, _ in loads:
        values = flow.written.get(at, ())
        if len(values) != 1:
            return None
        (target,) = values
        if any(_step(program, value.writer).site != site for value in flow.by_storage[target.access.storage]):
            return None
        targets.append(target.access)
    if len({access.footprint for access in targets}) != 1:
        return None
    storages = {access.storage for access in targets}
    first = targets[0].storage
    left_out = {at for at, _ in loads[1:]}
    changed = with_storages(program, lambda at, storage, is_write: first if storage in storages else storage)
    return changed._replace(steps=[step for at, step in enumerate(changed.steps) if at not in left_out])


def _joined_work(works: Sequence[DmaWork]) -> DmaWork:
    spent = summed(pair for work in works for pair in work.times)
    is_even = all(work.is_even for work in works)
    return DmaWork(sorted(spent.items()), is_even, sum(work.nbytes for work in works), works[0].row_bytes)


def _as_one(steps: Sequence[Step]) -> Step:
    action = steps[0].action
    works = [step.action.kind.work for step in steps if step.action.kind.work is not None]
    others = [step.action for step in steps[1:]]
    reads = tuple(access for other in others for _, access in reads_of(other))
    writes = tuple(access for other in others for _, access in writes_of(other))
    kind = action.kind._replace(work=_joined_work(works))
    joined_action: Action = action._replace(kind=kind, index_reads=reads, index_writes=writes)
    return steps[-1]._replace(action=joined_action)


def _on_chip(step: Step) -> int | None:
    # The number of the on-chip storage that a transfer loads or stores.
    accesses = [access for _, access in accesses_of(step.action)]
    return next((access.storage for access in accesses if access.footprint.form.is_on_chip), None)


def _goes_on(before: Step, step: Step) -> bool:
    # In both of its tensors the transfer begins where ``before`` ended, so that one transfer could move both.
    for (_, own), (_, other) in zip(accesses_of(before.action), accesses_of(step.action), strict=False):
        part, following = own.footprint.part, other.footprint.part
        if own.storage != other.storage or own.footprint.form is not other.footprint.form:
            return False
        if part is None or following is None:
            return False
        # The next columns of the same rows, or the next rows.
        if following.first - part.first not in (part.length, part.step * part.count or part.length):
            return False
    return True


def _runs(site: Site, program: CoreProgram) -> list[list[int]]:
    """Return groups of transfers of the call ``site``, as lists of indices of steps.

    The transfers of a group move adjacent parts of one tile. Between them there are only transfers of other tiles.
    """
    runs: list[list[int]] = []
    is_open = False
    for at, step in enumerate(program.steps):
        if isinstance(step, Step) and _is_transfer(step, site) and not step.register and _on_chip(step) is not None:
            if is_open and _goes_on(_step(program, runs[-1][-1]), step):
                runs[-1].append(at)
            else:
                runs.append([at])
            is_open = True
        elif is_open:
            is_open = _is_transfer(step) and not _touches(step, _on_chip(_step(program, runs[-1][0])))
    return [run for run in runs if len(run) > 1]


def _larger(site: Site, program: CoreProgram) -> CoreProgram | None:
    # Each group of transfers becomes a single transfer; None if there is no group.
    replaced: dict[int, list[Step]] = {}
    for run in _runs(site, program):
        replaced |= {at: [] for at in run}
        replaced[run[-1]] = [_as_one([_step(program, at) for at in run])]
    if not replaced:
        return None
    steps = [new for at, step in enumerate(program.steps) for new in replaced.get(at, [step])]
    return program._replace(steps=steps)


def _step(program: CoreProgram, at: int) -> Step:
    step = program.steps[at]
    assert isinstance(step, Step)
    return step


def _touches(step: Step | Drain, storage: int | None) -> bool:
    return isinstance(step, Step) and any(access.storage == storage for _, access in accesses_of(step.action))


def _requeued(site: Site, stride: int, program: CoreProgram) -> CoreProgram | None:
    # Every ``stride``-th transfer of the call goes to another queue; None if there are too few.
    seen = 0
    steps: list[Step | Drain] = []
    for step in program.steps:
        if isinstance(step, Step) and _is_transfer(step, site):
            seen += 1
            if (
                seen % stride == 0
                and step.action.kind.queue != _OTHER_QUEUE
                and not is_software(step.action.kind.queue)
            ):
                kind = step.action.kind._replace(queue=_OTHER_QUEUE, other_queue="")
                step = step._replace(action=step.action._replace(kind=kind))
        steps.append(step)
    return program._replace(steps=steps) if seen >= stride else None


def _casts(step: Step) -> bool:
    types = {access.footprint.form.dtype for _, access in accesses_of(step.action)}
    return len(types) > 1


def _redescribed(program: CoreProgram) -> CoreProgram | None:
    # The other kind of descriptors wherever the compiler chooses; None if it never does.
    steps: list[Step | Drain] = []
    has_changed = False
    for step in program.steps:
        if isinstance(step, Step) and step.action.kind.other_queue:
            kind = step.action.kind
            kind = kind._replace(queue=kind.other_queue, other_queue="")
            step, has_changed = step._replace(action=step.action._replace(kind=kind)), True
        steps.append(step)
    return program._replace(steps=steps) if has_changed else None


def _repeated(study: Study) -> Iterator[Candidate]:
    for site, step in study.first_steps.items():
        if _is_transfer(step) and _without_repeats(study, site, study.main) is not None:
            count = sum(isinstance(other, Step) and other.site == site for other in study.main.steps)
            yield Candidate(
                "repeated load",
                on_each_core(partial(_without_repeats, study, site)),
                f"{study.line(site)} loads the same data {times(count)} into a tile that nothing else writes. Load "
                f"them once, before the loop",
                (site,),
                ("repeated load", site),
            )


def changed(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: of transfers that the critical path waits for, of repeated loads, and of descriptors."""
    yield from _repeated(study)
    for site in _busy_calls(study):
        runs = _runs(site, study.main)
        if runs:
            yield Candidate(
                "transfers",
                on_each_core(partial(_larger, site)),
                f"{study.line(site)} moves a tile in up to {max(map(len, runs))} transfers. Move it in one",
                (site,),
                ("transfers", site),
            )
        if _casts(study.first_steps[site]) or study.first_steps[site].register:
            continue
        for stride in _STRIDES:
            which = "second" if stride == 2 else "third"
            yield Candidate(
                "queues",
                on_each_core(partial(_requeued, site, stride)),
                f"The queue of {study.first_steps[site].action.kind.queue}s triggers one transfer after the other. "
                f"Trigger every {which} transfer of {study.line(site)} from another queue, with "
                f"dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.{_OTHER_QUEUE}",
                (site,),
                ("queues", site),
            )
    yield from _described(study)


def _words(study: Study, queue: str) -> str:
    # The kind of descriptors, and the time between two triggers.
    if is_software(queue):
        kind = "software descriptors, which GpSimd writes"
    elif study.model.generation.timing.dma.has_hardware_descriptors:
        kind = "hardware descriptors"
    else:
        kind = "descriptors that the host has written"
    return f"{kind} (a trigger every {us(study.model.trigger_ns(queue))} in each direction)"


class _Choice(NamedTuple):
    """The transfers for which the kernel leaves the kind of descriptors to the compiler.

    Attributes:
        transfers: the number of these transfers, on all cores.
        text: the part of a message that gives the number of transfers and the calls that issue most of them.
        sites: the calls that issue them.
        queue: the queue on which the model runs the first of them.
        other: the queue on which it would run with the other kind of descriptors, software or hardware.
    """

    transfers: int
    text: str
    sites: tuple[Site, ...]
    queue: str
    other: str


def _choice(study: Study) -> _Choice | None:
    steps = [step for program in study.programs for step in program.steps if isinstance(step, Step)]
    open_ones = [step for step in steps if step.action.kind.other_queue]
    if not open_ones:
        return None
    counts = summed((study.line(step.site), 1.0) for step in open_ones)
    lines = joined(f"{line} ({times(int(count))})" for line, count in largest(counts))
    kind = open_ones[0].action.kind
    sites = tuple(dict.fromkeys(step.site for step in open_ones))
    text = f"of {len(open_ones):,} transfers to it, most at {lines}"
    return _Choice(len(open_ones), text, sites, kind.queue, kind.other_queue)


def _described(study: Study) -> Iterator[Candidate]:
    # The kernel asks for hardware descriptors where the model assumes software descriptors.
    choice = _choice(study)
    if choice is not None and is_software(choice.queue):
        yield Candidate(
            "descriptors",
            on_each_core(_redescribed),
            f"The time depends on the compiler: the kernel leaves the kind of descriptors {choice.text}. The model "
            f"takes {_words(study, choice.queue)}. Ask for {_words(study, choice.other)} with dma_copy(dge_mode=)",
            choice.sites,
            "descriptors",
        )


def choice_of_descriptors(study: Study) -> Iterator[Finding]:
    """Yield a finding if the launch takes at least 5% longer with the software descriptors that the compiler may
    choose.
    """
    choice = _choice(study)
    if choice is None or is_software(choice.queue):
        return
    pause_ns = study.model.trigger_ns(choice.other) - study.model.trigger_ns(choice.queue)
    if choice.transfers * pause_ns < _DIFFERS_FROM * study.time_ns:  # no path through the launch gets longer by more
        return
    more_ns = -study.saved_ns(on_each_core(_redescribed))
    if more_ns < _DIFFERS_FROM * study.time_ns:
        return
    yield Finding(
        "choice of descriptors",
        f"The time depends on the compiler: the kernel leaves the kind of descriptors {choice.text}. With "
        f"{_words(study, choice.queue)}, as modelled here, the launch takes {us(study.time_ns)}; with "
        f"{_words(study, choice.other)}, it would take {us(study.time_ns + more_ns)} "
        f"({percent(more_ns / study.time_ns)} more).",
        more_ns / NS_PER_US,
        study.place(choice.sites[0]),
        places=tuple(study.place(site) for site in choice.sites),
        numbers=tuple(study.first_steps[site].number for site in choice.sites),
    )
