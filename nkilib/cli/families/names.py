# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Names of losses, read from the registry when a command needs them.

Every command makes the parsers of all commands, even where the kernels, and so the registry, cannot be imported: the
doctor also runs in a mixture with another nkilib.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload


@dataclass(frozen=True)
class LaterNames(Sequence[str]):
    """A sequence of names that are computed whenever they are read, not when it is made.

    Attributes:
        make: the function that returns the names.
    """

    make: Callable[[], tuple[str, ...]]

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.make()[index]

    def __len__(self) -> int:
        return len(self.make())


def names_of_losses(row: str) -> LaterNames:
    """Return the names of the losses whose registry entries are of the class named ``row``."""

    def make() -> tuple[str, ...]:
        from nkilib.experimental.loss.registry import LOSSES

        return tuple(loss.name for loss in LOSSES if type(loss).__name__ == row)

    return LaterNames(make)
