# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Other orders of the instructions of a loop: :func:`reordered` yields the candidates.

A loop is a stretch of the program in which the same calls follow each other again and again. Its iterations can run
several at a time, each call for all of them before the next call; or the second part of an iteration can come after the
first part of the next one. Tiles that an iteration writes and reads then need further slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ....timing.recording import CoreProgram, Step
from ....timing.timeline import Waited
from ..flow import reads_of, slot_of, with_storages, writes_of
from ..study import Candidate, Site, Study, on_each_core

# How many iterations run at a time.
_TOGETHER = (2, 4)
# The most places in an iteration at which it may be divided in two.
_MOST_DIVISIONS = 2
_FEWEST = 3


class _Loop(NamedTuple):
    """A stretch of a program in which the same calls repeat.

    Attributes:
        first: the index of its first step.
        length: the number of steps of an iteration.
        times: the number of iterations.
    """

    first: int
    length: int
    times: int

    @property
    def end(self) -> int:
        return self.first + self.length * self.times


def _loops(program: CoreProgram) -> list[_Loop]:
    """Return the stretches of a program in which calls repeat, the longest iterations first, without overlaps."""
    sites = [step.site if isinstance(step, Step) else None for step in program.steps]
    last: dict[Site, int] = {}
    loops: list[_Loop] = []
    end = 0
    for at, site in enumerate(sites):
        if site is None:
            last.clear()
            continue
        before = last.get(site)
        last[site] = at
        if before is None or before < end:
            continue
        length = at - before
        body = sites[before:at]
        count = 1
        while sites[before + count * length : before + (count + 1) * length] == body:
            count += 1
        if count >= _FEWEST and length > 1:
            loops.append(_Loop(before, length, count))
            end = loops[-1].end
    return loops


# From the number of an iteration and the position in it: what steps are sorted by.
_Key = Callable[[int, int], tuple[int, ...]]


def _is_legal(study: Study, program: CoreProgram, loop: _Loop, key: _Key) -> bool:
    """Tell whether each value is still written before it is read, and no step depends on the order otherwise."""
    flow = study.flow(program)
    steps = program.steps
    read: set[int] = set()
    written: set[int] = set()
    for at in range(loop.first, loop.end):
        step = steps[at]
        assert isinstance(step, Step)
        action = step.action
        if action.meets or step.register or action.definition.is_untimed:
            return False
        read |= {access.storage for _, access in reads_of(action) if access.footprint.form.is_in_hbm}
        written |= {access.storage for _, access in writes_of(action) if access.footprint.form.is_in_hbm}
        for value in flow.written.get(at, ()):
            for reader, _ in value.readers:
                if loop.first <= reader < loop.end and not _comes_before(loop, key, at, reader):
                    return False
    return not read & written


def _comes_before(loop: _Loop, key: _Key, first: int, second: int) -> bool:
    own, other = (divmod(at - loop.first, loop.length) for at in (first, second))
    return own == other or key(*own) < key(*other)


