"""Time and memory of the simulated softmax family: ``python -m benchmarks.softmax_bench`` or ``make bench``.

Time is the ratio to torch's eager function on the same two cores and the same bytes, memory the growth of the resident
set beyond the arrays in and out.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from rich.table import Table

from benchmarks._display import verdict
from benchmarks._memory import MemoryUse
from benchmarks._softmax import PASSES, SoftmaxCase, SoftmaxInputs, measure_softmax_memory
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks.bench import LARGEST_BEYOND_ARRAYS, MEBI, TORCH_THREADS, load_line
from examples._display import heading, make_console, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED

# The goals: at most that many times torch's seconds.
LARGEST_RATIOS = {"fp32": 1.5, "bf16": 2.5}
FEWEST_RUNS = 5
# A vocabulary along the last axis, and channels before positions.
SIZES = (((1024, 32128), -1), ((8, 1024, 2048), 1))
QUICK_SIZES = (((40, 700), -1), ((2, 130, 70), 1))
# The share of torch's largest element by which ours may differ and still count as the same work. Loose on purpose:
# torch keeps log-probabilities in bf16 for its distillation, and near -12 their spacing is 0.06, which moves a
# probability by up to 3%. How exact the kernels are is tested against float64.
LARGEST_DIFFERENCE = 0.1


@dataclass(frozen=True)
class Result:
    """One pass of one case.

    Attributes:
        case: the sizes.
        name: of the pass, a key of ``PASSES``.
        ours, torch: seconds.
        difference: of the results, as a share of torch's largest element.
        memory: what our pass needed.
    """

    case: SoftmaxCase
    name: str
    ours: float
    torch: float
    difference: float
    memory: MemoryUse

    @property
    def ratio(self) -> float:
        return self.ours / self.torch

    @property
    def largest_ratio(self) -> float:
        return LARGEST_RATIOS[self.case.dtype_name]

    @property
    def meets_time(self) -> bool:
        return self.ratio <= self.largest_ratio

    @property
    def meets_memory(self) -> bool:
        return self.memory.beyond_arrays <= LARGEST_BEYOND_ARRAYS


def cases(quick: bool) -> list[SoftmaxCase]:
    """The problem sizes, in both types."""
    return [
        SoftmaxCase(shape, axis, dtype_name)
        for shape, axis in (QUICK_SIZES if quick else SIZES)
        for dtype_name in LARGEST_RATIOS
    ]


def passes_of(case: SoftmaxCase) -> list[str]:
    """The passes to time: the divergences take the last axis, or know none."""
    return [name for name in PASSES if case.axis == -1 or "softmax" in name]


def compare(case: SoftmaxCase, runs: int, by_cpu: bool) -> list[Result]:
    """Time every pass in turns with torch, compare the results, and measure the memory in other processes."""
    inputs = SoftmaxInputs(case)
    names = passes_of(case)
    differences = {name: difference(PASSES[name].ours(inputs), PASSES[name].torch(inputs)) for name in names}
    contenders = {}
    for name in names:
        contenders[name] = Contender(partial(PASSES[name].ours, inputs))
        contenders[_of_torch(name)] = Contender(partial(PASSES[name].torch, inputs))
    seconds = interleaved_minimum(contenders, runs, time.process_time if by_cpu else time.perf_counter)
    del inputs, contenders
    return [
        Result(
            case,
            name,
            seconds[name],
            seconds[_of_torch(name)],
            differences[name],
            measure_softmax_memory(case, name),
        )
        for name in names
    ]


def _of_torch(name: str) -> str:
    return f"torch: {name}"


def difference(ours: np.ndarray, theirs: torch.Tensor) -> float:
    """The largest difference of two results, as a share of the largest element of torch's."""
    expected = theirs.detach().float().numpy().reshape(-1)
    return float(np.abs(ours.astype(np.float32).reshape(-1) - expected).max() / np.abs(expected).max())


def time_table(results: Sequence[Result]) -> Table:
    """Seconds of every pass, beside torch's."""
    table = plain_table("Seconds")
    for column in ("shape", "pass"):
        table.add_column(column, no_wrap=True)
    for column in ("ours", "torch", "ratio", "goal", ""):
        table.add_column(column, justify="right")
    for number, result in enumerate(results):
        cells = (f"{result.ours:.3f}", f"{result.torch:.3f}", f"{result.ratio:.2f}", f"<= {result.largest_ratio}")
        table.add_row(*_name(results, number), *cells, verdict(result.meets_time))
    return table


def memory_table(results: Sequence[Result]) -> Table:
    """Peak memory of every pass, beside its arrays."""
    table = plain_table("Memory in MiB")
    for column in ("shape", "pass"):
        table.add_column(column, no_wrap=True)
    for column in ("growth", "arrays", "growth - arrays", f"<= {LARGEST_BEYOND_ARRAYS // MEBI}"):
        table.add_column(column, justify="right")
    for number, result in enumerate(results):
        memory = result.memory
        sizes = (f"{size / MEBI:.0f}" for size in (memory.growth, memory.arrays, memory.beyond_arrays))
        table.add_row(*_name(results, number), *sizes, verdict(result.meets_memory))
    return table


def _name(results: Sequence[Result], number: int) -> tuple[str, str]:
    """The first two cells of a row; the case is named in the first row of its group only."""
    result = results[number]
    is_first = number == 0 or results[number - 1].case != result.case
    return (str(result.case) if is_first else "", result.name)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.softmax_bench",
        description="Time the simulated softmax, log-softmax, KL divergence and distillation on two cores against "
        "torch on this CPU, and measure their memory.",
        epilog="The exit code is 1 only if a result differs from torch's; a missed goal leaves it 0.",
    )
    parser.add_argument("--runs", type=int, default=FEWEST_RUNS, help=f"timed runs of each (default {FEWEST_RUNS})")
    parser.add_argument(
        "--cpu", action="store_true", help="CPU seconds of all threads, for a machine with other work to do"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works; the times mean nothing")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a result differs from torch's, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    torch.set_num_threads(TORCH_THREADS)
    clock = "CPU seconds of all threads" if options.cpu else "Wall-clock seconds"
    console.print(
        heading(
            "nkilib softmax bench: the simulation of the kernels, not hardware",
            "Softmax, log-softmax, KL divergence and distillation on two simulated cores against torch's eager",
            f"functions with {TORCH_THREADS} threads on this CPU (of {os.cpu_count()}), torch {torch.__version__}.",
            f"{clock}; minimum of {options.runs} runs of each, taken in turns. Both make a new result.",
            load_line(),
            "Memory: growth of the peak resident set after the imports, in a fresh process; arrays in and out.",
        )
    )
    results: list[Result] = []
    for case in cases(options.quick):
        with console.status(str(case)):
            results += compare(case, options.runs, options.cpu)
    console.print(time_table(results))
    console.print(memory_table(results))
    met = sum(result.meets_time for result in results), sum(result.meets_memory for result in results)
    console.print(f"Goals met: time {met[0]} of {len(results)}, memory {met[1]} of {len(results)}.")
    largest = max(result.difference for result in results)
    if largest > LARGEST_DIFFERENCE:
        console.print(f"[bold red]Wrong:[/] results differ from torch's by up to {largest:.1%}.")
        return 1
    console.print(f"Both did the work: results differ from torch's by at most {largest:.2%} of the largest element.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
