# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Whether the cores of a launch divide its work, or each of them does all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ..terms.layout import Layout
from ..timing.collect import Collection
from ..timing.footprints import Tracked
from ..timing.parts import Part
from ..timing.trace import Trace
from ..timing.uses import HbmUses


def stored_by_every_core(collection: Collection) -> Sequence[str]:
    """Return the names of the tensors that every core of a launch stores, if all cores do the same work; else none.

    Cores do the same work if they run equal numbers of each instruction, and load and store the same parts of the
    tensors that come from the caller or go back to it. Where an index chooses what is stored, the parts are not known,
    and the cores count as different.
    """
    traces = collection.traces
    if len(traces) < 2 or not _are_alike(_totals(trace) for trace in traces):
        return ()
    crossing = [_crossing(trace, collection) for trace in traces]
    if any(_uses(known).scattered_bytes for tensors in crossing for known in tensors.values()):
        return ()
    # Most launches differ in what they store, which is cheaper to find out than what they load.
    if not _are_alike({at: _places(_uses(known).written()) for at, known in tensors.items()} for tensors in crossing):
        return ()
    if not _are_alike(
        {at: _places(_uses(known).brought_in()) for at, known in tensors.items()} for tensors in crossing
    ):
        return ()
    # A barrier on a tensor delays its later readers like a store, but stores nothing.
    return tuple(known.name for known in crossing[0].values() if traces[0].settled.hbm_written[known.name])


def _totals(trace: Trace) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Count the instructions of a core by name, and the bytes that it loaded and stored by tensor."""
    counts: Counter[str] = Counter()
    for plan, count in trace.settled.notes.plans():
        counts[plan.name] += count
    return counts, trace.settled.hbm_read, trace.settled.hbm_written


def _crossing(trace: Trace, collection: Collection) -> dict[int, Tracked]:
    """Return a core's records of the tensors that come from the caller or go back to it, by tensor number."""
    ends = collection.given | collection.returned
    return {number: known for number, known in trace.in_hbm.items() if number in ends}


def _places(parts: Iterable[Part]) -> set[tuple[Layout, int]]:
    """Return the parts by value: cores that make an equal part at one moment may each have an object of it."""
    return {(part.layout, part.width) for part in parts}


def _uses(known: Tracked) -> HbmUses:
    assert isinstance(known.uses, HbmUses)
    return known.uses


def _are_alike(values: Iterable[object]) -> bool:
    first, *others = values
    return all(other == first for other in others)
