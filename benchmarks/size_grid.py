# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every kernel over its bound on a grid of sizes: ``python -m benchmarks.size_grid``.

A *cell* is a launch on two cores of trn2 with N positions (rows) and V classes (columns). Modelled, not measured.
``--write`` puts the cells into docs/evidence/size_grid.csv, from which ``python -m tools.write_plots`` draws a picture
for each type. All cells take about an hour of CPU time.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import cpu_count, get_context
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.table import Table

from benchmarks._display import NO_MODEL, begin_modelled, table_of
from examples._display import make_console
from nkilib.cli.arguments import Parser, add_launch_arguments
from nkilib.cli.modelled.registry import FAMILIES, add_family_arguments, kernels_of
from nkilib.experimental.loss import choose_tiling
from nkilib.experimental.loss.profiling import profile_launch
from nkilib.simulator import Profile, spec

CELLS: Final = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "size_grid.csv"
POSITIONS: Final = (32, 128, 512, 2048, 8192)
CLASSES: Final = (256, 1024, 4096, 32000, 50257)
DTYPES: Final = ("bfloat16", "float32")
DIRECTIONS: Final = ("forward", "backward")
# The hidden sizes of the kernels that compute the logits.
FEATURES: Final = {
    "linear_cross_entropy": ("--features", "2048"),
    "linear_token_scores": ("--features", "2048"),
    "linear_distillation": ("--features", "1024", "--teacher-features", "2048"),
}
# The time of these depends on the targets, or their tensors are no N x V.
LEFT_OUT: Final = ("ctc_loss", "multilabel_margin_loss")
# Token scores from hidden states have no backward of their own. The forward of nll_loss reads N elements: its bound,
# the time of so few bytes, says nothing.
ONLY: Final = {"linear_token_scores": ("forward",), "nll_loss": ("backward",)}
# The launches of nkilib.torch: the extended cross-entropy kernel with ignore_index and these options of the forward ...
EXTENDED: Final[Mapping[str, Mapping[str, Any]]] = {
    "cross_entropy ignore_index": {},
    "cross_entropy label_smoothing": {"label_smoothing": 0.1},
    "cross_entropy z-loss": {"lse_square_scale": 1e-4},
    "cross_entropy weight": {"class_weight_hbm": "classes"},
    "token_scores": {"with_entropy": True},
}
# ... and of the backward: tensors by the size that they have.
GRADIENTS: Final = ("lse", "maximum", "log_sum", "grad_loss")
GRADIENTS_OF_SCORES: Final = ("lse", "maximum", "log_sum", "entropy", "grad_logprob", "grad_entropy")
# A launch of this length or more is long enough that its start and its end are a small part.
LONG_US: Final = 30.0
WORST: Final = 3


class Cell(NamedTuple):
    """A launch and its modelled time.

    Attributes:
        family, direction, dtype: the kernel, and the type of its large tensors.
        positions, classes: the sizes N and V.
        time_us, bound_us: the modelled time, and the least time that HBM and the engines need.
        bound_by: the resource that sets the bound.
        busiest: the engine that is busy longest.
        busy: the share of the time in which it is busy.
    """

    family: str
    direction: str
    dtype: str
    positions: int
    classes: int
    time_us: float
    bound_us: float
    bound_by: str
    busiest: str
    busy: float

    @property
    def ratio(self) -> float:
        """The time over the bound."""
        return self.time_us / self.bound_us

    @property
    def kernel_name(self) -> str:
        """The family and the direction."""
        return f"{self.family} {self.direction}"


class Launch(NamedTuple):
    """A launch to model; attributes as those of :class:`Cell`."""

    family: str
    direction: str
    dtype: str
    positions: int
    classes: int


def families() -> list[str]:
    """Return the names of the families in the grid, those of the extended kernel after plain cross-entropy."""
    first, *others = (name for family in FAMILIES for name in family.NAMES if name not in LEFT_OUT)
    return [first, *EXTENDED, *others]


def launches(
    names: Sequence[str], positions: Sequence[int] = POSITIONS, classes: Sequence[int] = CLASSES
) -> Iterator[Launch]:
    """Yield the launches of the grid for some families, kernel by kernel."""
    for name in names:
        for direction in ONLY.get(name, DIRECTIONS):
            for dtype in DTYPES:
                for size in positions:
                    yield from (Launch(name, direction, dtype, size, count) for count in classes)


def _extended_profile(launch: Launch) -> Profile:
    """Return the profile of a launch as nkilib.torch makes it."""
    size = launch.positions, launch.classes, launch.dtype, launch.direction
    is_scores, options = launch.family == "token_scores", dict(EXTENDED[launch.family])
    if "class_weight_hbm" in options:
        options["class_weight_hbm"] = spec((launch.classes,), "float32")
    if launch.direction == "forward":
        options["with_log_sum"] = True
    else:
        options.pop("with_entropy", None)
        names = GRADIENTS_OF_SCORES if is_scores else GRADIENTS
        options |= {f"{name}_hbm": spec((launch.positions,), "float32") for name in names}
    tiling = choose_tiling(*size, extended=True)
    return profile_launch(*size, tiling, extended=True, ignore_index=-100, **options)


