# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Draw the plots of the documentation: ``python -m tools.write_plots`` (needs matplotlib; about a minute).

- docs/images/roofline.png: modelled speed of kernels on two cores of trn2 below the roof that HBM and engines set;
- docs/images/memory.png: memory of the loss against tokens, from arithmetic, beside peaks that TRL has published.

Every time is modelled, not measured. docs/reference/linear_cross_entropy_memory.md has the source of TRL's figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from nkilib.experimental.loss import choose_linear_tiling, choose_tiling, mse_loss_forward, profiling
from nkilib.experimental.loss.linear.block_schedule import position_parts
from nkilib.experimental.loss.linear.tiling import backward_bytes, split_backward_bytes
from nkilib.experimental.softmax import softmax_forward
from nkilib.simulator import Profile, profile, spec

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
GIB: Final = 2**30

# Gemma 3 1B: features and classes.
FEATURES, CLASSES = 1152, 262_144
# TRL 1.15.0 release notes, one GPU with 79 GiB, Gemma 3 1B at 8,192 tokens: peak of a whole training step in GiB, with
# logits and from hidden states.
TRL_TOKENS: Final = 8192
TRL_PEAKS_GIB: Final = {"DPO": (48.97, 12.00), "GRPO": (24.15, 10.30), "SFT": (30.33, 8.87)}
# F.cross_entropy(logits.float(), target) with its gradient, bytes for a logit: see linear_cross_entropy_memory.md.
LOGITS_BYTES: Final = 14


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


def loss_bytes(tokens: int, features: int = FEATURES, classes: int = CLASSES) -> int:
    """Compute the memory of the linear loss kernels beyond inputs and gradients.

    Args:
        tokens: the number of positions, in bfloat16.
        features: D, the number of features, by default that of Gemma 3 1B.
        classes: V, the number of classes, by default that of Gemma 3 1B.

    Returns:
        The number of bytes of HBM.
    """
    tiling = choose_linear_tiling(tokens, features, classes, "bfloat16", "backward")
    parts = position_parts(tokens, features)
    if parts.is_split:
        return split_backward_bytes(parts, features, classes, tiling, input_itemsize=2, has_weight_sum=False)
    return backward_bytes(tokens, features, *tiling)


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


def draw_memory(path: Path) -> None:
    """Draw memory against tokens into ``path``."""
    figure, axes = _figure()
    tokens = [2**power for power in range(10, 18)]
    axes.plot(tokens, [LOGITS_BYTES * CLASSES * n / GIB for n in tokens], "o-", label="loss from logits.float()")
    axes.plot(tokens, [loss_bytes(n) / GIB for n in tokens], "s-", label="loss of nkilib from hidden states")
    for (name, peaks), marker in zip(TRL_PEAKS_GIB.items(), "v^D", strict=True):
        label = f"whole {name} step with TRL 1.15 on a GPU: with logits above, from hidden states below"
        axes.plot([TRL_TOKENS] * 2, peaks, marker, color="#888888", markersize=6, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("GiB")
    axes.set_title("Gemma 3 1B, 262,144 classes: memory by arithmetic, beside published peaks")
    axes.set_xticks(tokens, [f"{n:,}" for n in tokens])
    axes.grid(True, alpha=0.25)
    figure.legend(loc="outside lower center", fontsize=8, ncols=1)
    figure.savefig(path)


def main() -> int:
    """Draw all plots.

    Returns:
        The exit code, 0.
    """
    IMAGES.mkdir(exist_ok=True)
    draw_roofline(IMAGES / "roofline.png")
    draw_memory(IMAGES / "memory.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
