# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Charts of figures that the pages and benchmarks have: :func:`memory`, :func:`peer_errors` and :func:`over_bound`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from .figures import CROSS_ENTROPY_ERRORS, DIVERGENCE_ERRORS, Launch, launches
from .svg import MARGIN, SMALL, WIDTH, Picture, width_of


class Bar(NamedTuple):
    """A bar of :func:`memory`.

    Attributes:
        name: the call.
        mebibytes: the measured growth of the peak.
        held: the tensors of logits' size that exist at once at the peak, in words.
    """

    name: str
    mebibytes: int
    held: str


def measured_bars() -> tuple[str, list[Bar]]:
    """Return the sizes of the measurement in words, and its bars.

    Raises:
        ImportError: without PyTorch, which ``benchmarks.loss_memory`` needs.
    """
    from benchmarks.loss_memory import SIZES, WAYS

    words = {4: "float32", 2: "bfloat16"}
    bars = []
    for way in WAYS.values():
        size = SIZES.logits_bytes(way.itemsize) / 2**20
        tensors = f"{way.copies} {words[way.itemsize]} tensor{'s' * (way.copies > 1)} [N, V] of {size:,.0f} MiB"
        bars.append(Bar(way.name, way.measured, tensors if way.copies else "no tensor [N, V]"))
    sizes = f"N = {SIZES.positions:,} tokens, D = {SIZES.features:,} features, V = {SIZES.classes:,} classes"
    return sizes, bars


def memory() -> Picture:
    """Draw bars of the memory that loss and gradients take beside hidden states and weight."""
    sizes, bars = measured_bars()
    step, top, longest = 62, 84, WIDTH - 2 * MARGIN - 100
    picture = Picture(
        top + step * len(bars) + 8,
        "Peak memory that the loss and its gradients add, in MiB",
        f"{sizes}, bfloat16; measured on the CPU",
        f"Bars. {sizes}. " + " ".join(f"{bar.name}: {bar.mebibytes:,} MiB, {bar.held}." for bar in bars),
    )
    for index, bar in enumerate(bars):
        y, length = top + step * index, longest * bar.mebibytes / max(other.mebibytes for other in bars)
        is_code = "(" in bar.name or "_" in bar.name
        style = "m b" if is_code else "b"
        picture.text(MARGIN, y, bar.name, style=style)
        held = MARGIN + width_of(bar.name, style="m" if is_code else "b") + 14
        picture.text(held, y, bar.held, "muted", size=SMALL)
        picture.rect(MARGIN, y + 9, length, 24, "grey" if index == 0 else "blue" if index == 1 else "green", radius=3)
        picture.text(MARGIN + length + 10, y + 27, f"{bar.mebibytes:,}", style="b", size=17)
    return picture


class Panel(NamedTuple):
    """A column of :func:`peer_errors`: a field of the errors, and the range of its axis."""

    title: tuple[str, ...]
    field: str
    low: float
    high: float

    def share(self, error: float) -> float:
        """Return where an error lies between the ends of the axis, from 0 to 1."""
        return math.log(error / self.low) / math.log(self.high / self.low)

    @property
    def ticks(self) -> list[float]:
        """The errors that the axis names."""
        low, high = round(math.log10(self.low)), round(math.log10(self.high))
        return [10.0**power for power in range(low, high + 1, 3 if high - low > 3 else 1)]


_PANELS: Final = (
    Panel(("loss",), "loss", 1e-8, 1e-2),
    Panel(("gradient of", "hidden states"), "hidden", 1e-3, 1e0),
    Panel(("gradient of", "the weight"), "weight", 1e-3, 1e0),
)
_BLOCKS: Final = (
    ("Cross-entropy", CROSS_ENTROPY_ERRORS),
    ("Reverse KL divergence", DIVERGENCE_ERRORS),
)
_ROW, _GAP = 38, 36
# Ratios that are written beside their marks.
_NAMED_FROM: Final = 1.4


def percent(error: float) -> str:
    """Return an error in percent, without an exponent."""
    shown = 100 * error
    text = f"{shown:.{max(0, 1 - math.floor(math.log10(shown) + 1e-9))}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "%"


def errors_in(cell: str) -> list[float]:
    """Return the errors of a cell: in norm, and for a gradient in the worst row."""
    return [float(text) for text in re.findall(r"\d(?:\.\d+)?e-\d+", cell)]


def peer_errors() -> Picture:
    """Draw the errors of losses from hidden states beside those of other libraries."""
    top, block = 128, 34
    height = top + sum(block + _ROW * len(rows) for _, rows in _BLOCKS) + 34
    spoken = " ".join(
        f"{title}: {'; '.join(f'{row.library}: {row.loss}, {row.hidden}, {row.weight}' for row in rows)}."
        for title, rows in _BLOCKS
    )
    picture = Picture(
        height,
        "Errors of losses from hidden states, against float64",
        "bfloat16; the other libraries on an H200, nkilib in its simulator; each axis by factors of 10, left is better",
        f"Errors of loss, gradient of the hidden states and gradient of the weight; of gradients in norm and in the "
        f"worst row. {spoken}",
    )
    left = MARGIN + 176
    width = (WIDTH - MARGIN - left + 8) / len(_PANELS)
    for number, panel in enumerate(_PANELS):
        _draw_panel(picture, panel, left + width * number, width - _GAP, (top, height - 44))
    y: float = top
    for title, rows in _BLOCKS:
        picture.text(MARGIN, y + 14, title, style="b")
        for index, row in enumerate(rows):
            middle = y + block + 4 + _ROW * index
            picture.text(MARGIN, middle + 4, row.library, size=13, style="b" if "nkilib" in row.library else "")
            for number, panel in enumerate(_PANELS):
                _draw_errors(picture, panel, left + width * number, width - _GAP, middle, getattr(row, panel.field))
        y += block + _ROW * len(rows)
    _draw_legend(picture, height - 18, (("circle", "blue", "in norm"), ("diamond", "red", "worst row of a gradient")))
    return picture


