# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A profile as a picture, and as a trace that the Perfetto UI and chrome://tracing open. Modelled, not measured.

:func:`draw` writes the picture, :func:`write_trace` the trace. The format of the trace is the JSON object form of
"Trace Event Format": complete events ``X``, counters ``C`` and metadata ``M``; a *thread* of the trace is one row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any

from nkilib.base.installation import extra_remedy

from ..timing.instruction_log import Event
from ..timing.parameters import NS_PER_US
from .profiled_launch import TensorLife, use_over_time
from .why.critical_path import Link, LinkKind

# The rows of the picture.
_ENGINES = ("dma", "tensor", "vector", "scalar", "gpsimd")
# Hues of Okabe and Ito, which colour-blind readers tell apart; instructions use them round-robin.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555")
_CAPACITY = "#555555"
_BAR = 0.8
_KIB = 1024
_WIDTH_INCHES, _ROW_INCHES, _REST_INCHES = 11.0, 0.35, 3.2

# The threads of the trace in the order in which they are shown; further threads of transfers follow. Perfetto treats
# number 0 in a special way, so that threads and processes are numbered from 1.
TRACKS = ("critical path", "tensor", "vector", "scalar", "gpsimd", "sync", "dma")
_THREADS = {name: number for number, name in enumerate(TRACKS, 1)}
_PATH, _FIRST_DMA = _THREADS["critical path"], _THREADS["dma"]
_SBUF = "SBUF bytes of a partition"


