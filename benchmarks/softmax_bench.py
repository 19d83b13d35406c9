# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time and memory of the simulated softmax family: ``python -m benchmarks.softmax_bench`` or ``make bench``.

Time is the ratio to torch's eager function on the same two cores and the same bytes, memory the growth of the resident
set beyond the arrays in and out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from benchmarks._softmax import PASSES, SoftmaxCase, SoftmaxInputs, measure_softmax_memory
from benchmarks._timing import Contender, interleaved_minimum
from benchmarks._torch_benchmark import (
    PassResult,
    begin_beside_torch,
    clock_of,
    memory_table,
    parse_timing_arguments,
    report,
    time_table,
    timing_parser,
)
from examples._display import make_console

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


def cases(quick: bool) -> list[SoftmaxCase]:
    """The problem sizes, in both types."""
    return [
        SoftmaxCase(shape, axis, dtype_name)
        for shape, axis in (QUICK_SIZES if quick else SIZES)
        for dtype_name in LARGEST_RATIOS
    ]


def passes_of(case: SoftmaxCase) -> list[str]:
    """Return the passes to time: all along the last axis, only softmax and log-softmax along another one."""
    return [name for name in PASSES if case.axis == -1 or "softmax" in name]


def compare(case: SoftmaxCase, options: argparse.Namespace) -> list[PassResult]:
    """Time every pass, alternating with torch, compare the results, and measure the memory in other processes."""
    inputs = SoftmaxInputs(case)
    names = passes_of(case)
    differences = {name: difference(PASSES[name].ours(inputs), PASSES[name].torch(inputs)) for name in names}
    contenders = {}
    for name in names:
        contenders[name] = Contender(partial(PASSES[name].ours, inputs))
        contenders[_of_torch(name)] = Contender(partial(PASSES[name].torch, inputs))
    seconds = interleaved_minimum(contenders, options.runs, clock_of(options))
    del inputs, contenders
    return [
        PassResult(
            str(case),
            name,
            seconds[name],
            seconds[_of_torch(name)],
            LARGEST_RATIOS[case.dtype_name],
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = timing_parser(
        "softmax_bench",
        "Time the simulated softmax, log-softmax, KL divergence and distillation on two cores against torch on this "
        "CPU, and measure their memory.",
    )
    return parse_timing_arguments(parser, arguments, FEWEST_RUNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a result differs from torch's, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not begin_beside_torch(
        console,
        options,
        "nkilib softmax bench",
        "Softmax, log-softmax, KL divergence and distillation on two simulated cores against torch's eager functions.",
        "Both make a new result.",
    ):
        return 2
    results: list[PassResult] = []
    for case in cases(options.quick):
        with console.status(str(case)):
            results += compare(case, options)
    console.print(time_table(results))
    console.print(memory_table(results))
    return report(console, results, LARGEST_DIFFERENCE)


if __name__ == "__main__":
    raise SystemExit(main())
