# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Larger instructions and longer iterations, as changes that may save time: :func:`larger` yields them.

A *program* is the recorded instructions of a core (its *steps*); a *site* is a call in the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ....terms.enums import Engine
from ....timing.footprints import Footprint, form_of
from ....timing.recording import Access, Action, CoreProgram, Drain, Step
from ..critical_path import ENGINES, LinkKind
from ..flow import slot_of, with_storages, written_operands
from ..study import Candidate, Site, Study, on_each_core

# The most elements of a partition that instructions are joined to, and the most calls that are tried.
_MOST_ELEMENTS = 2048
_MOST_CALLS = 3
# How many iterations of a device loop become one.
_UNROLLED = (2, 4)


def _follows(first: Access, second: Access) -> bool:
    # The second part has the same form and lies directly behind the first one in each partition.
    own, other = first.footprint, second.footprint
    if first.storage != second.storage or own.form is not other.form or own.part is None or other.part is None:
        return False
    is_run = own.form.is_contiguous() and own.form.free_size > 1
    return is_run and other.part.first - own.part.first == own.part.length


def _joined(study: Study, run: list[Step]) -> Step | None:
    # ``run`` is steps of one call on neighbouring columns of the same tiles; None if one instruction cannot do their
    # work.
    first, second = run[0].action, run[1].action
    if first.index_reads or first.index_writes or len(first.operands) != len(second.operands):
        return None
    operands: list[Access | None] = []
    for at, access in enumerate(first.operands):
        others = [step.action.operands[at] for step in run]
        if access is None or all(other == access for other in others):
            if access is not None and at < written_operands(first):
                return None  # all write the same part
            operands.append(access)
            continue
        form = access.footprint.form
        shape = (form.shape[0], form.free_size * len(run))
        wide = form_of(shape, (form.strides[0], 1), form.dtype, form.buffer)
        # The part of the first one stands for all of them, whose neighbours nothing touches in between.
        operands.append(access._replace(footprint=Footprint(wide, access.footprint.part, 0, 1)))
    forms = [None if access is None else access.footprint.form for access in operands]
    kind = study.kinds.kind(first.definition, ENGINES[first.kind.engine], forms, first.deciding)
    rest = [step.action for step in run[1:]]
    written = written_operands(first)
    reads = tuple(access for other in rest for access in other.operands[written:] if access is not None)
    writes = tuple(access for other in rest for access in other.operands[:written] if access is not None)
    action: Action = first._replace(kind=kind, operands=tuple(operands), index_reads=reads, index_writes=writes)
    return run[-1]._replace(action=action)


def _with_larger(study: Study, site: Site, program: CoreProgram) -> CoreProgram | None:
    # None if no steps are joined.
    steps: list[Step | Drain] = []
    run: list[Step] = []
    has_changed = False

    def flush() -> None:
        nonlocal has_changed
        step = _joined(study, run) if len(run) > 1 else None
        has_changed = has_changed or step is not None
        steps.extend(run if step is None else [step])
        run.clear()

    for step in program.steps:
        if not isinstance(step, Step) or step.site != site or step.register:
            flush()
            steps.append(step)
            continue
        if run and not _is_next(run, step):
            flush()
        run.append(step)
    flush()
    return program._replace(steps=steps) if has_changed else None


def _is_next(run: list[Step], step: Step) -> bool:
    pairs = list(zip(run[-1].action.operands, step.action.operands, strict=False))
    if any((one is None) != (other is None) for one, other in pairs):
        return False
    accesses = [(one, other) for one, other in pairs if one and other]
    if not all(one == other or _follows(one, other) for one, other in accesses):
        return False
    widest = max(one.footprint.form.free_size for one, _ in accesses) if accesses else 0
    return any(one != other for one, other in accesses) and (len(run) + 1) * widest <= _MOST_ELEMENTS


def _instructions(study: Study) -> Iterator[Candidate]:
    facts = study.facts
    waited: dict[int, float] = {}
    for link in facts.links_of(LinkKind.issue, LinkKind.work):
        if facts.of(link) is facts.core:
            waited[link.number] = waited.get(link.number, 0.0) + link.duration_ns
    by_site: dict[Site, float] = {}
    for step in study.main.steps:
        if isinstance(step, Step) and step.number in waited and step.action.kind.cycles:
            by_site[step.site] = by_site.get(step.site, 0.0) + waited[step.number]
    for site in sorted(by_site, key=lambda site: -by_site[site])[:_MOST_CALLS]:
        if ENGINES[study.first_steps[site].action.kind.engine] is Engine.tensor:
            continue
        if _with_larger(study, site, study.main) is not None:
            yield Candidate(
                "larger instructions",
                on_each_core(partial(_with_larger, study, site)),
                f"{study.line(site)} works on neighbouring columns of the same tiles one after the other. Let one "
                f"instruction work on up to {_MOST_ELEMENTS:,} columns",
                (site,),
                ("larger instructions", site),
            )


def _unrolled(study: Study, count: int, program: CoreProgram) -> CoreProgram | None:
    # The engines synchronise only after every ``count``-th iteration; None if there is no such device loop.
    steps: list[Step | Drain] = []
    iteration_of: list[int] = []
    seen = iteration = 0
    for step in program.steps:
        if isinstance(step, Drain) and step.is_between:
            seen, iteration = seen + 1, iteration + 1
            if seen % count:
                continue
        elif isinstance(step, Drain):
            seen = 0
        steps.append(step)
        iteration_of.append(iteration)
    if len(steps) == len(program.steps):
        return None
    changed = program._replace(steps=steps)
    flow = study.flow(changed)
    shared: set[int] = set()
    crossing: set[int] = set()
    for at, values in flow.written.items():
        for value in values:
            own = iteration_of[at]
            is_own = all(iteration_of[reader] == own for reader, _ in value.readers)
            (shared if is_own else crossing).add(value.access.storage)
    shared -= crossing
    return with_storages(
        changed,
        lambda at, storage, is_write: slot_of(storage, iteration_of[at] % count) if storage in shared else storage,
    )


def _iterations(study: Study) -> Iterator[Candidate]:
    betweens = [at for at, step in enumerate(study.main.steps) if isinstance(step, Drain) and step.is_between]
    if len(betweens) < 2:
        return
    body = [step for step in study.main.steps[betweens[0] + 1 : betweens[1]] if isinstance(step, Step)]
    if not body:
        return
    for count in _UNROLLED:
        yield Candidate(
            "loops",
            on_each_core(partial(_unrolled, study, count)),
            f"All engines synchronise between two iterations of a device loop, {len(betweens):,} times, first before "
            f"{study.line(body[0].site)}. Do the work of {count} iterations in one, with {count} tiles of each kind",
            (body[0].site,),
            "loops",
        )


def larger(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: join instructions on neighbouring columns, or iterations of device loops."""
    yield from _instructions(study)
    yield from _iterations(study)
