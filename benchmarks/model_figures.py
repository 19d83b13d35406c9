# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The performance model compared with the figures that AWS publishes for trn2: ``python -m benchmarks.model_figures``.

Each line is a kernel of our own that does the work of a published one, or a single instruction. The figures are
those of aws-neuron/aws-neuron-sdk; many are read off profile images. Modelled, not measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks._display import table_of, verdict
from examples._display import heading, make_console
from nkilib.nki import NOT_SIMULATED, SIMULATED, nisa, nki, nl
from nkilib.simulator import ModelParameters, Profile, profile, spec, using
from nkilib.verify.times.kernels import matmul, rmsnorm_quant, tiled_matmul

PARTITIONS = 128
# How far the model may be off: single instructions and the matrix product, and everything else.
CLOSE, ROUGH = 0.15, 0.30
NS_PER_US = 1000.0
US_PER_MS = 1000.0
PEAK_GB_PER_S = 368.0
DMA_OVERVIEW = "nki/get-started/about/nki-dma-overview.rst"
RMSNORM = "nki/library/specs/design-rmsnorm-quant.rst"
MATMUL = "nki/guides/tutorials/kernel-optimization.rst"


@dataclass(frozen=True)
class Figure:
    """A published figure and how the model comes to its own.

    Attributes:
        what: the description of the measurement.
        unit: the unit of both figures.
        published: the figure.
        source: page of the SDK's documentation.
        tolerance: how far the model may be off.
        modelled: computes the model's figure.
    """

    what: str
    unit: str
    published: float
    source: str
    tolerance: float
    modelled: Callable[[], float]


@dataclass(frozen=True)
class Row:
    """A figure with what the model says."""

    figure: Figure
    modelled: float

    @property
    def ratio(self) -> float:
        return self.modelled / self.figure.published

    @property
    def is_met(self) -> bool:
        return abs(self.ratio - 1.0) <= self.figure.tolerance


def _profile(kernel: Any, *args: Any, cores: int = 1, **assumptions: Any) -> Profile:
    with using(target="trn2"):
        return profile(nki.jit(kernel)[cores], *args, parameters=ModelParameters(**assumptions))


# Single instructions.


def _load(shape: tuple[int, int]) -> float:
    """Nanoseconds that the rows of one load take, without its fixed time, as the profiles of the overview count."""

    def kernel(x: Any) -> None:
        nisa.dma_copy(nl.ndarray(x.shape, x.dtype), x)

    return _profile(kernel, spec(shape, nl.bfloat16)).engine_busy_us["dma"] * NS_PER_US


def _instruction_ns(issue: Callable[[Any], object], columns: int) -> float:
    """Nanoseconds from the start of an instruction on [128, columns] bfloat16 until its result can be used."""

    def kernel(_: Any) -> None:
        issue(nl.ndarray((PARTITIONS, columns), nl.bfloat16))

    profiled = _profile(kernel, spec((1,), nl.int32))
    (event,) = profiled.instructions
    return profiled.time_us * NS_PER_US - event.start_us * NS_PER_US


def _exp(tile: Any) -> None:
    nisa.activation(nl.ndarray(tile.shape, tile.dtype), nl.exp, tile)


def _square_and_sum(tile: Any) -> None:
    column = nl.ndarray((PARTITIONS, 1), nl.float32)
    nisa.activation_reduce(nl.ndarray(tile.shape, tile.dtype), nl.square, tile, nl.add, column)


def _maximum(tile: Any) -> None:
    column = nl.ndarray((PARTITIONS, 1), nl.float32)
    nisa.tensor_scalar_reduce(nl.ndarray(tile.shape, tile.dtype), tile, nl.multiply, 1.0, nl.maximum, column)


def _throughput(row_bytes: int) -> float:
    """Percent of the peak rate that loads of 128 rows of so many bytes reach, one after the other from one queue."""
    queue = {"dge_mode": nisa.dge_mode.hwdge, "engine": nisa.engine.sync}
    loads, columns = 32, row_bytes // 2

    def kernel(x: Any) -> None:
        tile = nl.ndarray((PARTITIONS, loads, columns), x.dtype)
        for number in range(loads):
            nisa.dma_copy(tile[:, number, :], x[number * PARTITIONS : (number + 1) * PARTITIONS, :], **queue)

    profiled = _profile(kernel, spec((loads * PARTITIONS, columns), nl.bfloat16))
    return 100 * profiled.hbm_read_bytes / (profiled.time_us * NS_PER_US) / PEAK_GB_PER_S


# Whole kernels.


