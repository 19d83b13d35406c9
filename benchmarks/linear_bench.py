"""Time and memory of the simulated linear cross-entropy: ``python -m benchmarks.linear_bench`` or ``make bench``.

The kernels take bfloat16, torch float32 copies of the same values: ``F.linear``, ``F.cross_entropy`` and autograd. Time
is the ratio of the two on the same two cores, memory the growth of the resident set beyond the arrays in and out.
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
import torch.nn.functional as F
from rich.table import Table

from benchmarks._display import verdict
from benchmarks._linear import (
    FORWARD,
    FORWARD_BACKWARD,
    IN_ONE_LAUNCH,
    PASSES,
    LinearCase,
    LinearInputs,
    measure_linear_memory,
)
from benchmarks._memory import MemoryUse
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks.bench import MEBI, TORCH_THREADS, load_line
from examples._display import heading, make_console, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED

# The goals: at most that many times torch's seconds, and at most that many bytes beyond the arrays. The first form has
# four products of matrices where torch and the second form have three.
LARGEST_RATIOS = {FORWARD: 1.3, FORWARD_BACKWARD: 1.8, IN_ONE_LAUNCH: 1.5}
LARGEST_BEYOND_ARRAYS = 1 << 30
FEWEST_RUNS = 3
CASE = LinearCase(2048, 2048, 32000)
QUICK_CASE = LinearCase(130, 192, 700)
# The share of torch's largest element by which ours may differ and still count as the same work: the gradients are
# bfloat16, and so is the gradient of the logits between the products. How exact they are is tested against float64.
LARGEST_DIFFERENCE = 0.02


@dataclass(frozen=True)
class Result:
    """One pass.

    Attributes:
        name: of the pass, a key of ``PASSES``.
        ours, torch: seconds.
        difference: of the results, as a share of torch's largest element.
        memory: what our pass needed.
    """

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
        return LARGEST_RATIOS[self.name]

    @property
    def meets_time(self) -> bool:
        return self.ratio <= self.largest_ratio

    @property
    def meets_memory(self) -> bool:
        return self.memory.beyond_arrays <= LARGEST_BEYOND_ARRAYS


class TorchLoss:
    """The same in torch, in float32.

    Args:
        inputs: whose values it copies.
    """

    def __init__(self, inputs: LinearInputs) -> None:
        self._input, self._weight = (
            torch.from_numpy(array.astype(np.float32)).requires_grad_() for array in (inputs.input, inputs.weight)
        )
        self._targets = torch.from_numpy(inputs.targets.astype(np.int64))

    def loss(self) -> torch.Tensor:
        """The mean loss."""
        return F.cross_entropy(F.linear(self._input, self._weight), self._targets)

    def forward(self) -> tuple[np.ndarray, ...]:
        """Mean loss, without a graph."""
        with torch.no_grad():
            return (self.loss().numpy(),)

    def forward_backward(self) -> tuple[np.ndarray, ...]:
        """Mean loss and both gradients."""
        loss = self.loss()
        gradients = torch.autograd.grad(loss, (self._input, self._weight))
        return (loss.detach().numpy(), *(gradient.numpy() for gradient in gradients))


def compare(case: LinearCase, runs: int, by_cpu: bool) -> list[Result]:
    """Time every pass in turns with torch, compare the results, and measure the memory in other processes."""
    inputs = LinearInputs(case)
    reference = TorchLoss(inputs)
    of_torch = {FORWARD: reference.forward, FORWARD_BACKWARD: reference.forward_backward}
    expected = {name: run() for name, run in of_torch.items()}
    differences = {name: difference(run(inputs), expected[_torch_pass(name)]) for name, run in PASSES.items()}
    contenders = {name: Contender(partial(run, inputs)) for name, run in PASSES.items()}
    contenders |= {_of_torch(name): Contender(run) for name, run in of_torch.items()}
    seconds = interleaved_minimum(contenders, runs, time.process_time if by_cpu else time.perf_counter)
    return [
        Result(
            name,
            seconds[name],
            seconds[_of_torch(_torch_pass(name))],
            differences[name],
            measure_linear_memory(case, name),
        )
        for name in PASSES
    ]


def _torch_pass(name: str) -> str:
    """Which pass of torch does the work of one of ours."""
    return FORWARD if name == FORWARD else FORWARD_BACKWARD


def _of_torch(name: str) -> str:
    return f"torch: {name}"


def difference(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference of the mean loss and of each gradient, as a share of the largest element.

    Args:
        results: losses [N], log-sum-exp, and the gradients if they were asked for.
        expected: mean loss, and the gradients.
    """
    losses, _, *gradients = results
    pairs = zip((losses.mean(dtype=np.float64), *gradients), expected, strict=True)
    return max(float(np.abs(ours.astype(np.float32) - right).max() / np.abs(right).max()) for ours, right in pairs)


def time_table(case: LinearCase, results: Sequence[Result]) -> Table:
    """Seconds of every pass, beside torch's."""
    table = plain_table(f"Seconds, (N, D, V) = {case}")
    table.add_column("pass", no_wrap=True)
    for column in ("ours, bf16", "torch, fp32", "ratio", "goal", ""):
        table.add_column(column, justify="right")
    for result in results:
        cells = (f"{result.ours:.2f}", f"{result.torch:.2f}", f"{result.ratio:.2f}", f"<= {result.largest_ratio}")
        table.add_row(result.name, *cells, verdict(result.meets_time))
    return table


def memory_table(results: Sequence[Result]) -> Table:
    """Peak memory of every pass, beside its arrays."""
    table = plain_table("Memory in MiB")
    table.add_column("pass", no_wrap=True)
    for column in ("growth", "arrays", "growth - arrays", f"<= {LARGEST_BEYOND_ARRAYS // MEBI}"):
        table.add_column(column, justify="right")
    for result in results:
        memory = result.memory
        sizes = (f"{size / MEBI:.0f}" for size in (memory.growth, memory.arrays, memory.beyond_arrays))
        table.add_row(result.name, *sizes, verdict(result.meets_memory))
    return table


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.linear_bench",
        description="Time the simulated linear cross-entropy on two cores against F.linear, F.cross_entropy and "
        "autograd in float32 on this CPU, and measure its memory.",
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
            "nkilib linear bench: the simulation of the kernels, not hardware",
            "Linear cross-entropy of bfloat16 on two simulated cores against F.linear, F.cross_entropy and autograd",
            f"in float32 with {TORCH_THREADS} threads on this CPU (of {os.cpu_count()}), torch {torch.__version__}.",
            f"{clock}; minimum of {options.runs} runs of each, taken in turns.",
            load_line(),
            "Forward + backward has four products of matrices, in one launch three, as torch has.",
            "Memory: growth of the peak resident set after the imports, in a fresh process; arrays in and out.",
        )
    )
    case = QUICK_CASE if options.quick else CASE
    with console.status(str(case)):
        results = compare(case, options.runs, options.cpu)
    console.print(time_table(case, results))
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
