# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The record of what the instructions of a core touched, from which they can be timed again after a change.

:class:`Recording` keeps an :class:`Action` for each instruction. :meth:`Recording.program` returns the instructions
(:class:`Step`) and the points at which the engines synchronise at device loops (:class:`Drain`), in program order, with
those of iterations that were not run. :class:`Access` is a part of a storage that an instruction touches.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Mapping
from types import CodeType
from typing import Any, NamedTuple

from ..isa.definition import Definition
from ..isa.operators import Operator
from .footprints import Footprint, Views
from .instruction import InstructionKind, PendingInstruction, TensorAccess
from .instruction_log import InstructionLog

# A core with more instructions is not recorded, which bounds the memory of a profile.
MOST_RECORDED = 100_000

# Instructions whose parameters that are no tensors decide whether another instruction can do the same.
CONSTANTS_OF = frozenset(
    {"activation", "activation_reduce", "tensor_scalar", "tensor_reduce", "tensor_tensor", "scalar_tensor_tensor"}
)
_PLAIN = (int, float, bool, str, tuple, type(None), Operator)


class Access(NamedTuple):
    """The part of a storage that an instruction touches.

    Attributes:
        storage: the number of the storage.
        footprint: the form of the view and the bytes that it occupies.
    """

    storage: int
    footprint: Footprint


class Action(NamedTuple):
    """What instructions that do the same have in common.

    Attributes:
        definition: the instruction.
        kind: its kind on the engine that ran it.
        operands: the parts of its tensors, in the order of its roles; None where a parameter is no tensor.
        index_reads, index_writes: what it touches besides, because of indices that are read at run time.
        deciding: the values of its parameters of ``instruction.DECIDING``, in the order of its roles.
        constants: its parameters that are no tensors, by name, for :data:`CONSTANTS_OF`.
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
        number: its number on its core; changed programs may have several with one number.
        action: what it does.
        register: the number of the instruction that loaded the address of an operand; 0 if none.
        code, position: the call in the kernel.
    """

    number: int
    action: Action
    register: int
    code: CodeType | None
    position: int

    @property
    def site(self) -> tuple[int, int]:
        """The call in the kernel, which all steps that it has issued share."""
        return id(self.code), self.position


class Drain(NamedTuple):
    """A point at which all engines of a core synchronise because of a device loop.

    Attributes:
        after_us: the time that this takes beyond the wait.
        register: the number of the instruction that loads the bound of the loop; 0 if there is none.
        is_between: whether it lies between two iterations; else at the start or the end of the loop.
        is_wait: whether the engines wait for each other; else each of them is only delayed.
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
        storages: by the number of each storage, its views, and whether its place in PSUM is given.
    """

    steps: Program
    storages: Mapping[int, tuple[Views, bool]]


class Recording:
    """The actions of a core, in the order in which its instructions ran.

    Attributes:
        storages: by the number of each storage, its views, and whether its place in PSUM is given.
    """

    def __init__(self) -> None:
        self.storages: dict[int, tuple[Views, bool]] = {}
        self._at = array("I")
        self._actions: list[Action] = []
        self._known: dict[Hashable, int] = {}
        self._registers: dict[int, int] = {}
        self._drains: defaultdict[int, list[Drain]] = defaultdict(list)
        self.is_whole = True

    def add(self, instruction: PendingInstruction, kind: InstructionKind, choices: tuple[InstructionKind, ...]) -> None:
        """Record the instruction that was put on the timeline last."""
        if not self.is_whole:
            return
        if len(self._at) >= MOST_RECORDED:
            self.is_whole = False
            for kept in (self.storages, self._actions, self._known, self._registers, self._drains):
                kept.clear()
            self._at = array("I")
            return
        reads: list[Access] = []
        writes: list[Access] = []
        operands = tuple([None if access is None else self._access(access, reads) for access in instruction.operands])
        for index, base, is_output, _ in instruction.besides:
            reads.append(self._access(index, reads))
            (writes if is_output else reads).append(self._access(base, reads))
        action = Action(
            instruction.definition,
            kind,
            operands,
            tuple(reads),
            tuple(writes),
            tuple(instruction.deciding),
            _constants_of(instruction),
            choices,
            instruction.met_ns is not None,
        )
        key = (id(kind), operands, action.index_reads, action.constants, action.deciding)
        try:
            known = self._known.get(key)
        except TypeError:  # a value without a hash
            known = None
        else:
            if known is None:
                self._known[key] = len(self._actions)
        if known is None:
            known = len(self._actions)
            self._actions.append(action)
        if instruction.register:
            self._registers[len(self._at)] = instruction.register
        self._at.append(known)

    def drain(self, after_us: float, register: int = 0, *, is_between: bool = False, is_wait: bool = True) -> None:
        """Record that the engines synchronise after the instruction that was added last."""
        if self.is_whole:
            self._drains[len(self._at) - 1].append(Drain(after_us, register, is_between, is_wait))

    def program(self, log: InstructionLog) -> Program:
        """Return the program of the core, from its log too; empty if there were too many instructions."""
        if not self.is_whole or len(log) > MOST_RECORDED:
            return []
        steps: Program = list(self._drains.get(-1, ()))
        for position, shift, number, site in log.run_positions():
            register = self._registers.get(position, 0)
            if register and shift.floor and register >= shift.floor:
                register += shift.numbers
            steps.append(Step(number, self._actions[self._at[position]], register, site.code, site.position))
            steps += self._drains.get(position, ())
        return steps

    def _access(self, access: TensorAccess, reads: list[Access]) -> Access:
        """Return the part that a tensor occupies, and add that of the index that it is chosen by to ``reads``."""
        known, layout, dtype, reach, index = access
        if index is not None:
            reads.append(self._access(index, reads))
        number = known.uses.storage
        if number not in self.storages:
            self.storages[number] = known.views, known.is_placed
        return Access(number, known.views.footprint(layout, dtype, reach))


def _constants_of(instruction: PendingInstruction) -> tuple[tuple[str, Any], ...]:
    """Return the parameters of an instruction that are no tensors, by name; empty for most instructions."""
    definition = instruction.definition
    if definition.name not in CONSTANTS_OF:
        return ()
    tensors = {
        at for at, access in zip(instruction.roles.tensors, instruction.operands, strict=True) if access is not None
    }
    names = [name for at, name in enumerate(definition.names[:-1]) if at not in tensors]
    return tuple(
        (name, value if isinstance(value, _PLAIN) or value is ... else str(value))
        for name, value in zip(names, instruction.constants, strict=True)
    )
