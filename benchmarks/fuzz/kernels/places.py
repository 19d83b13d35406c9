# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors of a random kernel (:class:`Place`), and random parts of them (:class:`Areas`) as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

# By the most partitions that may be reached from there.
_STARTS: Final = ((32, (0, 32, 64, 96)), (64, (0, 64)), (128, (0,)))


class Area(NamedTuple):
    """A part of a tensor: rows from ``top``, columns from ``left`` in steps."""

    rows: int
    columns: int
    top: int = 0
    left: int = 0
    step: int = 1


@dataclass(frozen=True)
class Place:
    """A tensor of two dimensions.

    Attributes:
        name: in the body.
        rows, columns: its shape.
        dtype: name of its type.
        buffer: ``sbuf``, ``psum`` or ``hbm``.
    """

    name: str
    rows: int
    columns: int
    dtype: str
    buffer: str

    @property
    def on_chip(self) -> bool:
        return self.buffer != "hbm"

    def text(self, area: Area) -> str:
        """A part of it."""
        right = area.left + (area.columns - 1) * area.step + 1
        step = f":{area.step}" if area.step > 1 else ""
        if area == Area(self.rows, self.columns):
            return self.name
        return f"{self.name}[{area.top}:{area.top + area.rows}, {area.left}:{right}{step}]"


class Areas:
    """Draws parts of tensors."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        return bool(self._rng.random() < probability)

    def integer(self, least: int, most: int) -> int:
        """Draw an integer from ``least`` to ``most``, both included."""
        return int(self._rng.integers(least, most + 1))

    def part_of(self, place: Place, whole: float = 0.4) -> Area:
        """Any part that an engine may reach."""
        rows = place.rows if self.chance(0.7) else self.integer(1, place.rows)
        columns = place.columns if self.chance(whole) else self.integer(1, place.columns)
        return self.somewhere(place, rows, columns)

    def somewhere(self, place: Place, rows: int, columns: int) -> Area:
        """A part of this shape; the tensor must be large enough."""
        most = place.rows - rows
        if place.on_chip:
            allowed = next(starts for partitions, starts in _STARTS if rows <= partitions)
            tops = [start for start in allowed if start <= most]
        else:
            tops = [0, self.integer(0, most)]
        step = self.integer(1, max(1, min(3, place.columns // columns))) if self.chance(0.2) else 1
        spare = place.columns - (columns - 1) * step - 1
        left = self.integer(0, spare) if self.chance(0.7) else 0
        return Area(rows, columns, tops[self.integer(0, len(tops) - 1)], left, step)
