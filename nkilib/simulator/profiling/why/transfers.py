# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Findings about transfers: the rate of a queue's triggers, small rows, and the time before the first byte."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from .critical import Kind, Link
from .facts import NS_PER_US, Facts
from .finding import Finding
from .words import joined, largest, nbytes, percent, summed, times, us

_TRIGGERS_FROM = 0.1
_FIRST_BYTE_FROM = 0.15
# The guide's length from which rows come near the rate (nki/deep-dives/nki-dma-bandwidth-guide.rst).
SMALL_ROW_BYTES = 2048
_SMALL_ROWS_FROM_BYTES = 0.1
_SMALL_ROWS_FROM_TIME = 0.05


def triggers(facts: Facts) -> Iterator[Finding]:
    """Yield findings about DMA queues whose triggers, one after the other, take much of the critical path."""
    by_queue: dict[str, list[Link]] = defaultdict(list)
    for link in facts.links_of(Kind.trigger):
        by_queue[facts.of(link).at(link.number)[1].queue].append(link)
    for queue, links in by_queue.items():
        duration = sum(link.duration_ns for link in links)
        if facts.share(duration) < _TRIGGERS_FROM:
            continue
        work = [work for link in links if (work := facts.of(link).at(link.number)[1].work) is not None]
        mean_bytes = sum(transfer.nbytes for transfer in work) / len(work)
        mean_ns = sum(transfer.longest_ns for transfer in work) / len(work)
        lines = largest(facts.by_line(links))
        trigger_ns = facts.launch.model.trigger_ns(queue)
        enough = trigger_ns * facts.launch.model.generation.timing.dma.core_gb_per_s
        yield Finding(
            "triggers",
            f"The queue of {queue}s can trigger a transfer every {us(trigger_ns)}: {len(links):,} of them on the "
            f"critical path take {us(duration)} of it ({percent(facts.share(duration))}), most at "
            f"{joined(line for line, _ in lines)}. A transfer moves {nbytes(mean_bytes)} on average, which takes the "
            f"DMA engines {us(mean_ns)}. Move more in one transfer (from {nbytes(enough)} on the engines are the "
            f"limit), keep data that is loaded again in SBUF, or trigger some transfers from another queue with "
            f"dma_copy(engine=).",
            duration / NS_PER_US,
            lines[0][0].rpartition(" ")[0],
        )


class _Rows(NamedTuple):
    """The transfers that one line of the kernel issues with rows of one length."""

    line: str
    row_bytes: float


def small_rows(facts: Facts) -> Iterator[Finding]:
    """Yield findings about rows below 2 KiB that carry much of the bytes and take much of the time."""
    if not facts.links:
        return
    dma = facts.launch.model.generation.timing.dma
    core = facts.core
    moved = [(_Rows(facts.line(core, note[0]), work.row_bytes), work) for note in core.notes if (work := note[1].work)]
    all_bytes = sum(work.nbytes for _, work in moved)
    small = [(rows, work) for rows, work in moved if 0.0 < rows.row_bytes < SMALL_ROW_BYTES]
    duration = summed((rows, work.longest_ns) for rows, work in small)
    for rows, count in summed((rows, work.nbytes) for rows, work in small).items():
        share, taken = count / all_bytes, facts.share(duration[rows])
        if share < _SMALL_ROWS_FROM_BYTES or taken < _SMALL_ROWS_FROM_TIME:
            continue
        rate = min(1.0, rows.row_bytes / (dma.row_ns * dma.gb_per_s))
        yield Finding(
            "small rows",
            f"{rows.line} moves rows of {nbytes(rows.row_bytes)}: {nbytes(count)}, {percent(share)} of the bytes of "
            f"all transfers of a core, at {percent(rate)} of the rate of the DMA engines, which are busy with them for "
            f"{us(duration[rows])} ({percent(taken)} of the time). Move rows of {nbytes(SMALL_ROW_BYTES)} or more: a "
            f"row is a run of bytes that is contiguous both in HBM and in a partition.",
            duration[rows] / NS_PER_US,
            rows.line.rpartition(" ")[0],
        )


def first_bytes(facts: Facts) -> Iterator[Finding]:
    """Yield a finding about transfers that no work hides: their time before the first row and after the last one."""
    links = facts.links_of(Kind.first_byte)
    ends = [link for link in facts.links_of(Kind.result) if facts.engine_of(link) == "dma"]
    duration = sum(link.duration_ns for link in [*links, *ends])
    if facts.share(duration) < _FIRST_BYTE_FROM:
        return
    lines = largest(facts.by_line([*links, *ends]))
    yield Finding(
        "first byte",
        f"The critical path waits {times(len(links))} for a transfer from its start on: {us(duration)} "
        f"({percent(facts.share(duration))}) pass before the first byte and after the last one, most at "
        f"{joined(line for line, _ in lines)}. Load the tiles of the next iteration before this iteration computes, "
        f"and load more in one transfer.",
        duration / NS_PER_US,
        lines[0][0].rpartition(" ")[0],
    )
