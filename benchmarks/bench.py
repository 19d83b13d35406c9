# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time and memory of the simulated cross-entropy: ``python -m benchmarks.bench`` or ``make bench``.

Time is a ratio to torch's cross-entropy on the same CPU, memory a growth of the resident set beyond the arrays. The
time of a profile is a ratio to that of the plain run. With ``--tune`` several tunings are tried first, and each pass
runs with its fastest.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks._against_torch import Comparison, SharedInputs, compare_backward, compare_forward
from benchmarks._cross_entropy import FEWEST_RUNS, Case, Tuning, backward, cases, forward, profile_forward
from benchmarks._display import table_of, verdict
from benchmarks._launch_memory import BACKWARD, BACKWARD_IN_PLACE, FORWARD, measure_memory
from benchmarks._memory import MemoryUse
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks._torch_benchmark import (
    LARGEST_BEYOND_ARRAYS,
    MEBI,
    TORCH_THREADS,
    load_line,
    parse_timing_arguments,
    timing_parser,
)
from examples._display import heading, make_console
from nkilib.core.hardware import div_ceil
from nkilib.nki import NOT_SIMULATED, SIMULATED

# The search for the fastest tuning: runs of each, and what is tried.
TUNING_RUNS = 3
POSITIONS = (32, 64, 128)
CHUNKS = (2048, 4096, 8192, 16384, 32128, 65535)


def candidates(case: Case) -> list[Tuning]:
    """The tunings that are tried, those included that the kernels refuse for ``case``."""
    chunks = sorted({min(chunk, case.vocabulary) for chunk in CHUNKS})
    return [Tuning(positions, chunk) for positions in POSITIONS for chunk in chunks]


def best_tuning(console: Console, case: Case, inputs: SharedInputs) -> tuple[Tuning, Tuning]:
    """The fastest tuning of the forward and of the backward, out of place; prints what was tried on ``console``."""
    contenders: dict[str, tuple[Tuning, Contender, Contender]] = {}
    for tuning in candidates(case):
        try:
            _, lse = forward(inputs.logits, inputs.targets, tuning)
        except AssertionError:  # the kernels' refusal: such a tuning is not legal here
            continue
        contenders[str(tuning)] = (tuning, *_passes(inputs, lse, tuning))
    forward_seconds = interleaved_minimum({name: c[1] for name, c in contenders.items()}, TUNING_RUNS)
    backward_seconds = interleaved_minimum({name: c[2] for name, c in contenders.items()}, TUNING_RUNS)
    for name in contenders:
        console.print(
            f"{case}  {name:>12}  forward {forward_seconds[name]:.3f} s  backward {backward_seconds[name]:.3f} s"
        )
    best = (min(seconds, key=lambda name: seconds[name]) for seconds in (forward_seconds, backward_seconds))
    best_forward, best_backward = (contenders[name][0] for name in best)
    return best_forward, best_backward


def _passes(inputs: SharedInputs, lse: np.ndarray, tuning: Tuning) -> tuple[Contender, Contender]:
    return (
        Contender(lambda: forward(inputs.logits, inputs.targets, tuning)),
        Contender(lambda: backward(inputs.logits, inputs.targets, lse, tuning, inplace=False)),
    )


PLAIN, PROFILE = "plain", "profile"


@dataclass(frozen=True)
class ProfileCost:
    """The time of a profile of the forward of one case beside that of the plain run.

    Attributes:
        case, tuning: the case and the tiling that ran.
        profile: seconds of ``nkilib.simulator.profile``.
        plain: seconds of the launch alone.
    """

    case: Case
    tuning: Tuning
    profile: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.profile / self.plain


def profile_cost(case: Case, inputs: SharedInputs, tuning: Tuning, runs: int) -> ProfileCost:
    """Profile the forward, and run it alone."""
    seconds = interleaved_minimum(
        {
            PLAIN: Contender(lambda: forward(inputs.logits, inputs.targets, tuning)),
            PROFILE: Contender(lambda: profile_forward(inputs.logits, inputs.targets, tuning)),
        },
        runs,
    )
    return ProfileCost(case, tuning, seconds[PROFILE], seconds[PLAIN])


# The goals: ours at most that many times torch's seconds, a profile at most that many times the plain run's, and at
# most that many bytes beyond the arrays.
LARGEST_RATIO = 0.9
LARGEST_RATIO_OF_BF16_FORWARD = 1.3
LARGEST_RATIO_OF_PROFILE = 1.1


@dataclass(frozen=True)
class Result:
    """One pass of one case."""

    case: Case
    tuning: Tuning
    comparison: Comparison
    memory: MemoryUse

    @property
    def largest_ratio(self) -> float:
        is_bf16_forward = (self.case.dtype_name, self.comparison.name) == ("bf16", FORWARD)
        return LARGEST_RATIO_OF_BF16_FORWARD if is_bf16_forward else LARGEST_RATIO

    @property
    def meets_time(self) -> bool:
        return self.comparison.ratio <= self.largest_ratio

    @property
    def meets_memory(self) -> bool:
        return self.memory.beyond_arrays <= LARGEST_BEYOND_ARRAYS


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = timing_parser(
        "bench",
        "Time the simulated forward and backward on two cores against torch.nn.functional.cross_entropy and its "
        "backward on this CPU, and measure their memory.",
    )
    parser.add_argument(
        "--tune", action="store_true", help="try several tunings first and use the fastest of each pass"
    )
    return parse_timing_arguments(parser, arguments, FEWEST_RUNS, knows_cpu=False)


