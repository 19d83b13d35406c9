# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Timelines of a tutorial: what the engines do before and after each of its steps, from profiles of its scripts.

The page is the source: its script, its changes and its call of ``profile`` are run, and its table names the steps.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

from .figures import DOCS
from .svg import MARGIN, SMALL, WIDTH, Picture, number, width_of

PAGE: Final = DOCS / "tutorials" / "from_a_slow_kernel_to_the_bound.md"
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALL: Final = re.compile(r"^ *profiled = (profile\(.*\))$", re.MULTILINE)
_ROWS: Final = ("load", "store", "Vector", "Scalar", "GpSimd")
# Fills of instructions, in the order in which the scripts use them first; transfers have their own.
_FILLS: Final = ("blue", "amber", "green", "red", "pink")
_TRANSFER: Final = "grey"
# Instructions that take less than this share of the time are too short to be seen.
_SHOWN: Final = 0.01
# The names of a line of the legend.
_IN_A_LINE: Final = 4
_STEP_US: Final = (10, 20, 50, 100, 200, 500)


class Bar(NamedTuple):
    """An instruction on the timeline: its row, its name, and when it starts and ends, in microseconds."""

    row: str
    name: str
    start_us: float
    end_us: float


class Version(NamedTuple):
    """The kernel after a step.

    Attributes:
        name: the step, as the table of the page has it.
        time_us: the modelled time.
        bars: the instructions of core 0.
    """

    name: str
    time_us: float
    bars: tuple[Bar, ...]


def scripts(page: str) -> Iterator[str]:
    """Yield the script of a tutorial, and the script after each of its changes.

    Raises:
        ValueError: if the old lines of a change do not stand in the script exactly once.
    """
    blocks = _BLOCK.findall(page)
    script = ""
    for (language, block), (following, _) in pairwise([*blocks, ("", "")]):
        if language == "python":
            script = block
        elif language == "diff":
            old, new = ("".join(f"{line[1:]}\n" for line in block.splitlines() if line[:1] != sign) for sign in "+-")
            if script.count(old) != 1:
                raise ValueError(f"the script has these lines {script.count(old)} times, not once:\n{old}")
            script = script.replace(old, new)
        if language in ("python", "diff") and following != "diff":
            yield script


def _profile_of(script: str) -> Any:
    """Run a script but not its main part, and return the profile that its main part makes."""
    call = _CALL.search(script)
    if call is None:
        raise ValueError("the script has no line 'profiled = profile(...)'")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "script.py"
        path.write_text(script, encoding="utf-8")
        names = runpy.run_path(str(path), run_name="tutorial")
        profiled = eval(call[1], names)
        return profiled, tuple(_bars(profiled.instructions, script.splitlines()))


def _bars(events: Sequence[Any], lines: Sequence[str]) -> Iterator[Bar]:
    names = {"vector": "Vector", "scalar": "Scalar", "gpsimd": "GpSimd"}
    for event in events:
        if event.core != 0 or event.end_us <= event.start_us:
            continue
        row = names.get(event.engine)
        if event.engine == "dma":
            line = lines[int(event.place.rpartition(":")[2]) - 1]
            row = "store" if "dma_copy(result" in line else "load"
        if row:
            yield Bar(row, event.name, event.start_us, event.end_us)


@cache
def versions() -> tuple[Version, ...]:
    """Return the kernel of the tutorial after each of its steps, profiled.

    Raises:
        ValueError: if the table of the page does not name as many versions as its blocks make.
    """
    page = PAGE.read_text(encoding="utf-8")
    names = re.findall(r"^\| \[(.+?)\]\(#", page, re.MULTILINE)
    made = list(scripts(page))
    if len(names) != len(made):
        raise ValueError(f"the table of {PAGE.name} names {len(names)} versions, and its blocks make {len(made)}")
    found = []
    for name, script in zip(names, made, strict=True):
        profiled, bars = _profile_of(script)
        found.append(Version(name, profiled.time_us, bars))
    return tuple(found)


def steps() -> dict[str, Picture]:
    """Return a picture of each step by the name of its file: the versions before and after it on one axis."""
    found = versions()
    fills: dict[str, str] = {}
    for version in found:
        for bar in version.bars:
            if bar.row not in ("load", "store") and _share(version, bar.name) >= _SHOWN:
                fills.setdefault(bar.name, _FILLS[len(fills) % len(_FILLS)])
    return {
        f"rms_norm_step_{index}": _step(before, after, fills)
        for index, (before, after) in enumerate(pairwise(found), 1)
    }


def _share(version: Version, name: str) -> float:
    return sum(bar.end_us - bar.start_us for bar in version.bars if bar.name == name) / version.time_us


