# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``Steps``: calls without arguments, run one after the other, that do the work of a plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .memory import Slot

Step = Callable[[], object]


class Steps:
    """The steps of a core between two barriers or exchanges, in the order in which they run."""

    def __init__(self) -> None:
        self.all: list[Step] = []

    def call(self, function: Callable[..., object], *operands: Any, **keywords: Any) -> None:
        """Add a call of ``function`` with these operands; a ``Slot`` among them stands for its array at that time."""
        late = [place for place, operand in enumerate(operands) if isinstance(operand, Slot)]
        if not late:
            self.all.append(partial(function, *operands, **keywords))
        elif len(late) == 1:
            self.all.append(_with_one_late(partial(function, **keywords) if keywords else function, operands, late[0]))
        else:
            self.all.append(_with_several_late(partial(function, **keywords) if keywords else function, operands))


def _with_one_late(function: Callable[..., object], operands: tuple[Any, ...], place: int) -> Step:
    slot, before, after = operands[place], operands[:place], operands[place + 1 :]
    if not before and not after:
        return lambda: function(slot.array)
    if not before:
        return lambda: function(slot.array, *after)
    if not after:
        return lambda: function(*before, slot.array)
    return lambda: function(*before, slot.array, *after)


def _with_several_late(function: Callable[..., object], operands: tuple[Any, ...]) -> Step:
    if len(operands) == 2:
        first, second = operands
        return lambda: function(first.array, second.array)
    return lambda: function(*[operand.array if isinstance(operand, Slot) else operand for operand in operands])
