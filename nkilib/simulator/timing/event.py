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

# The note of an instruction while the kernel runs, at a fraction of the cost of an event: its number, its plan, its
# label, the start and end of its engine's work in nanoseconds with the cause, and the position in the kernel's code.
Note = tuple[int, Plan, str | None, Span, CodeType | None, int]


class Event(NamedTuple):
    """One instruction on the timeline.

    Attributes:
        core: the number of the core.
        engine: the name of the engine: tensor, vector, scalar, gpsimd, dma or sync.
        name: the name of the instruction, without ``nisa.``.
        label: the argument ``name=`` of the call, or empty.
        operands: shape and type of each tensor operand, by parameter.
        cycles: the cycles that it takes of its engine; 0 for a transfer.
        start_us, end_us: the start and end of the engine's work on it; for a transfer, its trigger and its last byte.
        place: ``file:line`` in the kernel.
        number: the number of the instruction on its core, from 1.
        waited: the thing that it waited for last: nothing, engine (that ran others), data, reuse (of what it
            overwrites), trigger (of its DMA queue), meeting (barrier or exchange with the other core) or loop (of the
            device).
        waited_for: the number of the instruction that delayed it; 0 if none did.
        queue, nbytes, row_bytes: for a transfer, the queue that triggers it, the bytes that it moves, and the average
            bytes of a row (0 if it is not moved row by row).
        dropped_by: the pass that found that the device does not run it, so that it takes no time; empty if it runs.
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
    """Yield an event for each note of a core."""
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
    """A cache of the source lines of bytecode offsets, for each code object of a kernel."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}  # by the id of a code object, which the notes keep alive

    def place(self, code: CodeType | None, position: int) -> str:
        """Return ``file:line`` of a bytecode offset in the code of the kernel."""
        if code is None:
            return "<unknown>"
        known = self._known.get(id(code))
        if known is None:
            known = self._known[id(code)] = _lines_of(code)
        return f"{code.co_filename}:{known[position]}"


def _lines_of(code: CodeType) -> dict[int, int]:
    """Return the source line of each bytecode offset in a function: all at once is faster than one by one."""
    return {at: line or 0 for start, end, line in code.co_lines() for at in range(start, end, 2)}