def _draw_panel(picture: Picture, panel: Panel, left: float, width: float, ends: tuple[float, float]) -> None:
    """Draw the title, the ticks and the grid of a column."""
    top, bottom = ends
    picture.lines(left, top - 11 - 17.5 * len(panel.title), panel.title, style="b", size=13)
    for error in panel.ticks:
        x = left + width * panel.share(error)
        picture.line((x, top - 6), (x, bottom), kind="grid", width=1)
        picture.text(x, top - 10, percent(error), "muted", size=12, anchor="middle")


def _draw_errors(picture: Picture, panel: Panel, left: float, width: float, y: float, cell: str) -> None:
    """Draw the errors of one library, and below them their figures."""
    errors = errors_in(cell)
    picture.line((left, y), (left + width, y), kind="grid", width=1)
    for error, shape, kind in zip(errors, ("circle", "diamond"), ("blue", "red"), strict=False):
        picture.mark(left + width * panel.share(error), y, shape, kind)
    shown = ("under " if "below" in cell else "") + " / ".join(map(percent, errors))
    half = width_of(shown, 12) / 2
    middle = left + width * sum(map(panel.share, errors)) / len(errors)
    picture.text(min(max(middle, left + half - 8), left + width - half + 16), y + 18, shown, "muted", "", 12, "middle")


def over_bound() -> Picture:
    """Draw the modelled time of all kernels over the bound of the hardware: forward beside backward."""
    kernels: dict[str, list[Launch]] = {}
    for launch in launches():
        kernels.setdefault(launch.kernel, []).append(launch)
    top, step, left, gap = 118, 26, MARGIN + 250, 40
    width = (WIDTH - MARGIN - left - gap - 8) / 2
    height = top + step * len(kernels) + 36
    end = math.ceil(max(launch.ratio for launches in kernels.values() for launch in launches))
    spoken = "; ".join(
        f"{name}: {', '.join(f'{item.form} in {item.dtype} {item.ratio}' for item in items)}"
        for name, items in kernels.items()
    )
    picture = Picture(
        height,
        "Modelled time of the kernels over the bound of the hardware",
        "1x: the least time in which HBM and the engines can do the work. Two cores of trn2, modelled, not measured",
        f"Modelled time over the bound, by kernel. {spoken}.",
    )
    for index, name in enumerate(kernels):
        picture.text(left - 16, top + step * index + 4, name, style="m", size=SMALL, anchor="end")
    for side, title in enumerate(("forward", "backward")):
        start, unit = left + side * (width + gap), width / (end - 1)
        picture.text(start - 8, top - 38, title, style="b")
        for tick in range(1, end + 1):
            x = start + unit * (tick - 1)
            picture.line((x, top - 14), (x, height - 46), kind="line" if tick == 1 else "grid", width=1)
            picture.text(x, top - 20, f"{tick}x", "muted", size=12, anchor="middle")
        for index, items in enumerate(kernels.values()):
            chosen = [launch for launch in items if launch.is_forward is (side == 0)]
            _draw_launches(picture, chosen, start, unit, top + step * index)
    marks = (
        ("circle", "blue", "bfloat16"),
        ("diamond", "red", "float32"),
        ("circle", "s-blue", "bfloat16, with options"),
        ("diamond", "s-red", "float32, with options"),
    )
    _draw_legend(picture, height - 16, marks)
    return picture


def _draw_launches(picture: Picture, items: Sequence[Launch], start: float, unit: float, y: float) -> None:
    """Draw the launches of a kernel in one direction: bfloat16 above float32, those with options as outlines."""
    for launch in sorted(items, key=lambda item: not item.has_options):
        is_short = launch.dtype == "bfloat16"
        shape, hue, shift = ("circle", "blue", -4.5) if is_short else ("diamond", "red", 4.5)
        kind = f"s-{hue}" if launch.has_options else hue
        x = start + unit * (launch.ratio - 1)
        picture.mark(x, y + shift, shape, kind, radius=4 if launch.has_options else 4.5)
        if launch.ratio >= _NAMED_FROM:
            picture.text(x + 9, y + shift + 4, f"{launch.ratio:.2f}", "muted", size=12)


def _draw_legend(picture: Picture, y: float, marks: Sequence[tuple[str, str, str]]) -> None:
    """Draw marks, each as its shape, its fill and its meaning, in a line."""
    x: float = MARGIN
    for shape, kind, words in marks:
        picture.mark(x + 6, y - 4, shape, kind, radius=4.5)
        picture.text(x + 17, y, words, size=SMALL)
        x += 44 + width_of(words, SMALL)
