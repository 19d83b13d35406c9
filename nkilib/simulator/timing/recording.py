# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A record of the tensors that the instructions of a core touch, from which a changed program can be timed.

- :class:`Recording`: the record, with an :class:`Action` for each instruction and the :class:`Access` to each tensor;
- :meth:`Recording.program`: the instructions (:class:`Step`) and the points at which the engines synchronise at device
  loops (:class:`Drain`), in program order. It includes iterations that were skipped because they repeat others.

A *storage* is the memory of one tensor and all its views; a *part* is the bytes of it that one view occupies.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Mapping
from types import CodeType
from typing import Any, NamedTuple

from ..isa.definition import Definition
from .dependencies import Tracked
from .footprints import Footprint, Views
from .instruction import InstructionKind, PendingInstruction, roles_of
from .instruction_log import InstructionLog

# A core with more instructions is not recorded, which bounds the memory of a profile.
MOST_RECORDED = 100_000

# Instructions whose parameters that are no tensors decide whether another instruction can do the same.
CONSTANTS_OF = frozenset(
    {"activation", "activation_reduce", "tensor_scalar", "tensor_reduce", "tensor_tensor", "scalar_tensor_tensor"}
)


class Access(NamedTuple):
    """The part of a storage that an instruction touches.

    Attributes:
        storage: the number of the storage.
        footprint: the form of the view and the bytes that it occupies.
    """

    storage: int
    footprint: Footprint


class Action(NamedTuple):
    """An instruction on some parts of tensors, without its position in the program.

    Attributes:
        definition: the instruction.
        kind: its kind on the engine that ran it.
        operands: the parts of its tensors, in the order of ``Roles.tensors``; None where a parameter is no tensor.
        index_reads: further parts that it reads: index tensors, and tensors that tensor indirection reads. An untimed
            instruction has no operands, and all its parts are in ``index_reads`` and ``index_writes``.
        index_writes: further parts that it writes: tensors that tensor indirection writes.
        deciding: the values of its parameters in ``instruction.DECIDING``, in the order of ``Roles.deciding``.
        constants: its non-tensor parameters, by name, for instructions in :data:`CONSTANTS_OF`.
        choices: its kinds on the engines among which the model chooses, if the kernel leaves the engine open.
        meets: whether it synchronises with the other core.
    """

    definition: Definition
    kind: InstructionKind
    operands: tuple[Access | None, ...]
    index_reads: tuple[Access, ...] = ()
    index_writes: tuple[Access, ...] = ()
    deciding: tuple[Any, ...] = ()
    constants: tuple[tuple[str, Any], ...] = ()
    choices: tuple[InstructionKind, ...] = ()
    meets: bool = False


class Step(NamedTuple):
    """One instruction of a program.

    Attributes:
        number: its number on its core; in a changed program several steps may have the same number.
        action: the instruction, and the parts of tensors that it touches.
        register: the number of the instruction that loaded the address of an operand; 0 if none.
        code: the code object of the kernel that issued it.
        position: the bytecode offset in ``code``.
    """

    number: int
    action: Action
    register: int
    code: CodeType | None
    position: int

    @property
    def site(self) -> tuple[int, int]:
        """The call in the kernel that issued the step: the id of the code object, and the offset."""
        return id(self.code), self.position


class Drain(NamedTuple):
    """A point at which all engines of a core synchronise because of a device loop.

    Attributes:
        after_us: the delay of each engine, after it has waited.
        register: the number of the instruction that loads the bound of the loop; 0 if there is none.
        is_between: whether the point lies between two iterations; False at the start or the end of the loop.
        is_wait: whether the engines wait for each other; False if each engine is only delayed.
    """

    after_us: float
    register: int = 0
    is_between: bool = False
    is_wait: bool = True


Program = list[Step | Drain]


class CoreProgram(NamedTuple):
    """The program of a core.

    Attributes:
        steps: its instructions and the points at which its engines synchronise.
        storages: by the number of each storage, a pair (its views, ``Tracked.is_placed``).
    """

    steps: Program
    storages: Mapping[int, tuple[Views, bool]]


