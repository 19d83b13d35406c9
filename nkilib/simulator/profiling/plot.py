# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A profile as a picture: the work of the engines and the use of SBUF over time. Modelled, not measured."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

from nkilib.base.installation import extra_remedy

from ..timing.event import Event
from .tensors import TensorLife, use_over_time

_ENGINES = ("dma", "tensor", "vector", "scalar", "gpsimd")
# Hues of Okabe and Ito, which colour-blind readers tell apart; instructions use them round-robin.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#555555")
_CAPACITY = "#555555"
_BAR = 0.8
_KIB = 1024
_WIDTH_INCHES, _ROW_INCHES, _REST_INCHES = 11.0, 0.35, 3.2


def draw(
    path: str | PathLike[str], title: str, events: Sequence[Event], tensors: Sequence[TensorLife], capacity: int
) -> None:
    """Write the picture to ``path``, in the format that its suffix names.

    Args:
        path: the path of the file.
        title: the title of the picture.
        events: the instructions.
        tensors: the on-chip tensors.
        capacity: the bytes of a partition of SBUF.

    Raises:
        ImportError: without matplotlib.
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
