# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Pages to look at, of a slow kernel and of the mended one: ``python -m examples.profile_report``.

The kernels are the first and the last one of the tutorial "From a slow kernel to the bound": an RMS norm of rows, whose
engines wait for each other, and the same after four pieces of advice. The program compares both with numpy in float64,
models [4096, 4096] on two cores of trn2, and writes ``slow.html``, and ``mended.html`` with both side by side. Every
time is modelled, not measured. Any browser opens the files.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples._display import EXAMPLE_WIDTH, heading, make_console, takes
from nkilib.nki import NOT_SIMULATED, SIMULATED, nisa, nki, nl
from nkilib.simulator import Profile, Work, profile, spec, states_work, using

ROWS, COLUMNS = 4096, 4096
_TRIED = 256, 512
LARGEST_ERROR = 1e-5
_SLOTS = 3


def work(x: Any, weight: Any, **_: Any) -> Work:
    """Return the work of any RMS norm: read x and weight, and write as much as x."""
    rows, columns = x.shape
    return Work(hbm_bytes=4 * (2 * rows * columns + columns), dtype=nl.float32)


@nki.jit
@states_work(work)
def slow_rms_norm(x: Any, weight: Any) -> Any:
    """RMS norm by row; each core does all of the work, and the engines wait for each other.

    Args:
        x: [N, D], float32, in HBM, N a multiple of 128.
        weight: [1, D], float32, in HBM.

    Returns:
        [N, D], float32: x / sqrt(mean(x**2) + 1e-6) * weight.
    """
    rows, columns = x.shape
    result = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
    gain = nl.ndarray((128, columns), nl.float32)
    nisa.dma_copy(gain, weight.broadcast(0, 128))
    tile = nl.ndarray((128, columns), nl.float32, name="tile")
    scaled = nl.ndarray((128, columns), nl.float32, name="scaled")
    inverse = nl.ndarray((128, 1), nl.float32)
    for first in range(0, rows, 128):
        nisa.dma_copy(tile, x[first : first + 128])
        nisa.tensor_tensor(scaled, tile, tile, nl.multiply)
        nisa.tensor_reduce(inverse, nl.add, scaled, axis=1)
        nisa.tensor_scalar(inverse, inverse, nl.multiply, 1 / columns, op1=nl.add, operand1=1e-6)
        nisa.activation(inverse, nl.rsqrt, inverse)
        nisa.tensor_scalar(scaled, tile, nl.multiply, inverse)
        nisa.tensor_tensor(scaled, scaled, gain, nl.multiply)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


@nki.jit
@states_work(work)
def mended_rms_norm(x: Any, weight: Any) -> Any:
    """RMS norm by row, with half of the rows on each core, one pass for two, and three buffers; as above."""
    rows, columns = x.shape
    result = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
    gain = nl.ndarray((128, columns), nl.float32)
    nisa.dma_copy(gain, weight.broadcast(0, 128))
    tiles = [nl.ndarray((128, columns), nl.float32, name="tile") for _ in range(_SLOTS)]
    outputs = [nl.ndarray((128, columns), nl.float32, name="scaled") for _ in range(_SLOTS)]
    inverse = nl.ndarray((128, 1), nl.float32)
    for index, first in enumerate(range(128 * nl.program_id(0), rows, 128 * nl.num_programs(0))):
        tile, scaled = tiles[index % _SLOTS], outputs[index % _SLOTS]
        nisa.dma_copy(tile, x[first : first + 128])
        nisa.activation_reduce(scaled, nl.square, tile, reduce_op=nl.add, reduce_res=inverse)
        nisa.tensor_scalar(inverse, inverse, nl.multiply, 1 / columns, op1=nl.add, operand1=1e-6)
        nisa.activation(inverse, nl.rsqrt, inverse)
        nisa.scalar_tensor_tensor(scaled, tile, nl.multiply, inverse, nl.multiply, gain)
        nisa.dma_copy(result[first : first + 128], scaled)
    return result


def largest_error(kernel: Any) -> float:
    """Return the largest relative difference of a kernel on two cores from numpy in float64."""
    generator = np.random.default_rng(0)
    x, weight = (generator.standard_normal(shape, np.float32) for shape in (_TRIED, (1, _TRIED[1])))
    with using(identical_writes="ignore"):  # of the slow kernel, both cores write every row
        result = kernel[2](x, weight)
    exact = x.astype(np.float64)
    reference = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    return float(np.max(np.abs(result - reference) / np.abs(reference)))


def profiles(rows: int = ROWS, columns: int = COLUMNS) -> tuple[Profile, Profile]:
    """Return the profiles of the slow kernel and of the mended one on two cores of trn2, for x [rows, columns]."""
    shapes = spec((rows, columns), nl.float32), spec((1, columns), nl.float32)
    with using(target="trn2"):
        return profile(slow_rms_norm[2], *shapes), profile(mended_rms_norm[2], *shapes)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.profile_report",
        description="Write pages to look at, of a slow kernel and of the mended one. Modelled, not measured.",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(), help="folder of the pages (default: the present one)"
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"folder must be there, and there is no {str(options.folder)!r}; make it first")
    return options


def seconds_of(_: argparse.Namespace) -> float:
    """The time that the example takes."""
    return 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages; return 0 if both kernels agree with float64, else 1."""
    options, console = parse_arguments(arguments), make_console(EXAMPLE_WIDTH)
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    lines = "Timeline, source and memory of both, and what has changed line by line.", takes(seconds_of(options))
    console.print(heading("A slow kernel and the mended one: modelled, not measured", *lines))
    agrees = all(largest_error(kernel) < LARGEST_ERROR for kernel in (slow_rms_norm, mended_rms_norm))
    slow, mended = profiles()
    slow.to_html(options.folder / "slow.html")
    mended.to_html(options.folder / "mended.html", against=slow)
    for name, made in (("slow.html", slow), ("mended.html", mended)):
        bound = f"{made.fraction_of_bound:.2f} times the bound"
        console.print(f"{options.folder / name}: {made.time_us:,.1f} us, {bound}", soft_wrap=True)
    console.print("The kernels agree with float64." if agrees else "The kernels differ from float64.")
    return 0 if agrees else 1


if __name__ == "__main__":
    raise SystemExit(main())
