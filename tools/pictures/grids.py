# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Maps of the modelled time over the bound on a grid of sizes: :func:`size_grid`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

from benchmarks.size_grid import DIRECTIONS, DTYPES, LONG_US, Cell, read_cells

from .svg import MARGIN, SMALL, WIDTH, Picture, number, width_of

# The pictures: direction and type by the name of the file.
GRIDS: Final = {f"size_grid_{way}_{dtype}": (way, dtype) for way, dtype in product(DIRECTIONS, DTYPES)}


class Shade(NamedTuple):
    """The fill of cells up to a ratio, and the colour of the ratio; ``""``: it is not shown."""

    up_to: float
    fill: str
    text: str


SHADES: Final = (Shade(1.1, "fresh", ""), Shade(1.5, "soft", ""), Shade(3.0, "warm", "ink"))
_BEYOND, _SHORT = Shade(float("inf"), "red", "on"), Shade(float("inf"), "box", "")
_TOP, _STEP, _LEFT, _GAP, _TEXT = 118, 17, MARGIN + 246, 5, 12


def _shade_of(cell: Cell) -> Shade:
    """Return the shade of a cell; a short launch, of which start and end are a large part, has one of its own."""
    if cell.time_us < LONG_US:
        return _SHORT
    return next((shade for shade in SHADES if cell.ratio <= shade.up_to), _BEYOND)


class _Frame(NamedTuple):
    """The places of cells: the sizes of the grid, and the width of a cell."""

    positions: Sequence[int]
    classes: Sequence[int]

    @property
    def width(self) -> float:
        return (WIDTH - MARGIN - _LEFT - _GAP * len(self.positions)) / (len(self.positions) * len(self.classes))

    def left(self, positions: int, classes: int) -> float:
        """Return the left end of a column."""
        group = self.positions.index(positions)
        return _LEFT + self.width * (group * len(self.classes) + self.classes.index(classes)) + _GAP * group


def _draw_key(picture: Picture, y: float) -> None:
    words = [f"{'up' if at == 0 else ''} to {shade.up_to:g}".strip() for at, shade in enumerate(SHADES)]
    words += [f"over {SHADES[-1].up_to:g}", f"shorter than {LONG_US:.0f} us"]
    x: float = MARGIN
    for text, shade in zip(words, (*SHADES, _BEYOND, _SHORT), strict=True):
        picture.rect(x, y - 11, 18, 14, f"{shade.fill} edge", radius=2)
        picture.text(x + 24, y, text, size=SMALL)
        x += 48 + width_of(text, SMALL)


def _spoken(kernels: dict[str, list[Cell]]) -> str:
    worst = {name: max(cells, key=lambda cell: cell.ratio) for name, cells in kernels.items()}
    return "; ".join(f"{name} {cell.ratio:.1f} at {cell.positions} x {cell.classes}" for name, cell in worst.items())


def size_grid(direction: str, dtype: str) -> Picture:
    """Draw the cells of a direction and a type: a row for each kernel, a column for each size.

    Args:
        direction: ``"forward"`` or ``"backward"``.
        dtype: ``"bfloat16"`` or ``"float32"``.

    Returns:
        The picture; the cells are those of docs/evidence/size_grid.csv.
    """
    kernels: dict[str, list[Cell]] = {}
    for cell in read_cells():
        if (cell.direction, cell.dtype) == (direction, dtype):
            kernels.setdefault(cell.family, []).append(cell)
    cells = [cell for row in kernels.values() for cell in row]
    frame = _Frame(sorted({cell.positions for cell in cells}), sorted({cell.classes for cell in cells}))
    height = _TOP + _STEP * len(kernels) + 36
    classes = ", ".join(f"{count:,}" for count in frame.classes)
    picture = Picture(
        height,
        f"Modelled time over the bound: {direction}, {dtype}",
        f"In each group V is {classes} from left to right. Two cores of trn2, default tilings",
        f"A table of colours: kernels at sizes N x V. The largest ratio of each: {_spoken(kernels)}.",
    )
    for size in frame.positions:
        middle = frame.left(size, frame.classes[0]) + frame.width * len(frame.classes) / 2
        picture.text(middle, _TOP - 9, f"N = {size:,}", style="b", size=_TEXT, anchor="middle")
    outlines: dict[str, list[str]] = {}
    shown: list[tuple[float, float, str, str]] = []
    for row, (family, of_family) in enumerate(kernels.items()):
        y = _TOP + _STEP * row
        picture.text(_LEFT - 8, y + 12.5, family, style="m", size=_TEXT, anchor="end")
        for cell in of_family:
            x, shade = frame.left(cell.positions, cell.classes), _shade_of(cell)
            width = number(frame.width - 1)
            outlines.setdefault(shade.fill, []).append(f"M{number(x)} {y}h{width}v{_STEP - 1}h-{width}z")
            if shade.text:
                shown.append((x + (frame.width - 1) / 2, y + 12.5, f"{min(cell.ratio, 99):.0f}", shade.text))
    for fill, paths in outlines.items():
        picture.path("".join(paths), fill)
    for x, baseline, ratio, kind in shown:
        picture.text(x, baseline, ratio, kind, size=_TEXT, anchor="middle")
    _draw_key(picture, height - 14)
    return picture