def _busy(bars: Sequence[Bar]) -> float:
    """Return the microseconds in which at least one of the instructions runs."""
    busy = end = 0.0
    for bar in sorted(bars, key=lambda bar: bar.start_us):
        busy += max(0.0, bar.end_us - max(end, bar.start_us))
        end = max(end, bar.end_us)
    return busy


def _shares(version: Version) -> dict[str, float]:
    """Return the share of the time in which each row is busy."""
    return {row: _busy([bar for bar in version.bars if bar.row == row]) / version.time_us for row in _ROWS}


def _step(before: Version, after: Version, fills: Mapping[str, str]) -> Picture:
    """Draw two versions below each other on the axis of the slower one."""
    spoken = " ".join(
        f"{when}, {version.name}: {version.time_us:,.1f} us, busy: "
        + ", ".join(f"{row} {share:.0%}" for row, share in _shares(version).items())
        + "."
        for when, version in (("Before", before), ("After", after))
    )
    top, row, gap = 78, 19, 46
    panel = row * len(_ROWS)
    names = {bar.name for version in (before, after) for bar in version.bars}
    used = {name: fill for name, fill in fills.items() if name in names}
    height = top + 2 * panel + gap + 74 + 20 * (len(used) + 1 > _IN_A_LINE)
    picture = Picture(
        height,
        f"{after.name[:1].upper()}{after.name[1:]}",
        "core 0 of 2, modelled on trn2, not measured; percentages: busy",
        f"Timelines of loads, stores, Vector, Scalar and GpSimd. {spoken}",
    )
    left = MARGIN + 64
    unit = (WIDTH - MARGIN - 48 - left) / max(before.time_us, after.time_us)
    for y, when, version in ((top, "before", before), (top + panel + gap, "after", after)):
        picture.text(MARGIN, y + 4, f"{when}: {version.time_us:,.1f} us", style="b", size=13)
        _draw_panel(picture, version, fills, (left, y + 12), unit, row)
    _draw_axis(picture, left, top + 2 * panel + gap + 14, unit, max(before.time_us, after.time_us))
    _draw_legend(picture, {"transfer": _TRANSFER, **used}, height - 17 - 20 * (len(used) + 1 > _IN_A_LINE))
    return picture


def _draw_legend(picture: Picture, fills: Mapping[str, str], y: float) -> None:
    """Draw a square and the name of each fill, in one line or two."""
    x: float = MARGIN
    for index, (name, fill) in enumerate(fills.items()):
        if index == _IN_A_LINE:
            x, y = MARGIN, y + 20
        picture.rect(x, y - 10, 12, 12, fill, radius=2)
        picture.text(x + 18, y, name, style="" if name == "transfer" else "m", size=12)
        x += 40 + width_of(name, 12, "m")


def _draw_panel(
    picture: Picture,
    version: Version,
    fills: Mapping[str, str],
    origin: tuple[float, float],
    unit: float,
    row: float,
) -> None:
    left, top = origin
    shares = _shares(version)
    end = left + unit * version.time_us
    for index, name in enumerate(_ROWS):
        y = top + row * index
        picture.text(left - 10, y + 13, name, size=12, anchor="end")
        picture.rect(left, y + 1, end - left, row - 3, "box")
        picture.text(end + 6, y + 13, f"{shares[name]:.0%}", "muted", size=12)
        bars = [bar for bar in version.bars if bar.row == name]
        kinds = [_TRANSFER] if name in ("load", "store") else list(dict.fromkeys(fills.values()))
        for kind in kinds:
            own = [bar for bar in bars if kind == _TRANSFER or fills.get(bar.name) == kind]
            commands = "".join(
                f"M{number(left + unit * start)} {number(y + 2)}h{number(unit * (stop - start))}v{row - 5:g}"
                f"h{number(unit * (start - stop))}z"
                for start, stop in _merged(own, 0.25 / unit)
            )
            if commands:
                picture.path(commands, kind)


def _merged(bars: Sequence[Bar], gap: float) -> list[tuple[float, float]]:
    """Return the spans of instructions, as one where a pause is too short to be seen."""
    spans: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.start_us):
        if spans and bar.start_us - spans[-1][1] < gap:
            spans[-1] = (spans[-1][0], max(spans[-1][1], bar.end_us))
        else:
            spans.append((bar.start_us, bar.end_us))
    return spans


def _draw_axis(picture: Picture, left: float, y: float, unit: float, longest: float) -> None:
    every = next(step for step in _STEP_US if longest / step <= 8)
    picture.line((left, y), (left + unit * longest, y), kind="edge", width=1)
    for index in range(int(longest / every) + 1):
        x = left + unit * every * index
        picture.line((x, y), (x, y + 4), kind="edge", width=1)
        label = f"{every * index:,}" + (" us" if index == 0 else "")
        picture.text(x, y + 17, label, "muted", size=SMALL - 0.5, anchor="middle")
