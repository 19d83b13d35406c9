# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Other orders of the instructions of a loop, as changes that may save time: :func:`reordered` yields them.

A *program* is the recorded instructions of a core (its *steps*); a *site* is a call in the kernel. A *loop* is a
stretch of the program in which the same sequence of calls repeats. Two orders are tried. Several iterations run
together: the first call runs for all of them, then the second call, and so on. Or iterations overlap: the first part of
the next iteration runs before the second part of this one. Tiles may then need further slots.

An inner loop is many stretches with the same calls, which change together. The loop around it is tried as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ....timing.recording import CoreProgram, Step
from ....timing.timeline import Waited
from ..flow import generations, reads_of, slot_of, with_uses, writes_of
from ..study import Candidate, Site, Study, on_each_core

# How many iterations run at a time.
_TOGETHER = (2, 4)
# The most places in an iteration at which it may be divided in two.
_MOST_DIVISIONS = 2
_FEWEST = 3
# The number of the first further slot of a tile, apart from those of other changes.
_FIRST_SLOT = 512


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


def _loops(program: CoreProgram, ignored: frozenset[Site] = frozenset()) -> list[_Loop]:
    """Return the loops of a program, in order, without overlaps.

    Args:
        program: the program of a core.
        ignored: calls that cannot begin an iteration: the calls of inner loops, to find the loops around them.
    """
    sites = [step.site if isinstance(step, Step) else None for step in program.steps]
    last: dict[Site, int] = {}
    loops: list[_Loop] = []
    end = 0
    for at, site in enumerate(sites):
        if site is None:
            last.clear()
            continue
        if site in ignored:
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


def _positions(program: CoreProgram, loops: Sequence[_Loop], key: _Key) -> list[int]:
    # The position of each step in the new order.
    positions = list(range(len(program.steps)))
    for loop in loops:
        order = sorted(range(loop.length * loop.times), key=lambda number: key(*divmod(number, loop.length)))
        for place, number in enumerate(order):
            positions[loop.first + number] = loop.first + place
    return positions


def _steps_in(loops: Sequence[_Loop]) -> Iterator[int]:
    for loop in loops:
        yield from range(loop.first, loop.end)


def _is_legal(study: Study, program: CoreProgram, loops: Sequence[_Loop], positions: Sequence[int]) -> bool:
    # Each value must still be written before it is read, and no step may depend on the order otherwise.
    flow = study.flow(program)
    read: set[int] = set()
    written: set[int] = set()
    for at in _steps_in(loops):
        step = program.steps[at]
        if not isinstance(step, Step):
            return False
        action = step.action
        if action.meets or step.register or action.definition.is_untimed:
            return False
        read |= {access.storage for _, access in reads_of(action) if access.footprint.form.is_in_hbm}
        written |= {access.storage for _, access in writes_of(action) if access.footprint.form.is_in_hbm}
        accessed = [*flow.written.get(at, ())]
        accessed += [value for position, _ in reads_of(action) for value in flow.read.get((at, position), ())]
        for value in accessed:
            first = positions[value.writer]
            if any(reader != value.writer and positions[reader] < first for reader, _ in value.readers):
                return False
    return not read & written


# A call in the kernel, and the position of an operand that it writes.
_Operand = tuple[Site, int]


class _Use(NamedTuple):
    """A use of a tile, from the first write of data to the last read of these data.

    ``old_first`` is its start in the old order; ``first`` and ``last`` are its start and end in the new order.
    """

    storage: int
    old_first: int
    first: int
    last: int


def _uses(
    study: Study, program: CoreProgram, loops: Sequence[_Loop], positions: Sequence[int]
) -> Mapping[_Operand, list[_Use]] | None:
    # By the operand of a call with which they begin; None if the new order begins a use with another access.
    flow = study.flow(program)
    storages = {value.access.storage for at in _steps_in(loops) for value in flow.written.get(at, ())}
    by_operand: dict[_Operand, list[_Use]] = {}
    for storage, first, _, following in generations(flow, frozenset(storages), len(program.steps)):
        accesses = {
            at
            for value in flow.by_storage[storage]
            if first <= value.writer < following
            for at in (value.writer, *(reader for reader, _ in value.readers))
        }
        places = [positions[at] for at in accesses]
        if min(places) != positions[first]:
            return None
        step = program.steps[first]
        assert isinstance(step, Step)
        operand = next(value.position for value in flow.written[first] if value.access.storage == storage)
        by_operand.setdefault((step.site, operand), []).append(_Use(storage, first, min(places), max(places)))
    return by_operand


def _held(uses: Sequence[_Use], most: int) -> tuple[dict[tuple[int, int], int], int]:
    """Assign storages, round-robin, to the uses in the new order; return the storage of each use and the number of
    storages.

    The keys of the first result are pairs (storage, first step) of a use in the old order.

    Args:
        uses: the uses of one operand.
        most: the number of storages to use, unless the old order had more, or more are in use at one time.
    """
    slots = list(dict.fromkeys(use.storage for use in uses))
    slots += [slot_of(slots[0], _FIRST_SLOT + number) for number in range(len(slots), most)]
    free_from = dict.fromkeys(slots, -1)
    holders: dict[tuple[int, int], int] = {}
    turn = 0
    for use in sorted(uses, key=lambda use: use.first):
        order = [slots[(turn + step) % len(slots)] for step in range(len(slots))]
        holder = next((slot for slot in order if free_from[slot] <= use.first), None)
        if holder is None:
            holder = slot_of(slots[0], _FIRST_SLOT + len(slots))
            slots.append(holder)
        turn = (slots.index(holder) + 1) % len(slots)
        free_from[holder] = use.last
        holders[use.storage, use.old_first] = holder
    return holders, len(slots)


