# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The finding about cores that all do the same work instead of dividing it."""

from __future__ import annotations

from collections.abc import Iterator

from .facts import NS_PER_US, Facts
from .finding import Finding
from .words import joined, largest, us


def same_work(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the cores load the same data, run the same instructions and store to the same place."""
    stored, cores = facts.launch.stored_by_every_core, facts.launch.cores
    if not stored or not facts.links:
        return
    saved_ns = facts.time_ns * (len(cores) - 1) / len(cores)
    (line, _), *_ = largest(facts.by_line(facts.links))
    yield Finding(
        "same work",
        f"Both cores do the same work: they run equal numbers of each instruction, load the same data and store the "
        f"same parts of {joined(stored)}. Most of the time is spent at {line}. Give each core a part of the work with "
        f"nl.program_id(0): that would save up to {us(saved_ns)} of {us(facts.time_ns)}.",
        saved_ns / NS_PER_US,
        line.rpartition(" ")[0],
        saved_ns / NS_PER_US,
    )
