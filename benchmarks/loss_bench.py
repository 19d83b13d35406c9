# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time and memory of the simulated losses: ``python -m benchmarks.loss_bench`` or ``make bench``.

Each is the function of ``nkilib.torch`` beside that of ``torch.nn.functional`` with the same arguments. Time is the
ratio of the two on the same two cores, memory the growth of the resident set beyond the tensors in and out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F

import nkilib.torch
from benchmarks._losses import LOSSES, PASSES, TYPES, LossCase, LossInputs, measure_loss_memory
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
LARGEST_RATIOS = {"fp32": 3.0, "bf16": 4.0}
FEWEST_RUNS = 5
# The share of the largest element of torch's, in float32, by which ours may differ and still count as the same work: a
# gradient of bfloat16 is rounded. How exact the kernels are is tested against float64.
LARGEST_DIFFERENCE = 0.02


def cases(quick: bool, names: Sequence[str]) -> list[LossCase]:
    """The losses, in each type that torch has them in."""
    losses = [(LOSSES[name], dtype_name) for name in names for dtype_name in TYPES]
    return [
        LossCase(loss.name, loss.quick_shape if quick else loss.shape, dtype_name)
        for loss, dtype_name in losses
        if dtype_name != "bf16" or loss.in_bfloat16
    ]


def compare(case: LossCase, options: argparse.Namespace) -> list[PassResult]:
    """Time both passes, alternating with torch, compare the results, and measure the memory in other processes."""
    inputs = LossInputs.of(case)
    results = []
    for name, run in PASSES.items():
        differs = difference(run(inputs, nkilib.torch), run(inputs.in_float32(), F))
        seconds = interleaved_minimum(
            {"ours": Contender(partial(run, inputs, nkilib.torch)), "torch": Contender(partial(run, inputs, F))},
            options.runs,
            clock_of(options),
        )
        memory = measure_loss_memory(case, name)
        goal = LARGEST_RATIOS[case.dtype_name]
        results.append(PassResult(str(case), name, seconds["ours"], seconds["torch"], goal, differs, memory))
    return results


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference of two results, as a share of the largest element of torch's."""
    expected = theirs.float()
    return float((ours.float() - expected).abs().max() / expected.abs().max())


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = timing_parser(
        "loss_bench",
        "Time the simulated losses on two cores, forward and backward, against torch.nn.functional on this "
        "CPU, and measure their memory.",
    )
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="by default all: " + ", ".join(LOSSES))
    options = parse_timing_arguments(parser, arguments, FEWEST_RUNS)
    unknown = [name for name in options.losses if name not in LOSSES]
    if unknown:
        parser.error(f"no such loss is measured: {', '.join(unknown)}; there are {', '.join(LOSSES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a result differs from torch's, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not begin_beside_torch(
        console,
        options,
        "nkilib loss bench",
        "Losses of nkilib.torch on two simulated cores against those of torch.nn.functional,",
        "reduced, and their gradients by the first tensor, of graphs made before.",
    ):
        return 2
    results: list[PassResult] = []
    for case in cases(options.quick, options.losses or list(LOSSES)):
        with console.status(str(case)):
            results += compare(case, options)
    console.print(time_table(results))
    console.print(memory_table(results))
    return report(console, results, LARGEST_DIFFERENCE)


if __name__ == "__main__":
    raise SystemExit(main())
