# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Findings about avoidable waits, with an estimate of the time of the launch without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...memory.lives import LiveRange
from ...timing.causes import Waited
from .cores import Core
from .facts import NS_PER_US, Facts
from .finding import Finding
from .replay import Changes, replayed_ns
from .words import percent, times, us

_SAVED_FROM = 0.03
_SAVED_AT_LOOPS_FROM = 0.05
_MOST_TRIED = 3


def second_buffers(facts: Facts) -> Iterator[Finding]:
    """Yield findings about tiles that are overwritten so soon that the critical path waits for their readers.

    Each states the time of the launch without the waits for that tile.
    """
    if not all(core.is_whole for core in facts.launch.cores):
        return
    on_path: Counter[str] = Counter()
    waited_for: set[int] = set()
    for link in facts.links:
        core = facts.of(link)
        cause = core.at(link.number)[3].cause
        life = core.life_of(cause.reused) if cause.waited is Waited.reuse and cause.reused else None
        if life is not None:
            on_path[life.place] += 1
            waited_for.add(life.storage)
    as_it_is_ns = replayed_ns(facts.launch) if on_path else 0.0
    for place, _ in on_path.most_common(_MOST_TRIED):
        # Both cores make the tensor at the same line.
        lives = [life for core in facts.launch.cores for life in core.lives if life.place == place]
        saved_ns = as_it_is_ns - replayed_ns(facts.launch, Changes({life.storage for life in lives}))
        if facts.share(saved_ns) >= _SAVED_FROM:
            # Some of several tensors of one line may not be waited for.
            yield _finding(facts, next(life for life in lives if life.storage in waited_for), saved_ns)


def loops(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about device loops between whose iterations all engines synchronise."""
    on_path = [link for link in facts.links if facts.of(link).at(link.number)[3].cause.waited is Waited.loop]
    if not on_path or not all(core.is_whole for core in facts.launch.cores):
        return
    saved_ns = replayed_ns(facts.launch) - replayed_ns(facts.launch, Changes(meets_at_loops=False))
    if facts.share(saved_ns) < _SAVED_AT_LOOPS_FROM:
        return
    held_up = Counter(facts.line_of(link) for link in {link.number: link for link in on_path}.values())
    (line, count), *_ = held_up.most_common(1)
    yield Finding(
        "loops",
        f"All engines synchronise at device loops and between their iterations, {times(count)} before {line}. If no "
        f"engine waited for the others there, the same instructions would take about "
        f"{_instead(facts, saved_ns)}. Do the work of several iterations in one.",
        saved_ns / NS_PER_US,
        line.rpartition(" ")[0],
        saved_ns / NS_PER_US,
    )


def _instead(facts: Facts, saved_ns: float) -> str:
    reduced, whole = us(facts.time_ns - saved_ns), us(facts.time_ns)
    return f"{reduced} instead of {whole} ({percent(facts.share(saved_ns))} less, an estimate)"


def _finding(facts: Facts, life: LiveRange, saved_ns: float) -> Finding:
    core = next(core for core in facts.launch.cores if core.life_of(life.storage) is not None)
    (writer, reader), count = _waiting(facts, core, life.storage).most_common(1)[0]
    tensor = life.tensor.removeprefix("tensor ")
    return Finding(
        "buffers",
        f"The tile {tensor}, made at {facts.short(life.place)}, is overwritten too soon: {writer} waits "
        f"{times(count)} until {reader} has read it. Make two or three such tiles before the loop and use them "
        f"round-robin, or make a new tile in each iteration, which takes more {str(life.region).upper()}: with "
        f"enough buffers, the same instructions would take about {_instead(facts, saved_ns)}.",
        saved_ns / NS_PER_US,
        facts.short(life.place),
        saved_ns / NS_PER_US,
    )


def _waiting(facts: Facts, core: Core, storage: int) -> Counter[tuple[str, str]]:
    """Count the waits before a tensor is overwritten, by the writing instruction and the reader that it waits for."""
    pairs: Counter[tuple[str, str]] = Counter()
    for number, _, _, span, *_ in core.notes:
        cause = span.cause
        if cause.waited is Waited.reuse and cause.reused == storage:
            pairs[facts.line(core, number), facts.line(core, number - cause.overwrites)] += 1
    return pairs
