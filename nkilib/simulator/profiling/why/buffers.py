"""Findings about tensors that are overwritten while others still read them: what a second buffer would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...memory.lives import LiveRange
from ...timing.causes import Waited
from .cores import Core
from .facts import NS_PER_US, Facts
from .finding import Finding
from .replay import replayed_ns
from .words import percent, times, us

_SAVED_FROM = 0.03
_MOST_TRIED = 3


def second_buffers(facts: Facts) -> Iterator[Finding]:
    """Tensors whose reuse is on the critical path, and the time without those waits."""
    if not all(core.is_whole for core in facts.launch.cores):
        return
    on_path: Counter[str] = Counter()
    for link in facts.links:
        core = facts.of(link)
        cause = core.at(link.number)[3].cause
        life = core.life_of(cause.reused) if cause.waited is Waited.reuse and cause.reused else None
        if life is not None:
            on_path[life.place] += 1
    as_it_is_ns = replayed_ns(facts.launch) if on_path else 0.0
    for place, _ in on_path.most_common(_MOST_TRIED):
        # Both cores make the tensor at the same line.
        lives = [life for core in facts.launch.cores for life in core.lives if life.place == place]
        saved_ns = as_it_is_ns - replayed_ns(facts.launch, {life.storage for life in lives})
        if facts.share(saved_ns) >= _SAVED_FROM:
            yield _finding(facts, lives[0], saved_ns)


def _finding(facts: Facts, life: LiveRange, saved_ns: float) -> Finding:
    core = next(core for core in facts.launch.cores if core.life_of(life.storage) is not None)
    pairs = _waiting(facts, core, life.storage)
    (writer, reader), count = pairs.most_common(1)[0]
    what = str(life).partition(", made at ")[0].removeprefix("tensor ")
    taken = f"{us(facts.time_ns - saved_ns)} instead of {us(facts.time_ns)}"
    return Finding(
        "buffers",
        f"The tile {what}, made at {facts.short(life.place)}, is used again too soon: {writer} waits {times(count)} "
        f"until {reader} has read it. With further buffers, a new tile in each step or two in turn, the same "
        f"instructions would take about {taken} ({percent(facts.share(saved_ns))} less, an estimate).",
        saved_ns / NS_PER_US,
        facts.short(life.place),
    )


def _waiting(facts: Facts, core: Core, storage: int) -> Counter[tuple[str, str]]:
    """Who waits to overwrite a tensor, until who has read it; how often."""
    pairs: Counter[tuple[str, str]] = Counter()
    for number, _, _, span, *_ in core.notes:
        cause = span.cause
        if cause.waited is Waited.reuse and cause.reused == storage:
            pairs[facts.line(core, number), facts.line(core, number - cause.overwrites)] += 1
    return pairs
