"""``kernel.with_schedule``: extra order between named instructions, for the compiler's scheduler.

The edges only narrow a scheduler's choice, which data dependencies limit already; results do not depend on them. The
simulator runs in program order and checks what can be checked: the form, cycles, and that the names exist.

Source: ``nki/guides/how-to-scheduling-apis.rst``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..terms.errors import NkiValidationError

# (instruction, the instructions that it runs after), by the ``name=`` of each.
Edge = tuple[str, tuple[str, ...]]


def checked_edges(schedule: Any) -> tuple[Edge, ...]:
    """``schedule`` as edges: a list of pairs (name, name) or (name, [names]); the first runs after the second.

    Raises:
        NkiValidationError: if it has another form, or if the edges run in a circle.
    """
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        raise NkiValidationError(f"with_schedule: the schedule must be a list of pairs of names, got {schedule!r}")
    edges = tuple(_checked_edge(edge) for edge in schedule)
    after: dict[str, set[str]] = {}
    for consumer, producers in edges:
        after.setdefault(consumer, set()).update(producers)
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(repr(name) for name in reversed(error.args[1]))
        raise NkiValidationError(f"with_schedule: the edges run in a circle: {circle}") from None
    return edges


def _checked_edge(edge: Any) -> Edge:
    is_pair = isinstance(edge, tuple | list) and len(edge) == 2 and isinstance(edge[0], str)
    producers = (edge[1],) if is_pair and isinstance(edge[1], str) else edge[1] if is_pair else None
    if not isinstance(producers, tuple | list) or not all(isinstance(name, str) for name in producers):
        raise NkiValidationError(
            f"with_schedule: an edge must be (name, name) or (name, [names]), the names= of instructions; got {edge!r}"
        )
    return edge[0], tuple(producers)


def check_names(kernel: str, edges: Iterable[Edge], issued: set[str]) -> None:
    """Require that every instruction of a schedule was issued.

    Raises:
        NkiValidationError: naming the first one that was not, and what names there are.
    """
    for consumer, producers in edges:
        for name in (consumer, *producers):
            if name not in issued:
                known = ", ".join(map(repr, sorted(issued))) or "none"
                raise NkiValidationError(
                    f"{kernel}: with_schedule names {name!r}, but no instruction has that name=; names in this launch: "
                    f"{known}"
                )
