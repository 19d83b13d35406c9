# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Draw the pictures of the documentation into docs/images: ``python -m tools.write_plots`` (about a minute).

The SVG files of :mod:`tools.pictures`, in a second: memory.svg needs PyTorch, whose losses its figures are about, and
those of sizes show what ``python -m benchmarks.size_grid --write`` wrote. Then
roofline.png, modelled speed of kernels on two cores of trn2 below the roof that HBM and engines set, for which the
kernels are profiled and matplotlib draws; ``--svg`` leaves it as it is.

Every time in a picture is modelled, not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from nkilib.experimental.loss import choose_tiling, mse_loss_forward, profiling
from nkilib.experimental.softmax import softmax_forward
from nkilib.simulator import Profile, profile, spec
from tools.pictures import charts, decisions, diagrams, grids, timelines
from tools.pictures.figures import DOCS
from tools.pictures.svg import Picture

IMAGES: Final = DOCS / "images"
# The pictures that are drawn from figures alone, by the name of the file without its suffix.
PICTURES: Final[Mapping[str, Callable[[], Picture]]] = {
    "memory": charts.memory,
    "peer_errors": charts.peer_errors,
    "over_bound": charts.over_bound,
    "neuron_core": diagrams.neuron_core,
    "logits_or_fused": diagrams.logits_or_fused,
    "choose_a_loss": decisions.choose_a_loss,
    **{name: partial(grids.size_grid, *grid) for name, grid in grids.GRIDS.items()},
}


class Point(NamedTuple):
    """A kernel in the plot of the roofline.

    Attributes:
        name: the label.
        balance: the least time of the busiest compute engine over the least time of HBM.
        speed: the least time of that engine over the modelled time; at most 1, and at most ``balance``.
    """

    name: str
    balance: float
    speed: float

    @classmethod
    def of_profile(cls, name: str, profiled: Profile) -> Point:
        """Return the point of a profiled launch, with its label."""
        engine = max(bound for resource, bound in profiled.bounds_us.items() if resource != "dma")
        return cls(name, engine / profiled.bounds_us["dma"], engine / profiled.time_us)


def launches() -> Iterator[tuple[str, Profile]]:
    """Profile the launches of the roofline, and yield each with its label."""
    rows, classes, features, dtype = 4096, 32_000, 2048, "bfloat16"
    for direction in ("forward", "backward"):
        tiling = choose_tiling(rows, classes, dtype, direction)
        yield f"cross-entropy {direction}", profiling.profile_launch(rows, classes, dtype, direction, tiling)
        linear = profiling.profile_linear_launch(rows, features, classes, dtype, direction)
        yield f"linear cross-entropy {direction}", linear
    matrix = spec((rows, classes), dtype)
    yield "softmax forward", profile(softmax_forward[2], matrix)
    yield "MSE forward", profile(mse_loss_forward[2], matrix, matrix)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=110, layout="constrained")
    return figure, figure.subplots()


def draw_roofline(path: Path) -> None:
    """Draw the modelled launches below the roof into ``path``."""
    figure, axes = _figure()
    points = [Point.of_profile(name, profiled) for name, profiled in launches()]
    balances = [min(point.balance for point in points) / 2, 1.0, max(point.balance for point in points) * 4]
    axes.plot(balances, [min(1.0, balance) for balance in balances], color="#555555", label="roof")
    for point, marker in zip(points, "osD^vP", strict=True):
        roof = min(1.0, point.balance)
        label = f"{point.name}: {point.speed / roof:.0%} of the roof"
        axes.plot(point.balance, point.speed, marker, markersize=8, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("work of the busiest engine over work of HBM (left of 1: HBM limits)")
    axes.set_ylabel("speed, share of that engine's peak")
    axes.set_title("Kernels on two cores of trn2, bfloat16, 4,096 rows: modelled, not measured")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path)


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--svg", action="store_true", help="leave out roofline.png, which takes a minute and matplotlib"
    )
    options = parser.parse_args()
    drawn = {name: draw() for name, draw in PICTURES.items()} | timelines.steps()
    for name, picture in drawn.items():
        (IMAGES / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    if not options.svg:
        draw_roofline(IMAGES / "roofline.png")


if __name__ == "__main__":
    main()
