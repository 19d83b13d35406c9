# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Why an instruction has started when it did: what it has waited for last, and what else it had to wait for.

Other instructions are named by how far back they were issued, so that the steps of a loop have the same causes, of
which one object is kept. It is enough to time the instructions again under another assumption.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class Waited(IntEnum):
    """What an instruction has waited for last."""

    nothing = 0
    engine = 1  # that runs the instructions before it
    data = 2  # that it reads
    reuse = 3  # of what it overwrites, which others still read or write
    trigger = 4  # of a DMA queue, which triggers one transfer after the other
    meeting = 5  # with the other core, which came later
    loop = 6  # of the device, at whose start, end or next iteration all engines meet


class Cause(NamedTuple):
    """Why an instruction has started when it did. Distances count instructions of the core, back in program order.

    Attributes:
        waited: what it has waited for last.
        on: the distance to the instruction that held it up; 0 if none did.
        reads: of each tensor that it reads and that was written, the distance to the last write.
        overwrites: the distance to the last access to what it overwrites; 0 if there was none.
        reused: the number of the storage that it overwrites, if that access was a read by another engine; else 0.
        meets: whether it is a meeting with the other core.
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
    """The one object for each cause."""

    def __missing__(self, key: _Key) -> Cause:
        cause = self[key] = Cause(*key)
        return cause