def _crossing(study: Study, program: CoreProgram, loop: _Loop) -> frozenset[int]:
    """Return the storages with values that one iteration writes and another one, or a later step, reads."""
    crossing: set[int] = set()
    for at in range(loop.first, loop.end):
        for value in study.flow(program).written.get(at, ()):
            own = (at - loop.first) // loop.length
            if any(reader >= loop.end or (reader - loop.first) // loop.length != own for reader, _ in value.readers):
                crossing.add(value.access.storage)
    return frozenset(crossing)


def _in_order(study: Study, program: CoreProgram, loop: _Loop, key: _Key, slots: int) -> CoreProgram | None:
    """Return a program in which the steps of a loop are sorted by a key, with further slots for its tiles."""
    if not _is_legal(study, program, loop, key):
        return None
    crossing = _crossing(study, program, loop)
    written = {
        value.access.storage for at in range(loop.first, loop.end) for value in study.flow(program).written.get(at, ())
    }
    # Values that live longer than an iteration stay where they are, if the order of their writers does.
    if crossing and any(not _keeps_order(study, program, loop, key, storage) for storage in crossing):
        return None
    shared = written - crossing

    def moved(at: int, storage: int, is_write: bool) -> int:
        if storage not in shared or not loop.first <= at < loop.end:
            return storage
        return slot_of(storage, (at - loop.first) // loop.length % slots)

    changed = with_storages(program, moved)
    order = sorted(range(loop.length * loop.times), key=lambda number: key(*divmod(number, loop.length)))
    steps = changed.steps
    return changed._replace(
        steps=[*steps[: loop.first], *(steps[loop.first + number] for number in order), *steps[loop.end :]]
    )


def _keeps_order(study: Study, program: CoreProgram, loop: _Loop, key: _Key, storage: int) -> bool:
    """Tell whether all steps of a loop that access a storage stay in their order."""
    uses = sorted(
        {
            at
            for value in study.flow(program).by_storage[storage]
            for at in (value.writer, *(reader for reader, _ in value.readers))
            if loop.first <= at < loop.end
        }
    )
    keys = [key(*divmod(at - loop.first, loop.length)) for at in uses]
    return keys == sorted(keys)


def _together(count: int) -> _Key:
    return lambda iteration, position: (iteration // count, position, iteration)


def _divided(division: int) -> _Key:
    """Return the key of an order in which an iteration from a position on comes after the start of the next one."""
    return lambda iteration, position: (iteration + (position >= division), position >= division, position)


def _divisions(study: Study, loop: _Loop) -> list[int]:
    """Return the positions in an iteration whose instructions wait longest for results, on the core done last."""
    facts = study.facts
    numbers = {}
    for at in range(loop.first, loop.end):
        step = study.main.steps[at]
        if isinstance(step, Step):
            numbers[step.number] = (at - loop.first) % loop.length
    waited: Counter[int] = Counter()
    for wait in facts.waits:
        if wait.waited is Waited.data and wait.number in numbers:
            waited[numbers[wait.number]] += int(wait.duration_ns)
    return [position for position, _ in waited.most_common(_MOST_DIVISIONS) if position]


def _largest(loops: Sequence[_Loop]) -> _Loop | None:
    return max(loops, key=lambda loop: loop.length * loop.times, default=None)


def reordered(study: Study) -> Iterator[Candidate]:
    """Yield candidates that run the iterations of the longest loop several at a time, or overlapped by a part."""
    loop = _largest(_loops(study.main))
    if loop is None:
        return

    def candidate(key: _Key, slots: int, text: str, sites: tuple[Site, ...]) -> Candidate:
        def change(program: CoreProgram) -> CoreProgram | None:
            own = _largest(_loops(program))
            return None if own is None or own.length != loop.length else _in_order(study, program, own, key, slots)

        return Candidate("order", on_each_core(change), text, sites, "order")

    def site(position: int) -> Site:
        step = study.main.steps[loop.first + position]
        assert isinstance(step, Step)
        return step.site

    first, last = site(0), site(loop.length - 1)
    for division in _divisions(study, loop):
        begin, parts = site(division), dict.fromkeys([study.line(first), study.line(site(division - 1))])
        loads = all(study.first_steps[site(position)].action.kind.work for position in range(division))
        before = "Load for the next iteration" if loads else "Run the first part of the next iteration"
        yield candidate(
            _divided(division),
            2,
            f"{study.line(begin)} waits for results in each iteration. {before}, {' to '.join(parts)}, before it, "
            f"with two tiles of each kind used round-robin",
            (begin, first),
        )
    for count in _TOGETHER:
        yield candidate(
            _together(count),
            count,
            f"Engines wait for each other in the loop from {study.line(first)} to {study.line(last)}. Work on {count} "
            f"iterations at a time, each call for all of them before the next call, with {count} tiles of each kind",
            (first, last),
        )
