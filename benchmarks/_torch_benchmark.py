# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The common parts of the benchmarks against torch: command line, clock, tables of time and memory, and exit.

Each pass of a case is a :class:`PassResult`. A benchmark begins with :func:`timing_parser` and
:func:`begin_beside_torch`, prints :func:`time_table` and :func:`memory_table`, and ends with :func:`report`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._display import table_of, verdict
from benchmarks._memory import MemoryUse
from examples._display import heading
from nkilib.nki import NOT_SIMULATED, SIMULATED

TORCH_THREADS = 2
MEBI = 1 << 20
# The goal of most: at most that many bytes beyond the arrays in and out.
LARGEST_BEYOND_ARRAYS = 400 * MEBI


@dataclass(frozen=True)
class PassResult:
    """One pass of one case.

    Attributes:
        case: the sizes and the type.
        name: the name of the pass.
        ours, torch: seconds.
        largest_ratio: the goal: at most that many times torch's seconds.
        difference: the difference of the results, as a share of torch's largest element.
        memory: the memory that our pass needed.
        largest_beyond_arrays: the goal: at most that many bytes beyond the arrays.
    """

    case: str
    name: str
    ours: float
    torch: float
    largest_ratio: float
    difference: float
    memory: MemoryUse
    largest_beyond_arrays: int = LARGEST_BEYOND_ARRAYS

    @property
    def ratio(self) -> float:
        return self.ours / self.torch

    @property
    def meets_time(self) -> bool:
        return self.ratio <= self.largest_ratio

    @property
    def meets_memory(self) -> bool:
        return self.memory.beyond_arrays <= self.largest_beyond_arrays


def timing_parser(name: str, description: str) -> argparse.ArgumentParser:
    """The command line of ``python -m benchmarks.<name>``."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        epilog="The exit code is 1 only if a result differs from torch's; a missed goal leaves it 0.",
    )


def parse_timing_arguments(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None, runs: int, knows_cpu: bool = True
) -> argparse.Namespace:
    """Parse the options of ``parser``, and add ``--runs``, ``--quick`` and, with ``knows_cpu``, ``--cpu``."""
    parser.add_argument("--runs", type=int, default=runs, help=f"timed runs of each (default {runs})")
    if knows_cpu:
        parser.add_argument(
            "--cpu", action="store_true", help="CPU seconds of all threads, for a machine with other work to do"
        )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; the times mean nothing")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    return options


def clock_of(options: argparse.Namespace) -> Callable[[], float]:
    """Return the clock that measures seconds: CPU time with ``--cpu``, else wall time."""
    return time.process_time if options.cpu else time.perf_counter


def begin_beside_torch(console: Console, options: argparse.Namespace, title: str, *lines: str) -> bool:
    """Print what is measured, and how; return False, and print why, if there is no simulator to time."""
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return False
    torch.set_num_threads(TORCH_THREADS)
    clock = "CPU seconds of all threads" if options.cpu else "Wall-clock seconds"
    console.print(
        heading(
            f"{title}: the simulation of the kernels, not hardware",
            *lines,
            f"torch {torch.__version__} with {TORCH_THREADS} threads on this CPU (of {os.cpu_count()}).",
            f"{clock}; minimum of {options.runs} runs of each, alternating.",
            load_line(),
            "Memory: growth of the peak resident set after the imports, in a fresh process; arrays in and out.",
        )
    )
    return True


def load_line() -> str:
    """How busy the machine is before the first run, for the heading."""
    if not hasattr(os, "getloadavg"):
        return "Load of the machine before the start: not known here; other work distorts the ratios."
    return f"Load average before the start: {os.getloadavg()[0]:.2f}; other work on the machine distorts the ratios."


def time_table(results: Sequence[PassResult], ours: str = "ours", theirs: str = "torch") -> Table:
    """Seconds of every pass, beside torch's; the columns may say in which type."""
    table = _table("Seconds", (ours, theirs, "ratio", "goal", ""))
    for case, result in _with_cases(results):
        seconds = (f"{result.ours:.3f}", f"{result.torch:.3f}", f"{result.ratio:.2f}", f"<= {result.largest_ratio}")
        table.add_row(case, result.name, *seconds, verdict(result.meets_time))
    return table


def memory_table(results: Sequence[PassResult]) -> Table:
    """Peak memory of every pass, beside its arrays; all have one goal."""
    goal = f"<= {results[0].largest_beyond_arrays // MEBI}"
    table = _table("Memory in MiB", ("growth", "arrays", "growth - arrays", goal))
    for case, result in _with_cases(results):
        memory = result.memory
        sizes = (f"{size / MEBI:.0f}" for size in (memory.growth, memory.arrays, memory.beyond_arrays))
        table.add_row(case, result.name, *sizes, verdict(result.meets_memory))
    return table


def _table(title: str, columns: Iterable[str]) -> Table:
    table = table_of(title, ("case", "pass"), columns)
    return table


def _with_cases(results: Sequence[PassResult]) -> Iterable[tuple[str, PassResult]]:
    """Each result and its first cell: a case is named in the first row of its group only."""
    before = ""
    for result in results:
        yield "" if result.case == before else result.case, result
        before = result.case


def report(console: Console, results: Sequence[PassResult], largest_difference: float) -> int:
    """Say how many goals were met, and whether results are wrong; returns the exit code.

    Args:
        console: to print on.
        results: the results of all passes.
        largest_difference: the share of torch's largest element by which ours may differ and still count as the same
            work.
    """
    met = sum(result.meets_time for result in results), sum(result.meets_memory for result in results)
    console.print(f"Goals met: time {met[0]} of {len(results)}, memory {met[1]} of {len(results)}.")
    largest = max(result.difference for result in results)
    if not largest <= largest_difference:
        console.print(f"[bold red]Wrong:[/] results differ from torch's by up to {largest:.1%}.")
        return 1
    console.print(f"Both did the work: results differ from torch's by at most {largest:.2%} of the largest element.")
    return 0
