"""A timeline as a trace that the Perfetto UI and chrome://tracing open. Modelled, not measured.

Each core is a process and each of its engines a thread. Slices of a thread must not overlap unless one holds the other,
and transfers do overlap: they have as many threads as are in flight at one time.

Source of the format: "Trace Event Format", the JSON object form: complete events ``X``, counters ``C`` and metadata
``M``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

from ..timing.event import Event
from .tensors import TensorLife, use_over_time

# Threads in the order in which the engines of a core are shown; further threads of transfers follow.
TRACKS = ("tensor", "vector", "scalar", "gpsimd", "sync", "dma")
_FIRST_DMA = TRACKS.index("dma")
_SBUF = "SBUF bytes of a partition"
_NS_PER_US = 1000


def write_trace(
    path: str | PathLike[str],
    title: str,
    events: Sequence[Event],
    tensors: Sequence[TensorLife] = (),
    note: str = "modelled, not measured",
) -> None:
    """Write ``events``, and the use of SBUF, to ``path``; ``title`` says what was modelled and on what, ``note`` what
    the times are."""
    traced: list[dict[str, Any]] = []
    for core in sorted({event.core for event in events}):
        own = [event for event in events if event.core == core]
        threads = list(_threads(own))
        traced += _names(core, title, max([_FIRST_DMA, *threads]))
        traced += [_complete(event, thread) for event, thread in zip(own, threads, strict=True)]
        used = [life for life in tensors if life.core == core and life.region == "sbuf"]
        traced += [_counter(core, time, nbytes) for time, nbytes in use_over_time(used)]
    trace = {
        "traceEvents": traced,
        "displayTimeUnit": "ns",
        "otherData": {"title": title, "note": note},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)


def _threads(events: Iterable[Event]) -> Iterator[int]:
    """The thread of each event of a core: that of its engine, of a transfer the first that is free."""
    free: list[float] = []
    for event in events:
        if event.engine != "dma":
            yield TRACKS.index(event.engine)
            continue
        # Transfers come in program order; the queues' triggers are not in order of time.
        lane = next((lane for lane, end in enumerate(free) if end <= event.start_us), len(free))
        free[lane : lane + 1] = [event.end_us]
        yield _FIRST_DMA + lane


def _names(core: int, title: str, last_thread: int) -> list[dict[str, Any]]:
    """What the threads of a core and their process are called."""
    named = [
        _metadata("process_name", core, 0, {"name": f"core {core} (modelled, not measured)"}),
        _metadata("process_labels", core, 0, {"labels": title}),
    ]
    for thread in range(last_thread + 1):
        lane = thread - _FIRST_DMA
        name = TRACKS[thread] if lane <= 0 else f"dma, in flight {lane + 1}"
        named.append(_metadata("thread_name", core, thread, {"name": name}))
        named.append(_metadata("thread_sort_index", core, thread, {"sort_index": thread}))
    return named


def _metadata(name: str, core: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": core, "tid": thread, "args": args}


def _counter(core: int, time_us: float, nbytes: int) -> dict[str, Any]:
    return {"ph": "C", "name": _SBUF, "pid": core, "tid": 0, "ts": time_us, "args": {"bytes": nbytes}}


def _complete(event: Event, thread: int) -> dict[str, Any]:
    # Whole nanoseconds, as Perfetto stores them. It rounds start and duration each by itself: of two instructions that
    # follow each other without a pause, the second could begin before the first one ends, and would be dropped.
    start, end = round(event.start_us * _NS_PER_US), round(event.end_us * _NS_PER_US)
    operands = {name: f"{list(shape)} {dtype}" for name, (shape, dtype) in event.operands.items()}
    return {
        "ph": "X",
        "name": f"{event.name} {event.label}" if event.label else event.name,
        "cat": event.engine,
        "pid": event.core,
        "tid": thread,
        "ts": start / _NS_PER_US,
        "dur": (end - start) / _NS_PER_US,
        "args": {"place": event.place, "cycles": event.cycles, **operands},
    }
