# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions of a core that are not on its timeline yet, among which passes look back and ahead.

:class:`Window` holds the instructions, and applies each :class:`Pass` to them; :func:`reads_of`, :func:`writes_of` and
:func:`accessed_part` return the tensors that an instruction accesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ..footprints import OccupiedBytes
from ..instruction import PendingInstruction, TensorAccess

# The number of instructions in the window: as far as a pass can look ahead.
LOOKAHEAD = 256


class Pass(Protocol):
    """The interface of a pass, which changes instructions in the window because of what precedes or follows them.

    Attributes:
        constants_of: the names of the instructions whose non-tensor parameters the pass needs.
    """

    constants_of: frozenset[str]

    def see(self, instruction: PendingInstruction) -> None:
        """Examine ``instruction``, the next one in program order; the pass may change instructions in the window."""

    def leaves(self, number: int) -> None:
        """Note that the instructions up to ``number`` leave the window; the pass cannot change them any more."""


class Window:
    """The issued instructions of one core that are not on its timeline yet.

    Attributes:
        constants_of: the names of the instructions whose non-tensor parameters some pass needs.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self.constants_of = frozenset().union(*(pass_.constants_of for pass_ in passes))
        self._held: list[PendingInstruction] = []

    def take(self, batch: list[PendingInstruction]) -> list[PendingInstruction]:
        """Add ``batch``, the next instructions in program order; remove and return all but the last ``LOOKAHEAD``."""
        if not self._passes:
            return batch
        for pass_ in self._passes:
            for instruction in batch:
                pass_.see(instruction)
        self._held += batch
        return self._emit(len(self._held) - LOOKAHEAD)

    def flush(self) -> list[PendingInstruction]:
        """Remove all instructions from the window, and return them.

        The simulator calls this where the timeline has to be complete: where cores synchronise, at the start and end of
        device loops and of their iterations, and at the end of the kernel.
        """
        return self._emit(len(self._held))

    def _emit(self, count: int) -> list[PendingInstruction]:
        if count <= 0:
            return []
        leaving, self._held = self._held[:count], self._held[count:]
        for pass_ in self._passes:
            pass_.leaves(leaving[-1].number)
        return leaving


def accessed_part(access: TensorAccess) -> OccupiedBytes | None:
    """Return the part of its storage that a tensor occupies; None if the tensor has no elements.

    If an index that is read at run time determines the address, the part has all bytes that the tensor may occupy.
    """
    known, layout, dtype, reach, _ = access
    return known.views.footprint(layout, dtype, reach).part


def _is_meeting(instruction: PendingInstruction) -> bool:
    definition = instruction.definition
    return definition.is_untimed or (definition.cost is None and not definition.is_transfer)


def reads_of(instruction: PendingInstruction) -> Iterator[TensorAccess]:
    """Yield the tensors that an instruction may read, including index tensors and all tensors of a barrier."""
    for access in instruction.operands[0 if _is_meeting(instruction) else len(instruction.roles.writes) :]:
        if access is not None:
            yield access
    for access in instruction.operands:
        while access is not None and access[4] is not None:  # the access to the index tensor of an indirect one
            access = access[4]
            yield access
    for index, base, *_ in instruction.besides:
        yield index
        yield base


def writes_of(instruction: PendingInstruction) -> Iterator[TensorAccess]:
    """Yield the tensors that an instruction writes."""
    for access in instruction.operands[: len(instruction.roles.writes)]:
        if access is not None:
            yield access
