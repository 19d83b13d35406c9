# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The causes of start times: the last thing that an instruction waited for, and the others that it had to wait for.

A cause names other instructions by their distance in program order, so that the same instruction in two iterations of a
loop has equal causes, of which one object is kept. From the causes, the instructions can be timed again under another
assumption.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Waited(IntEnum):
    """The kind of thing that an instruction waited for last."""

    nothing = 0
    engine = 1  # the engine runs the previous instructions
    data = 2  # the data that it reads are not ready
    reuse = 3  # others still read or write what it overwrites
    trigger = 4  # the DMA queue triggers one transfer after the other
    meeting = 5  # the other core came later to a barrier or exchange
    loop = 6  # all engines synchronise at the start, end or next iteration of a device loop


class Cause(NamedTuple):
    """The cause of the start time of an instruction.

    A distance is a number of instructions of the same core, counted back in program order from this one.

    Attributes:
        waited: the kind of thing that it waited for last.
        on: the distance to the instruction that delayed it; 0 if none did.
        reads: for each tensor that it reads and that was written, the distance to the last write.
        overwrites: the distance to the last access to what it overwrites; 0 if there was none.
        reused: the number of the storage that it overwrites, if that access was a read by another engine; else 0.
        meets: whether it synchronises with the other core.
    """

    waited: Waited = Waited.nothing
    on: int = 0
    reads: tuple[int, ...] = ()
    overwrites: int = 0
    reused: int = 0
    meets: bool = False


NO_CAUSE = Cause()

_Key = tuple[Waited, int, tuple[int, ...], int, int, bool]


class Causes(dict[_Key, Cause]):
    """A cache of causes by their fields, so that equal causes are one object."""

    def __missing__(self, key: _Key) -> Cause:
        cause = self[key] = Cause(*key)
        return cause
