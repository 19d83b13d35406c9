# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The flow of values through the on-chip tensors of a recorded program, and programs with other tensors.

- :class:`Flow`: the :class:`Value` of each write, with the instructions that read it;
- :func:`operand`, :func:`parameter_of`: the operands of an action by name;
- :func:`reads_of`, :func:`writes_of`, :func:`accesses_of`: all accesses of an action;
- :func:`with_storages`, :func:`with_uses`: the program with other storages instead of some.

A *program* is the recorded instructions of a core (its *steps*); an *action* is the instruction of a step with its
tensors. A *storage* is the memory of one tensor; a *part* is the bytes of it that one operand occupies. The *position*
of an access is the index of the operand; for other accesses, such as index tensors, it is
:data:`BESIDES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from ...machine.issue import REGISTRY
from ...timing.footprints import OccupiedBytes, Views
from ...timing.instruction import roles_of
from ...timing.recording import Access, Action, CoreProgram, Drain, Step

# The position of an access that is no operand: an index, or a tensor that an index chooses from.
BESIDES = -1
# The slot of a tile that a changed program has besides the tiles of the launch; see :func:`slot_of`.
NEW_TILE = 1000

# By the number of each storage, its views, and whether its place in PSUM is given.
Storages = dict[int, tuple[Views, bool]]


def written_operands(action: Action) -> int:
    """Return the number of operands that an action writes; they come first."""
    return len(roles_of(action.definition).writes)


@lru_cache(maxsize=1024)
def operand_names(name: str) -> tuple[str, ...]:
    """Return the parameters of an instruction that may be tensors, in the order of an action's operands.

    The result is empty for an instruction of another module than ``nki.isa``.
    """
    definition = REGISTRY.get(name)
    return () if definition is None else tuple(definition.names[at] for at in roles_of(definition).tensors)


def parameter_of(action: Action, position: int) -> str:
    """Return the name of the parameter of the operand at ``position``; empty if it is not known, as in a list of
    tensors.
    """
    names = operand_names(action.definition.name)
    return names[position] if position < len(names) else ""


def position_of(action: Action, parameter: str) -> int | None:
    """Return the position of the operand for ``parameter``; None if the instruction has no such parameter."""
    names = operand_names(action.definition.name)
    return names.index(parameter) if parameter in names else None


def operand(action: Action, parameter: str) -> Access | None:
    """Return the operand for ``parameter``; None if there is none, or if it is a number."""
    at = position_of(action, parameter)
    return None if at is None or at >= len(action.operands) else action.operands[at]


def reads_of(action: Action) -> Iterator[tuple[int, Access]]:
    """Yield the position and the part of each tensor that an action reads."""
    for at in range(written_operands(action), len(action.operands)):
        access = action.operands[at]
        if access is not None:
            yield at, access
    for access in action.index_reads:
        yield BESIDES, access


def writes_of(action: Action) -> Iterator[tuple[int, Access]]:
    """Yield the position and the part of each tensor that an action writes."""
    for at in range(min(written_operands(action), len(action.operands))):
        access = action.operands[at]
        if access is not None:
            yield at, access
    for access in action.index_writes:
        yield BESIDES, access


def accesses_of(action: Action) -> Iterator[tuple[int, Access]]:
    """Yield the position and the part of each tensor that an action writes, then of each that it reads."""
    yield from writes_of(action)
    yield from reads_of(action)


class Value:
    """The data that one instruction writes to a part of an on-chip tensor.

    Attributes:
        access: the part.
        writer: the index of the step that writes it.
        position: the position, in the writing step, of the operand that is written.
        readers: for each read, the index of the reading step and the position of its operand.
        is_whole: whether each read is of exactly the part that was written.
    """

    __slots__ = ("access", "is_whole", "position", "readers", "writer")

    def __init__(self, access: Access, writer: int, position: int) -> None:
        self.access = access
        self.writer = writer
        self.position = position
        self.readers: list[tuple[int, int]] = []
        self.is_whole = True

    @property
    def last_use(self) -> int:
        """The index of the last step that reads the value; if none does, of the step that writes it."""
        return self.readers[-1][0] if self.readers else self.writer


class Flow:
    """The values in the on-chip tensors of a program.

    Attributes:
        written: the values that a step writes, by the index of the step.
        read: the values that a step reads at an operand, by the index of the step and the position of the operand.
        by_storage: the values of each storage in the order in which they are written, by the number of the storage.
    """

    def __init__(self, program: CoreProgram) -> None:
        self.written: defaultdict[int, list[Value]] = defaultdict(list)
        self.read: defaultdict[tuple[int, int], list[Value]] = defaultdict(list)
        self.by_storage: defaultdict[int, list[Value]] = defaultdict(list)
        self._live: defaultdict[int, list[Value]] = defaultdict(list)
        for at, step in enumerate(program.steps):
            if isinstance(step, Step) and not step.action.kind.dropped_by:
                self._add(at, step.action)

    def _add(self, at: int, action: Action) -> None:
        for position, access in reads_of(action):
            for value in self._meeting(access):
                value.readers.append((at, position))
                value.is_whole &= value.access.footprint.part is access.footprint.part
                self.read[at, position].append(value)
        leaves = any(rule.may_leave for rule, _ in action.definition.outputs)
        for position, access in writes_of(action):
            part = access.footprint.part
            if part is None or not access.footprint.form.is_on_chip:
                continue
            if leaves or position == BESIDES:
                for value in self._meeting(access):
                    value.readers.append((at, BESIDES))
                    value.is_whole = False
                    self.read[at, BESIDES].append(value)
            live = self._live[access.storage]
            live[:] = [value for value in live if not part.covers(_part(value))]
            value = Value(access, at, position)
            live.append(value)
            self.written[at].append(value)
            self.by_storage[access.storage].append(value)

    def _meeting(self, access: Access) -> list[Value]:
        part = access.footprint.part
        if part is None or not access.footprint.form.is_on_chip:
            return []
        return [value for value in self._live[access.storage] if _part(value).meets(part)]


def _part(value: Value) -> OccupiedBytes:
    part = value.access.footprint.part
    assert part is not None
    return part


Moved = Callable[[int, int, bool], int]


def with_storages(program: CoreProgram, moved: Moved) -> CoreProgram:
    """Return a program whose operands use other storages, each with the properties of the storage that it replaces.

    Args:
        program: the program.
        moved: a function that returns the number of the new storage, from the index of a step, the number of the
            storage that it accesses, and whether it writes there.
    """
    storages = dict(program.storages)

    def access_of(at: int, access: Access, is_write: bool) -> Access:
        number = moved(at, access.storage, is_write)
        if number == access.storage:
            return access
        storages[number] = storages[access.storage]
        return access._replace(storage=number)

    steps: list[Step | Drain] = []
    for at, step in enumerate(program.steps):
        if isinstance(step, Step):
            action = step.action
            written = written_operands(action)
            operands = tuple(
                [
                    None if access is None else access_of(at, access, place < written)
                    for place, access in enumerate(action.operands)
                ]
            )
            reads = tuple([access_of(at, access, False) for access in action.index_reads])
            writes = tuple([access_of(at, access, True) for access in action.index_writes])
            if (operands, reads, writes) != (action.operands, action.index_reads, action.index_writes):
                changed = action._replace(operands=operands, index_reads=reads, index_writes=writes)
                step = step._replace(action=changed)
        steps.append(step)
    return CoreProgram(steps, storages)


def slot_of(storage: int, slot: int) -> int:
    """Return the number of the ``slot``-th additional storage like ``storage``; slot 0 is ``storage`` itself."""
    return storage if not slot else -(abs(storage) * 1024 + slot)


def add_new_tiles(storages: Storages, action: Action | None) -> None:
    """Add to ``storages`` the tiles that ``action`` uses and that are not in it yet.

    The entry of a new tile is that of another operand's tile: of the operand whose footprint is the same object.
    """
    accesses = [access for access in (action.operands if action else ()) if access is not None]
    for access in accesses:
        if access.storage not in storages:
            like = next(other for other in accesses if other.footprint is access.footprint and other is not access)
            storages[access.storage] = storages[like.storage]


def generations(flow: Flow, storages: frozenset[int], end: int) -> list[tuple[int, int, int, int]]:
    """Return the uses of tiles, in the order of their beginnings.

    A use begins with the step that first writes to a tile. It ends, and the next use begins, with a step that writes to
    the tile after all data written before have been read for the last time.

    Args:
        flow: the flow of the program.
        storages: the tiles.
        end: the number of steps of the program.

    Returns:
        For each use, the storage, the indices of its first and last step, and the index of the first step of the next
        use (``end`` for the last use).
    """
    uses: list[tuple[int, int, int, int]] = []
    for storage in storages:
        first, last, has_readers = -1, -1, False
        for value in flow.by_storage.get(storage, ()):
            if first >= 0 and has_readers and last <= value.writer:
                uses.append((storage, first, last, value.writer))
                first, last, has_readers = -1, -1, False
            first = value.writer if first < 0 else first
            last, has_readers = max(last, value.last_use), has_readers or bool(value.readers)
        if first >= 0:
            uses.append((storage, first, last, end))
    return sorted(uses, key=lambda use: use[1])


def with_uses(program: CoreProgram, holders: Mapping[tuple[int, int], int]) -> CoreProgram:
    """Return a program in which some uses of tiles take other storages.

    Args:
        program: the program.
        holders: the number of the new storage, by the storage and the first step of a use (see :func:`generations`).
    """
    firsts: dict[int, list[int]] = {}
    for storage, first in sorted(holders, key=lambda use: use[1]):
        firsts.setdefault(storage, []).append(first)
    at_use = dict.fromkeys(firsts, -1)

    def moved(at: int, storage: int, is_write: bool) -> int:
        begins = firsts.get(storage)
        if begins is None:
            return storage
        use = at_use[storage]
        # A step that reads and overwrites a tile reads the use before.
        while use + 1 < len(begins) and (begins[use + 1] < at or (is_write and begins[use + 1] == at)):
            use += 1
        if not is_write:
            at_use[storage] = use
        return holders[storage, begins[max(use, 0)]]

    return with_storages(program, moved)