def _rmsnorm_us(rows: int, hidden: int) -> float:
    return _profile(rmsnorm_quant, spec((rows, hidden), nl.bfloat16), spec((1, hidden), nl.bfloat16), cores=2).time_us


def _matmul_ms(kernel: Callable[[Any, Any], Any], rows: int, depth: int, columns: int) -> float:
    profiled = _profile(kernel, spec((depth, rows), nl.float32), spec((depth, columns), nl.float32))
    return profiled.time_us / US_PER_MS


# float32 [4096, 8192] @ [8192, 8192]
_MATMUL_SIZES = (4096, 8192, 8192)
_RATES = ((256, 10), (512, 21), (1024, 42), (2048, 81), (4096, 97))


FIGURES = (
    Figure("load [4, 4096] bf16, one DMA engine", "ns", 1416, DMA_OVERVIEW, CLOSE, partial(_load, (4, 4096))),
    Figure("load [128, 128] bf16", "ns", 468, DMA_OVERVIEW, CLOSE, partial(_load, (128, 128))),
    Figure("exp, N=4096", "ns", 3713, DMA_OVERVIEW, CLOSE, partial(_instruction_ns, _exp, 4096)),
    Figure("exp, N=128", "ns", 401, DMA_OVERVIEW, CLOSE, partial(_instruction_ns, _exp, 128)),
    Figure("tensor_scalar_reduce, N=16384", "ns", 17250, RMSNORM, CLOSE, partial(_instruction_ns, _maximum, 16384)),
    Figure("activation_reduce, N=16384", "ns", 14000, RMSNORM, CLOSE, partial(_instruction_ns, _square_and_sum, 16384)),
    Figure("matmul, every tile loaded", "ms", 39.89, MATMUL, CLOSE, partial(_matmul_ms, tiled_matmul, *_MATMUL_SIZES)),
    # Three kernels with blocks: 28.20, 28.41 and 28.30 ms.
    Figure("matmul, in blocks", "ms", 28.20, MATMUL, CLOSE, partial(_matmul_ms, matmul, *_MATMUL_SIZES)),
    Figure("RMSNorm-Quant, S=2K, H=8192", "us", 458.2, RMSNORM, ROUGH, partial(_rmsnorm_us, 2048, 8192)),
    Figure("RMSNorm-Quant, S=2K, H=16384", "us", 866.81, RMSNORM, ROUGH, partial(_rmsnorm_us, 2048, 16384)),
    Figure("RMSNorm-Quant, S=32K, H=8192", "us", 6287.0, RMSNORM, ROUGH, partial(_rmsnorm_us, 32768, 8192)),
    Figure("RMSNorm-Quant, S=32K, H=16384", "us", 13214.4, RMSNORM, ROUGH, partial(_rmsnorm_us, 32768, 16384)),
    *(
        Figure(f"DMA rate of one queue, rows of {size} B", "%", share, DMA_OVERVIEW, ROUGH, partial(_throughput, size))
        for size, share in _RATES
    ),
)


def all_rows() -> list[Row]:
    """Every figure with what the model says."""
    return [Row(figure, figure.modelled()) for figure in FIGURES]


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/evidence/model_figures.md."""
    lines = [
        "| what (trn2) | published | modelled, not measured | ratio | within | source |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        figure = row.figure
        met = f"{figure.tolerance:.0%}" if row.is_met else f"**missed** {figure.tolerance:.0%}"
        lines.append(
            f"| {figure.what} | {figure.published:,g} {figure.unit} | {row.modelled:,.1f} {figure.unit} | "
            f"{row.ratio:.2f} | {met} | `{figure.source}` |"
        )
    return "\n".join(lines)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_figures", description=__doc__)
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of docs/evidence/model_figures.md only"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, or 2 if there is no simulator that models."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    results = all_rows()
    if options.markdown:
        print(markdown(results))
        return 0
    console.print(
        heading(
            "The performance model beside published figures",
            "trn2; modelled, not measured. Kernels of our own do the work of the published ones.",
            f"Goal: within {CLOSE:.0%} for single instructions and the matrix product, {ROUGH:.0%} for the others.",
        )
    )
    table = table_of(
        "Figures of aws-neuron/aws-neuron-sdk", ("what",), ("unit", "published", "modelled", "ratio", "goal", "")
    )
    for row in results:
        figure = row.figure
        numbers = (f"{figure.published:,g}", f"{row.modelled:,.1f}", f"{row.ratio:.2f}", f"{figure.tolerance:.0%}")
        table.add_row(figure.what, figure.unit, *numbers, verdict(row.is_met))
    console.print(table)
    console.print(f"Within the goal: {sum(row.is_met for row in results)} of {len(results)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