def _draw_engines(axes: Any, rows: Sequence[tuple[int, str]], events: Sequence[Event]) -> None:
    numbers = {row: number for number, row in enumerate(rows)}
    bars: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for event in events:
        row = numbers.get((event.core, event.engine))
        if row is not None and event.end_us > event.start_us:
            bars.setdefault((event.name, row), []).append((event.start_us, event.end_us - event.start_us))
    colours: dict[str, str] = {}
    for (name, row), spans in bars.items():
        label = None if name in colours else name  # once in the legend
        colour = colours.setdefault(name, _COLOURS[len(colours) % len(_COLOURS)])
        alpha = 0.5 if rows[row][1] == "dma" else 1.0  # transfers overlap
        axes.broken_barh(spans, (row - _BAR / 2, _BAR), facecolors=colour, alpha=alpha, label=label)
    axes.set_yticks(range(len(rows)), [f"core {core} {engine}" for core, engine in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if bars:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_memory(axes: Any, cores: Sequence[int], tensors: Sequence[TensorLife], capacity: int) -> None:
    for core in cores:
        steps = use_over_time([life for life in tensors if life.core == core and life.region == "sbuf"])
        if steps:
            times, sizes = zip(*steps, strict=True)
            style = "-" if core == cores[0] else "--"  # the cores often do the same
            kib = [size / _KIB for size in sizes]
            axes.step(times, kib, style, where="post", label=f"core {core}", color=_COLOURS[core])
    axes.axhline(capacity / _KIB, color=_CAPACITY, linestyle=":", label=f"capacity, {capacity / _KIB:,.0f} KiB")
    axes.set_ylabel("SBUF, KiB of a partition")
    axes.set_xlabel("microseconds, modelled, not measured")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def draw(
    path: str | PathLike[str], title: str, events: Sequence[Event], tensors: Sequence[TensorLife], capacity: int
) -> None:
    """Write a picture of the timeline and of the use of SBUF to ``path``.

    Args:
        path: the path of the file, whose suffix names the format.
        title: the title of the picture.
        events: the instructions.
        tensors: the on-chip tensors.
        capacity: the bytes of a partition of SBUF.

    Raises:
        ImportError: if matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"profile.plot: needs matplotlib, and there is none; {extra_remedy('plot')}") from error
    cores = sorted({event.core for event in events}) or [0]  # a kernel may do nothing
    rows = [(core, engine) for core in cores for engine in _ENGINES]
    height = _REST_INCHES + _ROW_INCHES * len(rows)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)  # no pyplot: that would keep the figure, and ask for a display
    timeline, memory = figure.subplots(2, 1, sharex=True, height_ratios=(len(rows), max(3, len(rows) / 3)))
    _draw_engines(timeline, rows, events)
    _draw_memory(memory, cores, tensors, capacity)
    figure.suptitle(title)
    figure.savefig(path)


def _threads_of(events: Iterable[Event]) -> Iterator[int]:
    """Yield the thread of each event of a core: its engine's thread, or for a transfer the first free thread for
    transfers.
    """
    free: list[float] = []
    for event in events:
        if event.engine != "dma":
            yield _THREADS[event.engine]
            continue
        # Transfers come in program order; the queues' triggers are not in order of time.
        lane = next((lane for lane, end in enumerate(free) if end <= event.start_us), len(free))
        free[lane : lane + 1] = [event.end_us]
        yield _FIRST_DMA + lane


def _process(core: int) -> int:
    return core + 1


def _metadata(name: str, core: int, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _process(core), "tid": thread, "args": args}


def _naming_events(core: int, title: str, last_thread: int) -> list[dict[str, Any]]:
    # Names of the process of a core and of its threads.
    named = [
        _metadata("process_name", core, _PATH, {"name": f"core {core} (modelled, not measured)"}),
        _metadata("process_labels", core, _PATH, {"labels": title}),
    ]
    for thread in range(1, last_thread + 1):
        lane = thread - _FIRST_DMA
        name = TRACKS[thread - 1] if lane <= 0 else f"dma, in flight {lane + 1}"
        named.append(_metadata("thread_name", core, thread, {"name": name}))
        named.append(_metadata("thread_sort_index", core, thread, {"sort_index": thread}))
    return named


def _counter(core: int, time_us: float, nbytes: int) -> dict[str, Any]:
    return {"ph": "C", "name": _SBUF, "pid": _process(core), "tid": _PATH, "ts": time_us, "args": {"bytes": nbytes}}


def _text_of(event: Event) -> str:
    return f"{event.name} {event.label}" if event.label else event.name


def _slice(
    name: str, category: str, core: int, thread: int, times_ns: tuple[float, float], args: dict[str, Any]
) -> dict[str, Any]:
    # Whole nanoseconds, as Perfetto stores them. It rounds start and duration each by itself: of two instructions that
    # follow each other without a pause, the second could begin before the first one ends, and would be dropped.
    start, end = (round(time) for time in times_ns)
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": _process(core),
        "tid": thread,
        "ts": start / NS_PER_US,
        "dur": (end - start) / NS_PER_US,
        "args": args,
    }


def _complete(event: Event, thread: int) -> dict[str, Any]:
    args: dict[str, Any] = {"place": event.place, "number": event.number, "waited for": event.waited}
    if event.waited_for:
        args["instruction waited for"] = event.waited_for
    if event.engine == "dma":
        args |= {"bytes": event.nbytes, "queue": event.queue, "bytes of a row": round(event.row_bytes)}
    else:
        args["cycles"] = event.cycles
    args |= {name: f"{list(shape)} {dtype}" for name, (shape, dtype) in event.operands.items()}
    times = event.start_us * NS_PER_US, event.end_us * NS_PER_US
    return _slice(_text_of(event), event.engine, event.core, thread, times, args)


def _of_path(link: Link, event: Event) -> dict[str, Any]:
    # A link of the critical path, named after its kind.
    name = _text_of(event) if link.kind is LinkKind.work else f"{link.kind.value} ({_text_of(event)})"
    args = {"place": event.place, "number": event.number, "engine": event.engine}
    return _slice(name, TRACKS[_PATH - 1], link.core, _PATH, (link.start_ns, link.end_ns), args)


def write_trace(
    path: str | PathLike[str],
    title: str,
    events: Sequence[Event],
    tensors: Sequence[TensorLife] = (),
    note: str = "modelled, not measured",
    critical: Sequence[Link] = (),
) -> None:
    """Write a trace to ``path``.

    Each core is a process. Each engine of the core is a thread, and so is the part of the critical path that is on this
    core. Slices of a thread must not overlap unless one contains the other. Transfers do overlap, so they get as many
    threads as there are transfers in flight at one time.

    Args:
        path: the path of the file.
        title: the kernel and the hardware that were modelled.
        events: the instructions.
        tensors: the on-chip tensors, whose bytes give the use of SBUF over time.
        note: a remark on the nature of the times.
        critical: the stretches of time on the critical path.
    """
    traced: list[dict[str, Any]] = []
    for core in sorted({event.core for event in events}):
        own = [event for event in events if event.core == core]
        threads = list(_threads_of(own))
        traced += _naming_events(core, title, max([_FIRST_DMA, *threads]))
        traced += [_complete(event, thread) for event, thread in zip(own, threads, strict=True)]
        by_number = {event.number: event for event in own}
        traced += [_of_path(link, by_number[link.number]) for link in critical if link.core == core]
        used = [life for life in tensors if life.core == core and life.region == "sbuf"]
        traced += [_counter(core, time, nbytes) for time, nbytes in use_over_time(used)]
    trace = {
        "traceEvents": traced,
        "displayTimeUnit": "ns",
        "otherData": {"title": title, "note": note},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(trace, file)
