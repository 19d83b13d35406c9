# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Time and memory of the simulated linear cross-entropy: ``python -m benchmarks.linear_bench`` or ``make bench``.

The kernels take bfloat16, torch float32 copies of the same values: ``F.linear``, ``F.cross_entropy`` and autograd. Time
is the ratio of the two on the same two cores, memory the growth of the resident set beyond the arrays in and out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks._linear import (
    FORWARD,
    FORWARD_BACKWARD,
    IN_ONE_LAUNCH,
    PASSES,
    LinearCase,
    LinearInputs,
    measure_linear_memory,
)
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


class TorchLoss:
    """The same in torch, in float32.

    Args:
        inputs: the inputs that are copied.
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


def compare(case: LinearCase, options: argparse.Namespace) -> list[PassResult]:
    """Time every pass, alternating with torch, compare the results, and measure the memory in other processes."""
    inputs = LinearInputs(case)
    reference = TorchLoss(inputs)
    of_torch = {FORWARD: reference.forward, FORWARD_BACKWARD: reference.forward_backward}
    expected = {name: run() for name, run in of_torch.items()}
    differences = {name: difference(run(inputs), expected[_torch_pass(name)]) for name, run in PASSES.items()}
    contenders = {name: Contender(partial(run, inputs)) for name, run in PASSES.items()}
    contenders |= {_of_torch(name): Contender(run) for name, run in of_torch.items()}
    seconds = interleaved_minimum(contenders, options.runs, clock_of(options))
    return [
        PassResult(
            f"(N, D, V) = {case}",
            name,
            seconds[name],
            seconds[_of_torch(_torch_pass(name))],
            LARGEST_RATIOS[name],
            differences[name],
            measure_linear_memory(case, name),
            LARGEST_BEYOND_ARRAYS,
        )
        for name in PASSES
    ]


def _torch_pass(name: str) -> str:
    """Return the name of the pass of PyTorch that does the work of one of ours."""
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


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = timing_parser(
        "linear_bench",
        "Time the simulated linear cross-entropy on two cores against F.linear, F.cross_entropy and autograd in "
        "float32 on this CPU, and measure its memory.",
    )
    return parse_timing_arguments(parser, arguments, FEWEST_RUNS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 0, or 1 if a result differs from torch's, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not begin_beside_torch(
        console,
        options,
        "nkilib linear bench",
        "Linear cross-entropy of bfloat16 on two simulated cores against F.linear, F.cross_entropy and autograd in",
        "float32. Forward + backward has four products of matrices, in one launch three, as torch has.",
    ):
        return 2
    case = QUICK_CASE if options.quick else CASE
    with console.status(str(case)):
        results = compare(case, options)
    console.print(time_table(results, "ours, bf16", "torch, fp32"))
    console.print(memory_table(results))
    return report(console, results, LARGEST_DIFFERENCE)


if __name__ == "__main__":
    raise SystemExit(main())
