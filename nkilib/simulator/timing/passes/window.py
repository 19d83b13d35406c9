# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The issued instructions of a core that are not on its timeline yet, among which passes look back and ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..noted import Noted

# The number of instructions in the window: as far as a pass can look ahead.
LOOKAHEAD = 256


class Pass(Protocol):
    """A pass that changes instructions in the window because of what follows them.

    Attributes:
        constants_of: the names of the instructions of which it needs the parameters that are no tensors.
    """

    constants_of: frozenset[str]

    def see(self, noted: Noted) -> None:
        """Examine the next instruction in program order, and change it or earlier ones in the window."""

    def leaves(self, number: int) -> None:
        """Note that the instructions up to this number go to the timeline: undecided ones stay as they were issued."""


class Window:
    """The issued instructions of one core that are not on its timeline yet.

    Attributes:
        constants_of: the names of the instructions of which some pass needs the parameters that are no tensors.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self.constants_of = frozenset().union(*(pass_.constants_of for pass_ in passes))
        self._held: list[Noted] = []

    def take(self, batch: list[Noted]) -> list[Noted]:
        """Take the next instructions in program order, and return the oldest ones, for which there is no more room."""
        if not self._passes:
            return batch
        for pass_ in self._passes:
            for noted in batch:
                pass_.see(noted)
        self._held += batch
        return self._emit(len(self._held) - LOOKAHEAD)

    def flush(self) -> list[Noted]:
        """Return all instructions in the window, and empty it.

        This happens where the timeline has to be complete: where cores synchronise, at the start and end of device
        loops and of their iterations, and at the end of the kernel.
        """
        return self._emit(len(self._held))

    def _emit(self, count: int) -> list[Noted]:
        if count <= 0:
            return []
        leaving, self._held = self._held[:count], self._held[count:]
        for pass_ in self._passes:
            pass_.leaves(leaving[-1].number)
        return leaving
