# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions between a core and its timeline, among which passes look back and ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..noted import Noted

# The number of instructions in the window: as far as a pass can look ahead.
LOOKAHEAD = 256


class Pass(Protocol):
    """A pass that changes instructions in the window because of what follows them.

    Attributes:
        constants_of: the names of the instructions whose non-tensor parameters it needs.
    """

    constants_of: frozenset[str]

    def see(self, noted: Noted) -> None:
        """See the next instruction in program order; it and earlier ones in the window may be changed."""

    def leaves(self, number: int) -> None:
        """Note that instructions up to this number are on the timeline: undecided ones stay as they were issued."""


class Window:
    """The instructions of one core that are not on its timeline yet.

    Attributes:
        constants_of: the names of the instructions whose non-tensor parameters some pass needs.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self.constants_of = frozenset().union(*(pass_.constants_of for pass_ in passes))
        self._held: list[Noted] = []

    def take(self, batch: list[Noted]) -> list[Noted]:
        """Take instructions in program order, and return those that are old enough to leave the window."""
        if not self._passes:
            return batch
        for pass_ in self._passes:
            for noted in batch:
                pass_.see(noted)
        self._held += batch
        return self._emit(len(self._held) - LOOKAHEAD)

    def flush(self) -> list[Noted]:
        """Return all instructions in the window, when cores synchronise and at the end."""
        return self._emit(len(self._held))

    def _emit(self, count: int) -> list[Noted]:
        if count <= 0:
            return []
        leaving, self._held = self._held[:count], self._held[count:]
        for pass_ in self._passes:
            pass_.leaves(leaving[-1].number)
        return leaving
