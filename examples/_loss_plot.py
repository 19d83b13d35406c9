# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A picture of loss curves, with matplotlib where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path


def has_matplotlib() -> bool:
    """Whether :func:`draw_losses` can draw."""
    return find_spec("matplotlib") is not None


def fault_of(path: Path) -> str | None:
    """Return why :func:`draw_losses` cannot write to ``path``, or None. Ask before a training, which takes long.

    Raises:
        ImportError: without matplotlib.
    """
    from matplotlib.figure import Figure

    if path.is_dir():
        return f"must name a file, got the directory '{path}': say '{path / 'loss.png'}'"
    if not path.parent.is_dir():
        return f"must name a file in an existing directory, got '{path}': make '{path.parent}', or choose another"
    # What comes out as pgf is TeX, and matplotlib writes it only beside an installation of that.
    suffixes = sorted(f".{name}" for name in Figure().canvas.get_supported_filetypes() if name != "pgf")
    if path.suffix.lower() not in suffixes:
        return f"must end in a format that matplotlib writes, got '{path}': choose one of {', '.join(suffixes)}"
    return None


def draw_losses(
    path: Path, curves: Mapping[str, Sequence[float]], marks: Mapping[str, float], quantity: str = "loss in nats"
) -> None:
    """Write a picture of ``curves`` of a quantity over the steps, with ``marks`` as dotted levels.

    The suffix of the path gives the format.

    Raises:
        ImportError: without matplotlib, which the extra ``plot`` brings.
    """
    from matplotlib.figure import Figure  # optional, and slow to import

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel=quantity)
    for number, (name, losses) in enumerate(curves.items()):
        # The curves may cover each other: the later ones are dashed, so that both show.
        axes.plot(range(1, len(losses) + 1), losses, label=name, linestyle="--" if number else "-")
    for name, level in marks.items():
        axes.axhline(level, color="grey", linestyle=":", linewidth=1)
        beyond_the_frame = axes.get_yaxis_transform()  # x as a share of the axes: right of them, where no curve is
        axes.text(1.01, level, name, transform=beyond_the_frame, va="center", color="grey", fontsize="small")
    axes.legend()
    figure.savefig(path)
