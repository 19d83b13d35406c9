# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""More tiles where instructions wait until a tile has been read: :func:`more` yields *candidates* (:class:`Candidate`),
which are changes of the launch that may save time.

A *ring* is the tiles that one line of the kernel makes and uses round-robin. A *storage* is the memory of one tile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

from ....memory.capacity import LiveRange
from ....terms.enums import MemoryRegion
from ....timing.recording import CoreProgram
from ....timing.timeline import Waited
from ..facts import joined, times
from ..flow import generations, slot_of, with_uses
from ..study import Candidate, Study, on_each_core

# The most rings, and further tiles for each, that are tried.
_MOST_RINGS = 3
_FURTHER = (1, 2, 3)
_SLOTS = 8


class _Kind(NamedTuple):
    """The tiles of one size that one line of the kernel makes. A line in a function may make tiles of several kinds.

    Attributes:
        place: ``file:line`` in the kernel.
        region: the memory region of the tiles.
        partitions: the number of partitions of a tile.
        nbytes: the bytes of a tile in each partition.
    """

    place: str
    region: MemoryRegion
    partitions: int
    nbytes: int


def _kind_of(life: LiveRange) -> _Kind:
    return _Kind(life.place, life.region, life.partitions, life.nbytes)


class _Ring(NamedTuple):
    """The tiles of one size that one line of the kernel makes and uses round-robin.

    Attributes:
        kind: the line and the size.
        tensor: the shape and type of a tile, as a text.
        made: the number of these tiles on a core.
        storages: the numbers of the storages of these tiles, on all cores.
    """

    kind: _Kind
    tensor: str
    made: int
    storages: frozenset[int]


def _with_more(study: Study, rings: Sequence[_Ring], further: int, program: CoreProgram) -> CoreProgram | None:
    # Each ring has ``further`` more tiles; None if the program cannot use them.
    flow = study.flow(program)
    holders: dict[tuple[int, int], int] = {}
    for ring in rings:
        own = [storage for storage in ring.storages if storage in program.storages]
        slots = [*own, *(slot_of(own[0], number + 1) for number in range(further))] if own else []
        free_from = dict.fromkeys(slots, -1)
        turn = 0
        for storage, first, last, _ in generations(flow, frozenset(own), len(program.steps)):
            order = [slots[(turn + step) % len(slots)] for step in range(len(slots))]
            holder = next((slot for slot in order if free_from[slot] <= first), None)
            if holder is None:
                return None
            turn = (slots.index(holder) + 1) % len(slots)
            free_from[holder] = last
            holders[storage, first] = holder
    return with_uses(program, holders) if holders else None


def _rings(study: Study) -> tuple[list[_Ring], Mapping[_Kind, str]]:
    """Return the rings of tiles that instructions wait to overwrite, most waits first, and a text for each of them.

    The text, by kind of tiles, says which instruction waits until which other one has read the tile.
    """
    facts = study.facts
    waits: Counter[_Kind] = Counter()
    texts: dict[_Kind, Counter[str]] = defaultdict(Counter)
    named: dict[_Kind, str] = {}  # of several tiles of a kind, some may not be waited for
    for core in facts.launch.cores:
        by_storage = {life.storage: life for life in core.lives}
        for number, _, _, span, *_ in core.notes:
            cause = span.cause
            life = by_storage.get(cause.reused) if cause.waited is Waited.reuse and cause.reused else None
            if life is not None:
                kind = _kind_of(life)
                waits[kind] += 1
                named.setdefault(kind, life.tensor.removeprefix("tensor "))
                reader = facts.line(core, number - cause.overwrites)
                if core is facts.core:
                    texts[kind][f"{facts.line(core, number)} waits %s until {reader} has read it"] += 1
    rings: list[_Ring] = []
    for kind, _ in waits.most_common(_MOST_RINGS):
        lives = [(core.number, life) for core in facts.launch.cores for life in core.lives if _kind_of(life) == kind]
        count = Counter(core for core, _ in lives).most_common(1)[0][1]
        if count <= _SLOTS:  # else there are new tiles in each iteration
            rings.append(_Ring(kind, named[kind], count, frozenset(life.storage for _, life in lives)))
    shown = {}
    for kind, waited in texts.items():
        (text, number), *_ = waited.most_common(1)
        shown[kind] = text % times(number)
    return [ring for ring in rings if ring.kind in shown], shown


def more(study: Study) -> Iterator[Candidate]:
    """Yield changes to try: one, two or three more tiles in each of some rings, the fewest additional tiles first."""
    rings, waits = _rings(study)
    sets = [chosen for count in range(1, len(rings) + 1) for chosen in combinations(rings, count)]
    sizes = sorted(((chosen, further) for chosen in sets for further in _FURTHER), key=lambda one: len(one[0]) * one[1])
    for chosen, further in sizes:
        needed: Counter[MemoryRegion] = Counter()
        for ring in chosen:
            needed[ring.kind.region] += further * ring.kind.nbytes
        if any(nbytes > study.room[region] for region, nbytes in needed.items()):
            continue
        made = joined(
            f"{ring.made + further} at {study.facts.short(ring.kind.place)} ({ring.tensor})" for ring in chosen
        )
        yield Candidate(
            "buffers",
            on_each_core(partial(_with_more, study, chosen, further)),
            f"A tile is overwritten too soon: {waits[chosen[0].kind]}. Make more tiles, {made}, and use them "
            f"round-robin",
            (),
            "buffers",
            place=study.facts.short(chosen[0].kind.place),
        )
