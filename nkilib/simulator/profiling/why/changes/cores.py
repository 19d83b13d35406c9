# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The division of work between the cores, a change that may save time: :func:`divided` yields it, if all cores do the
same work.

A *program* is the recorded instructions of a core (its *steps*); a *store* is a transfer to HBM.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....timing.recording import Access, CoreProgram, Step
from ..facts import joined, largest
from ..flow import reads_of, writes_of
from ..study import Candidate, Programs, Study


def _stores(program: CoreProgram) -> list[int]:
    # The indices of transfers whose results leave the kernel: they write a tensor in HBM that the program does not
    # read.
    steps = [(at, step) for at, step in enumerate(program.steps) if isinstance(step, Step)]
    read = {access.storage for _, step in steps for _, access in reads_of(step.action) if _is_in_hbm(access)}
    return [
        at
        for at, step in steps
        if step.action.kind.work is not None
        and any(_is_in_hbm(access) and access.storage not in read for _, access in writes_of(step.action))
    ]


def _is_in_hbm(access: Access) -> bool:
    return access.footprint.form.is_in_hbm


def _part(study: Study, program: CoreProgram, number: int, count: int) -> CoreProgram | None:
    """Return a program with one of ``count`` equal parts of the stores, and the steps that this part needs.

    Args:
        study: the study of the launch.
        program: the program to divide.
        number: the number of the part, from 0.
        count: the number of parts.

    Returns:
        None if the part has all stores.
    """
    stores = _stores(program)
    left_out = {at for order, at in enumerate(stores) if order * count // len(stores) != number}
    if not left_out:
        return None
    flow = study.flow(program)
    needed: set[int] = set()
    for at in range(len(program.steps) - 1, -1, -1):
        step = program.steps[at]
        if not isinstance(step, Step) or at in left_out:
            continue
        values = flow.written.get(at, ())
        is_result = (
            step.action.meets or not values or any(not _is_computed(access) for _, access in writes_of(step.action))
        )
        if is_result or at in needed:
            needed.add(at)
            for position, _ in reads_of(step.action):
                needed.update(value.writer for value in flow.read.get((at, position), ()))
    kept = [step for at, step in enumerate(program.steps) if not isinstance(step, Step) or at in needed]
    return program._replace(steps=kept)


def _is_computed(access: Access) -> bool:
    return access.footprint.form.is_on_chip


def divided(study: Study) -> Iterator[Candidate]:
    """Yield the change to try, if all cores do the same work: each core makes an equal part of the stores, and runs the
    instructions that these stores need.
    """
    stored = study.facts.launch.stored_by_every_core
    if not stored:
        return

    def change(programs: Programs) -> Programs | None:
        parts = [_part(study, program, number, len(programs)) for number, program in enumerate(programs)]
        return None if None in parts else [part for part in parts if part is not None]

    facts = study.facts
    (line, _), *_ = largest(facts.by_line(facts.links))
    yield Candidate(
        "same work",
        change,
        f"Both cores do the same work: they run equal numbers of each instruction, load the same data and store the "
        f"same parts of {joined(stored)}. Most of the time is spent at {line}. Give each core a part of the work "
        f"with nl.program_id(0)",
        (),
        "same work",
        place=line.rpartition(" ")[0],
    )