# What stands at a position of the tensors of an instruction: no tensor, a tensor, or the index of the one before.
_NO_TENSOR, _OPERAND, _INDEX = range(3)


class _Call(NamedTuple):
    """The properties of an :class:`Action` that do not depend on the parts that it touches.

    Attributes:
        definition, kind, deciding, constants, choices, meets: the fields of :class:`Action` with these names.
        places: ``_OPERAND`` for each tensor parameter that is a tensor, else ``_NO_TENSOR``; in a transfer an
            ``_INDEX`` follows the ``_OPERAND`` of a tensor whose address is read from an index tensor.
        writes_besides: for each tensor that tensor indirection accesses, whether the instruction writes it.
    """

    definition: Definition
    kind: InstructionKind
    places: tuple[int, ...]
    writes_besides: tuple[bool, ...]
    deciding: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]
    choices: tuple[InstructionKind, ...]
    meets: bool

    def action(self, accesses: tuple[Access, ...]) -> Action:
        # ``accesses`` has the parts of the operands first, then the parts of tensor indirection.
        touched = iter(accesses)
        operands: list[Access | None] = []
        reads: list[Access] = []
        writes: list[Access] = []
        for place in () if self.kind.dropped_by else self.places:
            if place == _INDEX:
                reads.append(next(touched))
            else:
                operands.append(next(touched) if place == _OPERAND else None)
        for is_write, access in zip(self.writes_besides, touched, strict=False):
            (writes if is_write else reads).append(access)
        if self.definition.is_untimed:  # it waits for all of its tensors, and all wait for it
            operands, reads, writes = [], list(accesses), list(accesses)
        found = tuple(operands), tuple(reads), tuple(writes)
        return Action(self.definition, self.kind, *found, self.deciding, self.constants, self.choices, self.meets)


def _call_of(instruction: PendingInstruction, kind: InstructionKind, choices: tuple[InstructionKind, ...]) -> _Call:
    places: list[int] = []
    for access in instruction.operands:
        places.append(_NO_TENSOR if access is None else _OPERAND)
        if access is not None and access[4] is not None and instruction.definition.is_transfer:
            places.append(_INDEX)
    return _Call(
        instruction.definition,
        kind,
        tuple(places),
        tuple([is_write for *_, is_output, _ in instruction.besides for is_write in (False, is_output)]),
        tuple(instruction.deciding),
        _named(instruction.definition, tuple(places), instruction.constants),
        choices,
        instruction.met_ns is not None,
    )