def modelled(launch: Launch) -> Cell:
    """Return the cell of a launch, with the tiling that the library chooses."""
    found = _extended_profile(launch) if launch.family in EXTENDED else _profile(launch)
    busiest = max(found.engine_busy_us, key=found.engine_busy_us.__getitem__)
    busy = found.engine_busy_us[busiest] / found.time_us
    bound = float(f"{found.bound_us:.4g}")
    return Cell(*launch, round(found.time_us, 1), bound, found.bound_by or "", busiest, round(busy, 3))


def _profile(launch: Launch) -> Profile:
    """Return the profile of a launch as ``python -m nkilib profile`` makes it."""
    parser = Parser(prog="size_grid")
    parser.set_defaults(refuse=parser.error)
    add_launch_arguments(parser)
    add_family_arguments(parser, several=False)
    sizes = "--positions", str(launch.positions), "--vocab", str(launch.classes)
    kernel = "--family", launch.family, "--direction", launch.direction, "--dtype", launch.dtype
    kernels = kernels_of(parser.parse_args([*sizes, *kernel, *FEATURES.get(launch.family, ())]))
    return kernels.profile(kernels.chosen(), cores=2)


def read_cells(path: Path = CELLS) -> list[Cell]:
    """Return the cells of a file that :func:`write_cells` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Cell(
                row["family"],
                row["direction"],
                row["dtype"],
                int(row["positions"]),
                int(row["classes"]),
                float(row["time_us"]),
                float(row["bound_us"]),
                row["bound_by"],
                row["busiest"],
                float(row["busy"]),
            )
            for row in csv.DictReader(file)
        ]


def write_cells(cells: Iterable[Cell], path: Path = CELLS) -> None:
    """Write cells into a file of comma-separated values."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Cell._fields)
        writer.writerows(cells)


def worst(cells: Iterable[Cell], at_least_us: float = 0.0) -> list[Cell]:
    """Return the cells that are farthest from their bound, of those that take ``at_least_us``."""
    return sorted((cell for cell in cells if cell.time_us >= at_least_us), key=attrgetter("ratio"), reverse=True)[
        :WORST
    ]


def _limit(cell: Cell) -> str:
    return f"{cell.busiest} is busy {cell.busy:.0%}"


def _worst_table(title: str, cells: Iterable[Cell]) -> Table:
    table = table_of(title, ("kernel", "type", "N x V"), ("us", "bound", "times", "limit"))
    for cell in cells:
        sizes = f"{cell.positions:,} x {cell.classes:,}"
        figures = f"{cell.time_us:,.1f}", f"{cell.bound_us:,.1f}", f"{cell.ratio:.2f}", _limit(cell)
        table.add_row(cell.kernel_name, cell.dtype, sizes, *figures)
    return table


def changes(cells: Iterable[Cell], before: Iterable[Cell]) -> Iterator[str]:
    """Yield a line for each cell that takes over 1% longer, or 1% less, than before."""
    times = {cell[:5]: cell.time_us for cell in before}
    for cell in cells:
        was = times.get(cell[:5])
        if was and abs(cell.time_us / was - 1) > 0.01:
            yield f"{' '.join(map(str, cell[:5]))}: {was:,.1f} -> {cell.time_us:,.1f} us, {cell.time_us / was - 1:+.1%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the worst cells; returns 0, or 2 if there is no simulator that models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size_grid", description=__doc__)
    parser.add_argument("--family", nargs="+", choices=families(), metavar="NAME", help="kernels (default: all)")
    parser.add_argument("--positions", nargs="+", type=int, default=POSITIONS, metavar="N", help="rows of the grid")
    parser.add_argument("--classes", nargs="+", type=int, default=CLASSES, metavar="V", help="columns of the grid")
    parser.add_argument("--jobs", type=int, default=cpu_count(), help="processes (default: one a CPU core)")
    parser.add_argument("--write", type=Path, nargs="?", const=CELLS, metavar="FILE.csv", help="write the cells")
    parser.add_argument("--against", type=Path, metavar="FILE.csv", help="print the cells that changed by over 1%%")
    options = parser.parse_args(arguments)
    console = make_console()
    if not begin_modelled(console, "Time over bound on a grid of sizes", "Modelled, not measured; two cores of trn2."):
        return NO_MODEL
    asked = list(launches(options.family or families(), options.positions, options.classes))
    before = read_cells(options.against) if options.against else []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        # The largest first, so that no process has the longest launch to itself at the end.
        order = sorted(range(len(asked)), key=lambda at: asked[at].positions * asked[at].classes, reverse=True)
        found = dict(zip(order, pool.map(modelled, map(asked.__getitem__, order)), strict=True))
    cells = [found[at] for at in range(len(asked))]
    if options.write:
        write_cells(cells, options.write)
    console.print(_worst_table("Farthest from the bound", worst(cells)))
    console.print(_worst_table(f"Of those of {LONG_US:.0f} us or more", worst(cells, LONG_US)))
    for line in changes(cells, before):
        console.print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
