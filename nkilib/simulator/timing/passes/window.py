# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The instructions between a core and its timeline, among which passes look back and ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..noted import Noted

# How many instructions are held back: as far as a pass can look ahead.
LOOKAHEAD = 256


class Pass(Protocol):
    """Changes instructions that are held back, because of what follows them.

    Attributes:
        constants_of: the names of the instructions whose parameters that are no tensors it needs.
    """

    constants_of: frozenset[str]

    def see(self, noted: Noted) -> None:
        """The next instruction in program order; it and those before it that are held back may be changed."""

    def leaves(self, number: int) -> None:
        """Instructions up to this number are on the timeline: what was not decided stays as it was issued."""


class Window:
    """The instructions of one core that are not on its timeline yet.

    Attributes:
        constants_of: the names of the instructions whose parameters that are no tensors some pass needs.
    """

    def __init__(self, passes: Sequence[Pass]) -> None:
        self._passes = passes
        self.constants_of = frozenset().union(*(each.constants_of for each in passes))
        self._held: list[Noted] = []

    def take(self, batch: list[Noted]) -> list[Noted]:
        """Instructions in program order go in; those that are old enough come out."""
        if not self._passes:
            return batch
        for each in self._passes:
            for noted in batch:
                each.see(noted)
        self._held += batch
        return self._emit(len(self._held) - LOOKAHEAD)

    def flush(self) -> list[Noted]:
        """All that are held back come out: at a meeting of cores, and at the end."""
        return self._emit(len(self._held))

    def _emit(self, count: int) -> list[Noted]:
        if count <= 0:
            return []
        leaving, self._held = self._held[:count], self._held[count:]
        for each in self._passes:
            each.leaves(leaving[-1].number)
        return leaving
