# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The page of a profile, its size and its speed: ``python -m benchmarks.report_page``.

A kernel of ten instructions a step on all engines, with tiles of many widths, is profiled on shapes; its page is
written, and opened in a headless Chromium of the system, where the table has the time until it is drawn and the frames
a second while all pictures are zoomed and panned. Without playwright and a browser the table has sizes only.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks._display import begin_modelled, end_verdicts, table_of, verdict
from examples._display import make_console
from nkilib.nki import nisa, nki, nl
from nkilib.simulator import profile, spec
from tests.browser import Browser, headless

COUNTS = (1_000, 30_000)
# The goals by number of instructions: bytes of the page, milliseconds until it is drawn, frames a second.
_MOST_BYTES = {1_000: 300_000, 30_000: 3_000_000}
_MOST_MS, _FEWEST_FRAMES = 1_000.0, 30.0
_IN_A_STEP, _SLOTS, _ROWS, _COLUMNS = 10, 4, 1024, 512
# Zooms in and out, then pans there and back; returns the frames a second of each.
_FRAMES = """async () => {
  const frame = () => new Promise(done => requestAnimationFrame(done));
  const run = async act => {
    const begun = await frame();
    let last = begun;
    for (let step = 0; step < 90; step++) { act(step); last = await frame(); }
    return 90_000 / (last - begun);
  };
  axis.show(0, axis.end);
  const zoom = await run(step => axis.zoom(step < 45 ? 0.9 : 1 / 0.9, 0.4 * axis.end));
  axis.show(0, axis.end / 2);
  return [zoom, await run(step => axis.pan(step < 45 ? 0.01 : -0.01))];
}"""


@dataclass(frozen=True)
class Figures:
    """The figures of a page.

    Attributes:
        instructions: the number of instructions of the launch.
        seconds: the time in which the page is written, without that of the profile and its advice.
        nbytes: the size of the file.
        drawn_ms: the time from the start of the script until everything is drawn; None without a browser.
        frames: the fewest frames a second while it is zoomed and while it is panned; None without a browser.
    """

    instructions: int
    seconds: float
    nbytes: int
    drawn_ms: float | None = None
    frames: float | None = None

    @property
    def meets_goals(self) -> bool:
        """Whether the page keeps to the goals for its number of instructions, as far as they were measured."""
        most = _MOST_BYTES.get(self.instructions)
        is_quick = self.drawn_ms is None or self.drawn_ms <= _MOST_MS
        is_smooth = self.frames is None or self.frames >= _FEWEST_FRAMES
        return most is None or (self.nbytes <= most and is_quick and is_smooth)


@nki.jit
def _many(x: Any, steps: int) -> Any:
    """Load, work on and store tiles of many widths, ten instructions in each step."""
    result = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
    tiles, squares = ([nl.ndarray((128, _COLUMNS), nl.float32) for _ in range(_SLOTS)] for _ in range(2))
    for step in range(steps):
        first, width = 128 * (step % (_ROWS // 128)), 128 + 16 * (7 * step % 24)
        tile, square = tiles[step % _SLOTS][:, :width], squares[step % _SLOTS][:, :width]
        nisa.dma_copy(tile, x[first : first + 128, :width])
        total = nl.ndarray((128, 1), nl.float32, name="total")
        nisa.activation_reduce(square, nl.square, tile, reduce_op=nl.add, reduce_res=total)
        nisa.tensor_scalar(total, total, nl.multiply, 1 / width, op1=nl.add, operand1=1e-6)
        nisa.activation(total, nl.rsqrt, total)
        product = nl.ndarray((128, 128), nl.float32, nl.psum)
        nisa.nc_matmul(product, tile[:, :128], tile[:, :128])
        copy = nl.ndarray((128, 128), nl.float32, name="copy")
        nisa.tensor_copy(copy, product)
        nisa.tensor_tensor(copy, copy, square[:, :128], nl.add, engine=nisa.engine.gpsimd)
        nisa.tensor_scalar(square, tile, nl.multiply, total)
        nisa.dma_copy(result[first : first + 128, :width], square)
        nisa.dma_copy(result[first : first + 128, :128], copy)
    return result


def measure(count: int, folder: Path, browser: Browser | None = None) -> Figures:
    """Write the page of a launch into a folder, and open it.

    Args:
        count: the number of instructions, a multiple of ten.
        folder: an existing folder.
        browser: the browser; None to measure sizes only.

    Returns:
        The figures.
    """
    profiled = profile(_many, spec((_ROWS, _COLUMNS), nl.float32), count // _IN_A_STEP)
    assert sum(profiled.instruction_counts.values()) == count
    _ = profiled.why  # a printed profile has it, too
    path, start = folder / f"{count}.html", time.perf_counter()
    profiled.to_html(path)
    seconds, nbytes = time.perf_counter() - start, path.stat().st_size
    if browser is None:
        return Figures(count, seconds, nbytes)
    with browser.window() as window:
        window.goto(path)
        window.page.wait_for_selector("html[data-drawn]")
        drawn = float(window.evaluate("document.documentElement.dataset.drawn"))
        return Figures(count, seconds, nbytes, drawn, min(window.evaluate(_FRAMES)))


def measure_all(counts: Sequence[int]) -> list[Figures]:
    """Measure pages of several launches, in a browser if there is one."""
    with TemporaryDirectory() as folder:
        try:
            with headless() as browser:
                return [measure(count, Path(folder), browser) for count in counts]
        except pytest.skip.Exception:
            return [measure(count, Path(folder)) for count in counts]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 0 if the goals are met, 1 if one is missed, 2 without a simulator that models."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report_page", description="The page of a profile.")
    parser.add_argument(
        "--instructions", type=int, nargs="+", default=COUNTS, metavar="N", help="of each launch (1,000 and 30,000)"
    )
    options, console = parser.parse_args(arguments), make_console()
    if not begin_modelled(console, "Pages of profiles", "Sizes, and times in a headless browser on this machine."):
        return 2
    figures = measure_all([count - count % _IN_A_STEP for count in options.instructions])
    table = table_of("Pages", ("instructions",), ("written in s", "kB", "drawn in ms", "frames a second", "goals"))
    for row in figures:
        shown = ["no browser" if value is None else f"{value:,.0f}" for value in (row.drawn_ms, row.frames)]
        cells = f"{row.seconds:.1f}", f"{row.nbytes / 1e3:,.0f}", *shown
        table.add_row(f"{row.instructions:,}", *cells, verdict(row.meets_goals))
    console.print(table)
    return end_verdicts(console, [row.meets_goals for row in figures])


if __name__ == "__main__":
    raise SystemExit(main())
