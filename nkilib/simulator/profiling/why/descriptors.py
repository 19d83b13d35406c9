# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The finding about transfers whose kind of descriptors the compiler chooses, with the time for either choice."""

from __future__ import annotations

from collections.abc import Iterator

from ...timing.plans import Plan
from ...timing.transfers import is_software
from .cores import Model
from .facts import NS_PER_US, Facts
from .finding import Finding
from .replay import Changes, replayed_ns
from .words import joined, largest, percent, times, us

_DIFFERS_FROM = 0.05


def choice(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the launch takes at least 5% more or less time with the other kind of descriptors.

    It is about transfers whose kind the kernel leaves to the compiler.
    """
    cores, model = facts.launch.cores, facts.launch.model
    if not facts.links or not all(core.is_whole for core in cores):
        return
    plans = [plan for core in cores for _, plan, *_ in core.notes if plan.other_queue]
    # No path through the launch gets longer, or shorter, by more than this.
    at_most_ns = sum(abs(_pause_ns(model, plan)) for plan in plans)
    if facts.share(at_most_ns) < _DIFFERS_FROM:
        return
    difference_ns = replayed_ns(facts.launch, Changes(other_descriptors=True)) - replayed_ns(facts.launch)
    if abs(facts.share(difference_ns)) < _DIFFERS_FROM:
        return
    counts: dict[str, float] = {}
    places: dict[str, str] = {}
    for core in cores:
        for number, plan, *_ in core.notes:
            if plan.other_queue:
                line = facts.line(core, number)
                counts[line] = counts.get(line, 0.0) + 1.0
                places.setdefault(line, facts.short(core.place(number)))
    lines = largest(counts)
    modelled, other = (_described(model, queue) for queue in (plans[0].queue, plans[0].other_queue))
    yield Finding(
        "descriptors",
        f"The time depends on the compiler: the kernel leaves the kind of descriptors of {len(plans):,} transfers to "
        f"it, most at {joined(f'{line} ({times(int(count))})' for line, count in lines)}. With {modelled}, as modelled "
        f"here, the launch takes {us(facts.time_ns)}; with {other}, the same instructions would take about "
        f"{us(facts.time_ns + difference_ns)} ({_compared(facts, difference_ns)}, an estimate). Choose the kind with "
        f"dma_copy(dge_mode=).",
        abs(difference_ns) / NS_PER_US,
        places[lines[0][0]],
        max(0.0, -difference_ns) / NS_PER_US,
    )


def _pause_ns(model: Model, plan: Plan) -> float:
    """Return how much longer, or shorter, a queue pauses between transfers with the other kind of descriptors."""
    return model.trigger_ns(plan.other_queue) - model.trigger_ns(plan.queue)


def _described(model: Model, queue: str) -> str:
    """Return words for the kind of descriptors of a queue, and for how often it can trigger a transfer."""
    if is_software(queue):
        kind = "software descriptors, which GpSimd writes"
    elif model.generation.timing.dma.has_hardware_descriptors:
        kind = "hardware descriptors"
    else:
        kind = "descriptors that the host has written"
    return f"{kind} (a trigger every {us(model.trigger_ns(queue))} in each direction)"


def _compared(facts: Facts, difference_ns: float) -> str:
    return f"{percent(abs(facts.share(difference_ns)))} {'more' if difference_ns > 0 else 'less'}"
