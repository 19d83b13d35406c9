# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""All changes that may save time: :func:`candidates` yields them, from the functions in :data:`CHANGES`.

Another engine sometimes helps only together with another order of the loop: :func:`candidates_together` yields such
pairs, for launches that no single change makes faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from ..findings import FAR_FROM_BOUND
from ..study import Candidate, Change, Programs, Study
from . import buffers, cores, engines, fusions, orders, sizes, transfers

CHANGES: tuple[Callable[[Study], Iterable[Candidate]], ...] = (
    cores.divided,
    fusions.fused,
    engines.moved,
    buffers.more,
    orders.reordered,
    transfers.changed,
    sizes.larger,
)

# The most calls on other engines that are tried with each order.
_MOST_TOGETHER = 6


def _both(first: Change, second: Change, programs: Programs) -> Programs | None:
    changed = first(programs)
    return None if changed is None else second(changed)


def _together(order: Candidate, engine: Candidate) -> Candidate:
    return Candidate(
        order.about,
        partial(_both, order.change, engine.change),
        f"{order.text}. Besides, run {engine.text.partition('. Run ')[2]}",
        (*order.sites, *engine.sites),
        order.group,
        engine.calls,
    )


def candidates(study: Study) -> Iterator[Candidate]:
    """Yield the changes of a launch that may save time."""
    for find in CHANGES:
        yield from find(study)


def candidates_together(study: Study) -> Iterator[Candidate]:
    """Yield pairs of changes, another order and another engine, for a launch that no single change makes faster."""
    facts = study.facts
    if facts.time_ns > FAR_FROM_BOUND * facts.bound_ns:
        others = list(islice(engines.moved(study), _MOST_TOGETHER))
        for order in orders.reordered(study):
            yield from (_together(order, engine) for engine in others)
