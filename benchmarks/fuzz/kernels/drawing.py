# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The drawing of a random kernel: each line is tried in a launch and stays if the simulator takes it.

:class:`Maker` is a kernel that grows, and :func:`draw` draws a whole one of certain :class:`Sizes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np

from benchmarks.fuzz.kernels.places import Area, Areas, Place
from benchmarks.fuzz.kernels.program import Argument, Program
from nkilib import simulator
from nkilib.nki import nisa, nki, nl

Choice = TypeVar("Choice")

FLOATS: Final = ("float32", "float32", "bfloat16", "bfloat16", "float16")
# Bytes of a partition that the tiles of a kernel may take together.
_SBUF_BYTES: Final = 150 * 1024
_PSUM_TILES: Final = 7
_BANK_COLUMNS: Final = 512
_MOST_DRAWS: Final = 400
_WIDTHS: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "uint32": 4, "uint8": 1}


@dataclass(frozen=True)
class Sizes:
    """How large kernels are.

    Attributes:
        rows, columns: the sizes of HBM tensors and of tiles; some are smaller.
        lines: the approximate number of lines with instructions.
        is_lowered: whether the limits from which on tiles count as large are lowered to a few elements.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    lines: tuple[int, int]
    is_lowered: bool = False


SIZES: Final = {
    "tiny": Sizes((4, 16, 33, 64), (3, 8, 24, 40), (8, 45), is_lowered=True),
    "small": Sizes((64, 128), (32, 64, 100), (8, 45)),
    # Loads of 256 KiB wait for whoever reads them.
    "middle": Sizes((128,), (512, 520, 1030), (8, 35)),
    # More than 512 Ki elements are worked on a block of rows at a time.
    "large": Sizes((128,), (1030, 4100, 4500), (6, 22)),
}


class Maker(Areas):
    """A kernel that grows.

    Attributes:
        places: its tensors.
        writable: HBM tensors among them that are written; others are only read.
        results: names that it returns.
        instructions: among its lines.
        most_results: how many tensors it returns at most.
        swapped: whether a core holds the other one's rows of the arguments 0 and 1.
    """

    def __init__(self, seed: int, sizes: str, cores: int) -> None:
        self.rng = np.random.default_rng((seed, 0))
        super().__init__(self.rng)
        self.sizes, self.cores = SIZES[sizes], cores
        self.places: list[Place] = []
        self.writable: list[Place] = []
        self.results: list[str] = []
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"nisa": nisa, "nl": nl}
        self.swapped = [False, False]
        self.most_results = 6
        self.instructions = 0
        self._bytes, self._banks, self._count = 0, 0, 0
        self.rows = self.one_of(self.sizes.rows)
        self.arguments = self._draw_arguments()
        self.program = Program(seed, sizes, cores, self.arguments)

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self.rng.integers(len(choices)))]

    def new_name(self, kind: str) -> str:
        """A name that is not there."""
        self._count += 1
        return f"{kind}{self._count}"

    def _draw_arguments(self) -> tuple[Argument, ...]:
        """Two that are written, one that is only read, indices of rows and a mask."""
        columns = [self.one_of(self.sizes.columns) for _ in range(3)]
        made = [
            Argument(
                f"a{number}", (self.rows * (self.cores if number < 2 else 1), columns[number]), self.one_of(FLOATS)
            )
            for number in range(3)
        ]
        index = Argument("indices", (self.rows, 4), self.one_of(("int32", "int32", "uint32")), below=self.rows)
        return (*made, index, Argument("masks", (self.rows, max(columns)), "uint8"))

    def begin(self, arrays: Sequence[Any]) -> None:
        """The kernel begins: each core gets its own rows of what is written."""
        self.names.update({argument.name: tensor for argument, tensor in zip(self.arguments, arrays, strict=True)})
        self.add("core = nl.program_id(0)")
        self.add("other = 1 - core")
        for item in self.arguments[:2]:
            name = f"h{item.name[1:]}"
            self.bind(name, item.name, "core")
            self.writable.append(Place(name, self.rows, item.shape[1], item.dtype, "hbm"))
        read = self.arguments[2]
        self.places += [*self.writable, Place(read.name, *read.shape, read.dtype, "hbm")]

    def bind(self, name: str, tensor: str, core: str, rows: int = 0) -> bool:
        """Let a name stand for a core's rows of a tensor, which are as many as those of the arguments if not given."""
        rows = rows or self.rows
        if self.cores == 1:
            return self.add(f"{name} = {tensor}")
        return self.add(f"{name} = {tensor}[{core} * {rows} : {core} * {rows} + {rows}]")

    def add(self, line: str, is_tried: bool = True) -> bool:
        """A line, if the simulator takes it."""
        if is_tried:
            try:
                exec(line, self.names)
            except Exception:
                return False
        self.lines.append(line)
        self.instructions += line.startswith("nisa.")
        return True

    def tile(self, rows: int, columns: int, dtype: str, buffer: str = "sbuf") -> Place | None:
        """A new tile without content; None if there is no room."""
        if buffer == "psum":
            if self._banks == _PSUM_TILES:
                return None
            self._banks, columns = self._banks + 1, min(columns, _BANK_COLUMNS)
        else:
            width = columns * _WIDTHS[dtype]
            if self._bytes + width > _SBUF_BYTES:
                return None
            self._bytes += width
        name = self.new_name("t" if buffer == "sbuf" else "p")
        if not self.add(f"{name} = nl.ndarray(({rows}, {columns}), nl.{dtype}, nl.{buffer})"):
            return None
        return Place(name, rows, columns, dtype, buffer)

    def on_chip(self) -> list[Place]:
        return [place for place in self.places if place.on_chip]

    def any_tile(self) -> Place:
        """Draw a tile on chip; one of the last four more often."""
        tiles = self.on_chip()
        return self.one_of(tiles[-4:] if self.chance(0.6) else tiles)

    def source(self, place: Place, area: Area, same: float = 0.3) -> str:
        """An operand of the shape of ``area``: of the same tile, in place or beside, or of another one."""
        if self.chance(same):
            if self.chance(0.5):
                return place.text(area)
            return place.text(self.somewhere(place, area.rows, area.columns)._replace(top=area.top))
        fitting = [item for item in self.on_chip() if item.rows >= area.rows and item.columns >= area.columns]
        chosen = self.one_of(fitting or [place])
        result = self.somewhere(chosen, area.rows, area.columns)
        if self.chance(0.8) and area.top + area.rows <= chosen.rows:
            result = result._replace(top=area.top)
        if self.chance(0.06) and area.columns > 1:
            column = result._replace(columns=1, step=1)
            return f"{chosen.text(column)}.broadcast(1, {area.columns})"
        return chosen.text(result)

    def column(self, area: Area) -> str:
        """An operand of one element a partition, or a number."""
        fitting = [
            tensor
            for tensor in self.on_chip()
            if tensor.rows >= area.top + area.rows and tensor.dtype == "float32" and tensor.buffer == "sbuf"
        ]
        if not fitting or self.chance(0.4):
            return self.number()
        chosen = self.one_of(fitting)
        return chosen.text(Area(area.rows, 1, area.top, self.integer(0, chosen.columns - 1)))

    def text_of_column(self, area: Area) -> str:
        """A column of float32 in the partitions of ``area``; empty if there is none."""
        column = self.column(area)
        return column if "[" in column else ""

    def number(self) -> str:
        return self.one_of(("0.5", "-1.5", "2.0", "1.0", "0.0", "-0.25"))


Draws = Callable[[Maker], object]


def draw(seed: int, sizes: str, cores: int, kinds: Sequence[tuple[Draws, float]], end: Draws) -> Program:
    """A kernel; it runs to its end while it is drawn, on one core.

    Args:
        seed: the seed of all choices.
        sizes: a key of ``SIZES``.
        cores: the number of cores of its launch.
        kinds: the kinds of lines that may come next, with their weights.
        end: the lines at the end.
    """
    maker = Maker(seed, sizes, cores)
    weights = np.array([weight for _, weight in kinds])
    count = maker.integer(*maker.sizes.lines)

    def kernel(arrays: Sequence[Any]) -> None:
        maker.begin(arrays)
        for _ in range(_MOST_DRAWS):
            if maker.instructions >= count:
                break
            kinds[int(maker.rng.choice(len(kinds), p=weights / weights.sum()))][0](maker)
        end(maker)

    with warnings.catch_warnings(), simulator.using(uninitialized="error", replay=False):
        warnings.simplefilter("ignore")
        nki.jit(kernel)(maker.program.arrays())
    return replace(maker.program, lines=tuple(maker.lines), results=tuple(maker.results))