def _slots(by_operand: Mapping[_Operand, list[_Use]]) -> tuple[dict[tuple[int, int], int], int]:
    """Return the storage of each use in the new order (keys as in :func:`_held`), and the number of tiles that every
    operand gets at least.

    It is the largest need of an operand with too few tiles; 1 if none has too few. Operands that write a new tile
    each time are left out.
    """
    # A call that writes a new tile each time needs no more.
    tiles = {operand: len({use.storage for use in uses}) for operand, uses in by_operand.items()}
    reusing = {operand: uses for operand, uses in by_operand.items() if tiles[operand] < len(uses)}
    needed = {operand: _held(uses, 1)[1] for operand, uses in reusing.items()}
    most = max((count for operand, count in needed.items() if count > tiles[operand]), default=1)
    holders: dict[tuple[int, int], int] = {}
    for uses in reusing.values():
        holders |= _held(uses, most)[0]
    return holders, most


def _in_order(study: Study, program: CoreProgram, loops: Sequence[_Loop], key: _Key) -> tuple[CoreProgram, int] | None:
    # Also returns how many tiles of a kind the new order needs; None if it would change results.
    positions = _positions(program, loops, key)
    uses = _uses(study, program, loops, positions) if _is_legal(study, program, loops, positions) else None
    if uses is None:
        return None
    holders, most = _slots(uses)
    changed = with_uses(program, holders)
    order = sorted(range(len(positions)), key=lambda at: positions[at])
    return changed._replace(steps=[changed.steps[at] for at in order]), most


def _together(count: int) -> _Key:
    return lambda iteration, position: (iteration // count, position, iteration)


def _divided(division: int) -> _Key:
    # Steps of an iteration from ``division`` on come after the first steps of the next iteration.
    return lambda iteration, position: (iteration + (position >= division), position >= division, position)


def _divisions(study: Study, loops: Sequence[_Loop]) -> list[int]:
    # The positions in an iteration whose instructions wait longest for results, on the core that finishes last.
    facts = study.facts
    numbers = {}
    for loop in loops:
        for at in range(loop.first, loop.end):
            step = study.main.steps[at]
            if isinstance(step, Step):
                numbers[step.number] = (at - loop.first) % loop.length
    waited: Counter[int] = Counter()
    for wait in facts.waits:
        if wait.waited is Waited.data and wait.number in numbers:
            waited[numbers[wait.number]] += int(wait.duration_ns)
    return [position for position, _ in waited.most_common(_MOST_DIVISIONS) if position]


def _sites(program: CoreProgram, loop: _Loop) -> tuple[Site, ...]:
    steps = program.steps[loop.first : loop.first + loop.length]
    return tuple(step.site for step in steps if isinstance(step, Step))


def _largest(program: CoreProgram, loops: Sequence[_Loop]) -> list[_Loop]:
    # The loops of equal iterations that have most steps together.
    alike: dict[tuple[Site, ...], list[_Loop]] = {}
    for loop in loops:
        alike.setdefault(_sites(program, loop), []).append(loop)
    return max(alike.values(), key=lambda group: sum(loop.length * loop.times for loop in group), default=[])


def _nest(program: CoreProgram) -> list[list[_Loop]]:
    """Return the largest group of loops with equal iterations, then the group of the loops around them, if there is
    one.
    """
    inner = _largest(program, _loops(program))
    if not inner:
        return []
    outer = _largest(program, _loops(program, frozenset(_sites(program, inner[0]))))
    return [inner, outer] if outer and outer[0].length > inner[0].length else [inner]


def _sorted(study: Study, length: int, key: _Key, program: CoreProgram) -> CoreProgram | None:
    # Only the loops whose iterations have this length.
    own = next((loops for loops in _nest(program) if loops[0].length == length), None)
    found = None if own is None else _in_order(study, program, own, key)
    return None if found is None else found[0]


def reordered(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: several iterations of a loop run together, or successive iterations overlap."""
    for loops in _nest(study.main):
        yield from _reordered(study, loops)


def _reordered(study: Study, loops: Sequence[_Loop]) -> Iterator[Candidate]:
    sites, length = _sites(study.main, loops[0]), loops[0].length
    steps = [step for step in study.main.steps[loops[0].first :][:length] if isinstance(step, Step)]
    lines = [study.line(site) for site in sites]

    def candidate(key: _Key, text: str, chosen: tuple[Site, ...]) -> Iterator[Candidate]:
        found = _in_order(study, study.main, loops, key)
        if found is not None:
            tiles = f", with {found[1]} tiles of a kind, used round-robin, where one was used" if found[1] > 1 else ""
            change = on_each_core(partial(_sorted, study, length, key))
            yield Candidate("order", change, text + tiles, chosen, "order")

    for division in _divisions(study, loops):
        loads = all(step.action.kind.work for step in steps[:division])
        before = "Load for the next iteration" if loads else "Run the first part of the next iteration"
        yield from candidate(
            _divided(division),
            f"{lines[division]} waits for results in each iteration. {before}, "
            f"{' to '.join(dict.fromkeys([lines[0], lines[division - 1]]))}, before it",
            (sites[division], sites[0]),
        )
    for count in _TOGETHER:
        yield from candidate(
            _together(count),
            f"Engines wait for each other in the loop from {lines[0]} to {lines[-1]}. Work on {count} iterations at a "
            f"time, each call for all of them before the next call",
            (sites[0], sites[-1]),
        )
