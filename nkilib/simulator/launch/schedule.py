# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``kernel.with_schedule``: extra order between named instructions, for the compiler's scheduler.

An edge (:class:`Edge`) lets an instruction run after others. Edges only narrow a scheduler's choice, which data
dependencies limit already; results do not depend on them. The simulator runs in program order and checks the form
of the edges, that they have no cycles, that the names exist, and that the hardware can wait where an edge demands it.

Source: ``nki/guides/how-to-scheduling-apis.rst``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..isa.handle import check_kind
from ..terms.enums import dependency
from ..terms.errors import NkiValidationError
from ..terms.scopes import Scope, is_around


@dataclass(frozen=True)
class Edge:
    """An instruction and the instructions that run before it, identified by their ``name=``.

    Attributes:
        consumer: the name of the instruction that runs after the others.
        producers: the names of the instructions that run before it.
        kind: the purpose of the order; None for its meaning before NKI 0.7, which the documentation does not state.
    """

    consumer: str
    producers: tuple[str, ...]
    kind: dependency | None = None


def checked_edges(schedule: Any, kind: Any = None) -> tuple[Edge, ...]:
    """Return a schedule as edges, after checks.

    Args:
        schedule: a list of pairs (name, name) or (name, [names]); the first instruction runs after the second.
        kind: the purpose of the order, for all edges.

    Raises:
        NkiValidationError: if the schedule has another form, if the edges form a cycle, or if ``kind`` is no member of
            ``nki.isa.dependency``.
    """
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        raise NkiValidationError(f"with_schedule: the schedule must be a list of pairs of names, got {schedule!r}")
    try:
        check_kind(kind)
    except NkiValidationError as error:
        raise NkiValidationError(f"with_schedule: {error}") from None
    edges = tuple(_checked_edge(edge, kind) for edge in schedule)
    after: dict[str, set[str]] = {}
    for edge in edges:
        after.setdefault(edge.consumer, set()).update(edge.producers)
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(repr(name) for name in reversed(error.args[1]))
        raise NkiValidationError(f"with_schedule: the edges run in a circle: {circle}") from None
    return edges


def _checked_edge(edge: Any, kind: dependency | None) -> Edge:
    is_pair = isinstance(edge, tuple | list) and len(edge) == 2 and isinstance(edge[0], str)
    producers = (edge[1],) if is_pair and isinstance(edge[1], str) else edge[1] if is_pair else None
    if not isinstance(producers, tuple | list) or not all(isinstance(name, str) for name in producers):
        raise NkiValidationError(
            f"with_schedule: an edge must be (name, name) or (name, [names]), the names= of instructions; got {edge!r}"
        )
    return Edge(edge[0], tuple(producers), kind)


def check_issued(kernel: str, edges: Iterable[Edge], cores: Sequence[Mapping[str, set[Scope]]]) -> None:
    """Check that some core issued each instruction of a schedule, and that the hardware can wait where it has to.

    Args:
        kernel: the kernel's name.
        edges: the schedule.
        cores: for each core and name, the dynamic loops in which instructions of the name were issued; see
            ``Loops.scope``.

    Raises:
        NkiValidationError: if an instruction was not issued (the message names the first one and all known names), or
            if the hardware would have to wait for a producer in a dynamic loop that its consumer is not in.
    """
    issued = {name for scopes in cores for name in scopes}
    for edge in edges:
        for name in (edge.consumer, *edge.producers):
            if name not in issued:
                known = ", ".join(map(repr, sorted(issued))) or "none"
                raise NkiValidationError(
                    f"{kernel}: with_schedule names {name!r}, but no instruction has that name=; names in this launch: "
                    f"{known}"
                )
        if edge.kind is dependency.runtime:
            for scopes in cores:
                _check_scopes(kernel, edge, scopes)


def _check_scopes(kernel: str, edge: Edge, scopes: Mapping[str, set[Scope]]) -> None:
    for name in edge.producers:
        for consumer in scopes.get(edge.consumer, ()):
            if not any(is_around(producer, consumer) for producer in scopes.get(name, ((),))):
                raise NkiValidationError(
                    f"{kernel}: with_schedule: {edge.consumer!r} cannot wait for {name!r}, which is in a dynamic loop "
                    f"that {edge.consumer!r} is not in; both must be in the same loop, or the producer around it"
                )
