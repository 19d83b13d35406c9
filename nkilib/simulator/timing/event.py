# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""One instruction on the timeline of a core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType
from typing import NamedTuple

from .plans import Plan
from .timeline import Span

_NS_PER_US = 1000.0

# What is noted of an instruction while the kernel runs, at a fraction of the price of an event: its number, its plan,
# its label, when its engine starts and ends in nanoseconds and why not before, and the position in the kernel's code.
Note = tuple[int, Plan, str | None, Span, CodeType | None, int]


class Event(NamedTuple):
    """One instruction on the timeline.

    Attributes:
        core: number of the core.
        engine: name of the engine: tensor, vector, scalar, gpsimd, dma or sync.
        name: the instruction, without ``nisa.``.
        label: its ``name=``, or empty.
        operands: shape and type of each tensor operand, by parameter.
        cycles: of its engine; 0 for a transfer.
        start_us, end_us: when its engine worked on it; of a transfer, from its trigger to its last byte.
        place: ``file:line`` in the kernel.
        number: of the instruction on its core, from 1.
        waited: what it has waited for last: nothing, engine (that ran others), data, reuse (of what it overwrites),
            trigger (of its DMA queue) or meeting (with the other core).
        waited_for: the number of the instruction that held it up; 0 if none did.
        queue, nbytes, row_bytes: of a transfer: the queue that triggers it, the bytes that it moves, and those of a
            row, on the average (0 where it is not moved row by row).
        dropped_by: the pass that found that the device does not run it, which takes no time then; empty if it runs.
    """

    core: int
    engine: str
    name: str
    label: str
    operands: dict[str, tuple[tuple[int, ...], str]]
    cycles: float
    start_us: float
    end_us: float
    place: str
    number: int
    waited: str = ""
    waited_for: int = 0
    queue: str = ""
    nbytes: int = 0
    row_bytes: float = 0.0
    dropped_by: str = ""


def events_of(core: int, notes: Iterable[Note]) -> Iterator[Event]:
    """What the notes of a core say."""
    lines = Lines()
    for number, plan, label, (start, end, cause), code, position in notes:
        work = plan.work
        yield Event(
            core,
            plan.engine,
            plan.name,
            label or "",
            dict(plan.operands),
            plan.cycles,
            start / _NS_PER_US,
            end / _NS_PER_US,
            lines.place(code, position),
            number,
            cause.waited.name,
            number - cause.on if cause.on else 0,
            plan.queue,
            0 if work is None else work.nbytes,
            0.0 if work is None else work.row_bytes,
            plan.dropped_by,
        )


class Lines:
    """The lines of positions in the code of a kernel."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}  # by the id of a code object, which the notes keep alive

    def place(self, code: CodeType | None, position: int) -> str:
        """``file:line`` in the kernel."""
        if code is None:
            return "<unknown>"
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = _lines_of(code)
        return f"{code.co_filename}:{known[position]}"


def _lines_of(code: CodeType) -> dict[int, int]:
    """The line of each position in a function, which would take longer to ask for one by one."""
    return {at: line or 0 for start, end, line in code.co_lines() for at in range(start, end, 2)}