class Recording:
    """The actions of a core, in the order in which its instructions ran.

    The record of an instruction is a few numbers in arrays. Most profiles never need the actions, and one object for
    each instruction would slow down Python's garbage collection.

    Attributes:
        storages: by the number of each storage, a pair (its views, ``Tracked.is_placed``).
        is_whole: whether all instructions so far are recorded; False if there were more than :data:`MOST_RECORDED`.
    """

    def __init__(self) -> None:
        self.storages: dict[int, tuple[Views, bool]] = {}
        self.is_whole = True
        self._calls: list[_Call] = []
        self._known: dict[Hashable, int] = {}
        self._footprints: dict[Footprint, int] = {}
        # For each instruction the number of its call and the end of its touched parts: their storages and footprints.
        self._call_at = array("I")
        self._end_at = array("Q")
        self._storage = array("q")
        self._footprint = array("I")
        self._registers: dict[int, int] = {}
        self._drains: defaultdict[int, list[Drain]] = defaultdict(list)

    def begin(self) -> None:
        """Begin the next instruction: forget the parts that were passed to :meth:`touch` since the last :meth:`add`."""
        end = self._end_at[-1] if self._end_at else 0
        del self._storage[end:], self._footprint[end:]

    def touch(self, known: Tracked, footprint: Footprint) -> None:
        """Record a part of ``known`` that the next instruction touches; to be called for its tensors in order."""
        if self.is_whole:
            number, footprints = known.uses.storage, self._footprints
            self._storage.append(number)
            at = footprints.get(footprint)
            if at is None:
                at = footprints[footprint] = len(footprints)
            self._footprint.append(at)
            if number not in self.storages:
                self.storages[number] = known.views, known.is_placed

    def add(self, instruction: PendingInstruction, kind: InstructionKind, choices: tuple[InstructionKind, ...]) -> None:
        """Record an instruction, with the parts passed to :meth:`touch` since the last call as its tensors.

        Args:
            instruction: the instruction that was put on the timeline last.
            kind: its kind on the engine that ran it.
            choices: its kinds on the engines among which the model chose; empty if there was no choice.
        """
        if not self.is_whole:
            return
        if len(self._call_at) >= MOST_RECORDED:
            self._forget()
            return
        key = id(kind), instruction.constants, instruction.met_ns is None
        try:
            known = self._known.get(key)
        except TypeError:  # a value without a hash
            key, known = (len(self._calls), (), False), None
        if known is None:
            known = self._known[key] = len(self._calls)
            self._calls.append(_call_of(instruction, kind, choices))
        if instruction.register:
            self._registers[len(self._call_at)] = instruction.register
        self._call_at.append(known)
        self._end_at.append(len(self._storage))

    def drain(self, after_us: float, register: int = 0, *, is_between: bool = False, is_wait: bool = True) -> None:
        """Record a :class:`Drain` with these fields after the instruction that was added last."""
        if self.is_whole:
            self._drains[len(self._call_at) - 1].append(Drain(after_us, register, is_between, is_wait))

    def program(self, log: InstructionLog) -> Program:
        """Return the program of the core; empty if there were too many instructions to record.

        The program includes the skipped iterations of loops, which are taken from ``log``.
        """
        if not self.is_whole or len(log) > MOST_RECORDED:
            return []
        actions = self._actions()
        steps: Program = list(self._drains.get(-1, ()))
        for position, shift, number, site in log.run_positions():
            register = self._registers.get(position, 0)
            if register and shift.floor and register >= shift.floor:
                register += shift.numbers
            steps.append(Step(number, actions[position], register, site.code, site.position))
            steps += self._drains.get(position, ())
        return steps

    def _actions(self) -> list[Action]:
        # Equal actions are one object.
        footprints = list(self._footprints)
        accesses: dict[tuple[int, int], Access] = {}
        known: dict[tuple[int, tuple[Access, ...]], Action] = {}
        actions: list[Action] = []
        begin = 0
        for number, end in zip(self._call_at, self._end_at, strict=True):
            touched: list[Access] = []
            for at in range(begin, end):
                place = self._storage[at], self._footprint[at]
                access = accesses.get(place)
                if access is None:
                    access = accesses[place] = Access(place[0], footprints[place[1]])
                touched.append(access)
            begin = end
            key = number, tuple(touched)
            action = known.get(key)
            if action is None:
                action = known[key] = self._calls[number].action(key[1])
            actions.append(action)
        return actions

    def _forget(self) -> None:
        # There are too many instructions: nothing is recorded from now on.
        self.is_whole = False
        for kept in (self.storages, self._calls, self._known, self._footprints, self._registers, self._drains):
            kept.clear()
        for numbers in (self._call_at, self._end_at, self._storage, self._footprint):
            del numbers[:]


def _named(definition: Definition, places: tuple[int, ...], constants: tuple[Any, ...]) -> tuple[tuple[str, Any], ...]:
    # Pairs (name, value) of the non-tensor parameters; empty for instructions for which no pass or change needs them.
    if definition.name not in CONSTANTS_OF:
        return ()
    tensors = {at for at, place in zip(roles_of(definition).tensors, places, strict=True) if place == _OPERAND}
    names = [name for at, name in enumerate(definition.names[:-1]) if at not in tensors]
    return tuple(zip(names, constants, strict=True))
