"""Findings about tensors that are overwritten while others still read them: what a second buffer would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...memory.lives import LiveRange
from ...timing.causes import Waited
from .cores import Core
from .facts import NS_PER_US, Facts
from .finding import Finding
from .replay import MOST_INSTRUCTIONS, replayed_ns
from .words import joined, percent, times, us

_SAVED_FROM = 0.03
_MOST_TRIED = 3


def second_buffers(facts: Facts) -> Iterator[Finding]:
    """Tensors whose reuse is on the critical path, and the time without those waits."""
    if sum(len(core.notes) for core in facts.launch.cores) > MOST_INSTRUCTIONS:
        return
    on_path: Counter[str] = Counter()
    for link in facts.links:
        core = facts.of(link)
        cause = core.at(link.number)[3].cause
        life = core.life_of(cause.reused) if cause.waited is Waited.reuse and cause.reused else None
        if life is not None:
            on_path[life.place] += 1
    for place, _ in on_path.most_common(_MOST_TRIED):
        # Both cores make the tensor at the same line.
        lives = [life for core in facts.launch.cores for life in core.lives if life.place == place]
        taken_ns = replayed_ns(facts.launch, {life.storage for life in lives})
        if facts.share(facts.time_ns - taken_ns) >= _SAVED_FROM:
            yield _finding(facts, lives[0], taken_ns)


def _finding(facts: Facts, life: LiveRange, taken_ns: float) -> Finding:
    core = next(core for core in facts.launch.cores if core.life_of(life.storage) is not None)
    pairs = _waiting(facts, core, life.storage)
    (writer, reader), count = pairs.most_common(1)[0]
    saved = facts.time_ns - taken_ns
    what = str(life).partition(", made at ")[0]
    return Finding(
        "buffers",
        f"{what}, made at {facts.short(life.place)}, is used again too soon: {writer} waits {times(count)} until "
        f"{joined([reader])} has read it. With further buffers, a new tile in each step or two in turn, the same "
        f"instructions would take about {us(taken_ns)} instead of {us(facts.time_ns)} ({percent(facts.share(saved))} "
        f"less, an estimate).",
        saved / NS_PER_US,
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