def default_tuning(case: Case) -> Tuning:
    """Return the tuning that was fastest, or within noise of it, where it was tried.

    ``--tune`` finds the tuning of another CPU. The default has few chunks of equal size, because each chunk costs
    interpreter time.
    """
    longest = 65535 if case.dtype_name == "bf16" else 32767
    return Tuning(128, div_ceil(case.vocabulary, div_ceil(case.vocabulary, longest)))


def run_case(console: Console, case: Case, runs: int, tune: bool) -> tuple[list[Result], ProfileCost]:
    """Every pass of ``case``: timed in this process, its memory measured in others."""
    inputs = SharedInputs(case)
    forward_tuning = backward_tuning = default_tuning(case)
    if tune:
        forward_tuning, backward_tuning = best_tuning(console, case, inputs)
    comparisons = [compare_forward(inputs, forward_tuning, runs), *compare_backward(inputs, backward_tuning, runs)]
    cost = profile_cost(case, inputs, forward_tuning, runs)
    del inputs
    results = []
    for comparison, pass_name in zip(comparisons, (FORWARD, BACKWARD, BACKWARD_IN_PLACE), strict=True):
        tuning = forward_tuning if pass_name == FORWARD else backward_tuning
        results.append(Result(case, tuning, comparison, measure_memory(case, pass_name, tuning)))
    return results, cost


def time_table(results: Sequence[Result]) -> Table:
    """Seconds of every pass, beside torch's."""
    table = table_of("Seconds", ("N, V", "pass", "tuning"), ("ours", "torch", "ratio", "goal", ""))
    for result in results:
        comparison = result.comparison
        seconds = (f"{comparison.ours:.3f}", f"{comparison.torch:.3f}", f"{comparison.ratio:.2f}")
        goal = f"<= {result.largest_ratio:.1f}"
        table.add_row(*_name(result), str(result.tuning), *seconds, goal, verdict(result.meets_time))
    return table


def profile_table(costs: Sequence[ProfileCost]) -> Table:
    """Seconds of a profile of the forward, beside those of the plain run."""
    table = table_of(
        "Seconds of a profile of the forward", ("N, V", "tuning"), ("profile", "plain", "ratio", "goal", "")
    )
    for cost in costs:
        seconds = (f"{cost.profile:.3f}", f"{cost.plain:.3f}", f"{cost.ratio:.2f}")
        met = verdict(cost.ratio <= LARGEST_RATIO_OF_PROFILE)
        table.add_row(str(cost.case), str(cost.tuning), *seconds, f"<= {LARGEST_RATIO_OF_PROFILE}", met)
    return table


def memory_table(results: Sequence[Result]) -> Table:
    """Peak memory of every pass, beside its arrays."""
    table = table_of(
        "Memory in MiB",
        ("N, V", "pass"),
        ("growth", "arrays", "growth - arrays", f"<= {LARGEST_BEYOND_ARRAYS // MEBI}"),
    )
    for result in results:
        memory = result.memory
        sizes = (f"{size / MEBI:.0f}" for size in (memory.growth, memory.arrays, memory.beyond_arrays))
        table.add_row(*_name(result), *sizes, verdict(result.meets_memory))
    return table


def _name(result: Result) -> tuple[str, str]:
    """The first two cells of a row; the case is named in the first row of its group only."""
    is_first = result.comparison.name == FORWARD
    return (str(result.case) if is_first else "", result.comparison.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a result differs from torch's, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    torch.set_num_threads(TORCH_THREADS)
    console.print(
        heading(
            "nkilib bench: the simulation of the kernels, not hardware",
            "Forward and backward on two simulated cores against torch.nn.functional.cross_entropy and",
            f"loss.backward() (graph made before) with {TORCH_THREADS} threads on this CPU ({os.cpu_count()} in all), "
            f"torch {torch.__version__}.",
            f"Same bytes for both; minimum of {options.runs} runs of each, alternating.",
            load_line(),
            "Tuning: positions_per_batch x chunk_size. torch makes a new gradient, as ours does out of place.",
            "In place: the gradient is written over the logits, as the kernel does by default.",
            "Memory: growth of the peak resident set after the imports, in a fresh process; arrays in and out.",
            "Profile: the forward under nkilib.simulator.profile beside the plain launch.",
            f"Goals: ratio at most {LARGEST_RATIO}, of the bf16 forward {LARGEST_RATIO_OF_BF16_FORWARD}, of a profile "
            f"{LARGEST_RATIO_OF_PROFILE}; at most {LARGEST_BEYOND_ARRAYS // MEBI} MiB beyond the arrays.",
        )
    )
    results: list[Result] = []
    costs: list[ProfileCost] = []
    for case in cases(options.quick):
        with console.status(f"{case}"):
            of_case, cost = run_case(console, case, options.runs, options.tune)
        results += of_case
        costs.append(cost)
    for table in (time_table(results), profile_table(costs), memory_table(results)):
        console.print(table)
    return report(console, results, costs)


def report(console: Console, results: Sequence[Result], costs: Sequence[ProfileCost]) -> int:
    """Say how many goals were met, and which results are wrong; returns the exit code."""
    met = sum(result.meets_time for result in results), sum(result.meets_memory for result in results)
    profiles = sum(cost.ratio <= LARGEST_RATIO_OF_PROFILE for cost in costs)
    console.print(
        f"Goals met: time {met[0]} of {len(results)}, profile {profiles} of {len(costs)}, "
        f"memory {met[1]} of {len(results)}."
    )
    wrong = [result for result in results if not result.comparison.did_same_work]
    for result in wrong:
        console.print(
            f"[bold red]Wrong:[/] {result.case} {result.comparison.name} differs from torch "
            f"by {result.comparison.difference:.1%}."
        )
    if not wrong:
        largest = max(result.comparison.difference for result in results)
        console.print(f"Both did the work: results differ from torch's by at most {largest:.2%}.")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
