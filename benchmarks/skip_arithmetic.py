# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The savings of ``simulate(kernel, skip_arithmetic=True)``: ``python -m benchmarks.skip_arithmetic``.

Cross-entropy at 4096 x 129280 and linear cross-entropy at (2048, 2048, 65,536), forward and backward, each launch with
and without arithmetic in a process of its own. Times are CPU times of the launch, with one thread of BLAS; the peaks
count the memory that a process has taken since its imports, arguments included. A launch that computes is not replayed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks._display import end_verdicts, table_of, verdict
from benchmarks._memory import peak_resident_bytes, resident_bytes
from examples._display import heading, make_console
from nkilib.nki import NOT_SIMULATED, SIMULATED

# The goal: so many times the CPU time of a launch that skips arithmetic is what one takes that computes.
LEAST_RATIO = 5.0
_SKIPPED, _COMPUTED = "skipped", "computed"


@dataclass(frozen=True)
class Sizes:
    """The sizes of both kernels.

    Attributes:
        rows, vocabulary: sizes of the logits of cross-entropy.
        positions, features, classes: sizes of linear cross-entropy.
    """

    rows: int = 4096
    vocabulary: int = 129_280
    positions: int = 2048
    features: int = 2048
    classes: int = 65_536


@dataclass(frozen=True)
class Cost:
    """The cost of a launch."""

    seconds: float
    gigabytes: float


def _normal(shape: tuple[int, int], scale: float = 1.0) -> Any:
    """Reproducible bfloat16 values, made row by row: float32 ones of all rows would be the peak."""
    values = np.empty(shape, ml_dtypes.bfloat16)
    generator = np.random.default_rng(0)
    for row in values:
        row[...] = generator.standard_normal(shape[1], np.float32) * scale
    return values


def _cross_entropy_forward(sizes: Sizes) -> tuple[Any, ...]:
    from nkilib.experimental.loss import cross_entropy_forward

    targets = np.arange(sizes.rows, dtype=np.int32) % sizes.vocabulary
    return cross_entropy_forward, _normal((sizes.rows, sizes.vocabulary)), targets


def _cross_entropy_backward(sizes: Sizes) -> tuple[Any, ...]:
    from nkilib.experimental.loss import cross_entropy_backward

    _, logits, targets = _cross_entropy_forward(sizes)
    return cross_entropy_backward, logits, targets, np.full(sizes.rows, math.log(sizes.vocabulary) + 0.5, np.float32)


def _linear_forward(sizes: Sizes) -> tuple[Any, ...]:
    from nkilib.experimental.loss import linear_cross_entropy_forward

    hidden = _normal((sizes.positions, sizes.features))
    weight = _normal((sizes.classes, sizes.features), 0.02)
    return linear_cross_entropy_forward, hidden, weight, np.arange(sizes.positions, dtype=np.int32) % sizes.classes


def _linear_backward(sizes: Sizes) -> tuple[Any, ...]:
    from nkilib.experimental.loss import linear_cross_entropy_backward

    _, *arrays = _linear_forward(sizes)
    lse = np.full(sizes.positions, math.log(sizes.classes) + 0.5, np.float32)
    return linear_cross_entropy_backward, *arrays, lse, np.ones(sizes.positions, np.float32)


# What makes the kernel and its arguments.
KERNELS = {
    "cross_entropy_forward": _cross_entropy_forward,
    "cross_entropy_backward": _cross_entropy_backward,
    "linear_cross_entropy_forward": _linear_forward,
    "linear_cross_entropy_backward": _linear_backward,
}


def measure(name: str, way: str, cores: int, sizes: Sizes) -> Cost:
    """Launch a kernel in this process, with or without arithmetic."""
    from nkilib.simulator import simulate, using

    before = resident_bytes()
    kernel, *arrays = KERNELS[name](sizes)
    launched = kernel[cores]
    if way == _SKIPPED:
        # How many rows the forward computes again is counted from its sums: none of normal logits.
        launched = simulate(launched, skip_arithmetic=True, trips="none")
    with using(replay=False):
        start = time.process_time()
        launched(*arrays)
        seconds = time.process_time() - start
    return Cost(seconds, (peak_resident_bytes() - before) / 2**30)


def measure_apart(name: str, way: str, cores: int, sizes: Sizes) -> Cost:
    """The same in a process of its own.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    command = [sys.executable, "-m", "benchmarks.skip_arithmetic", "--only", name, "--way", way, "--cores", str(cores)]
    command += ["--sizes", json.dumps(asdict(sizes))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"measure_apart: {' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return Cost(**json.loads(result.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what each launch costs with and without arithmetic; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.skip_arithmetic", description=__doc__)
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1, help="of a launch (default: 1)")
    parser.add_argument("--only", choices=KERNELS, help=argparse.SUPPRESS)  # in this process, as JSON
    parser.add_argument("--way", choices=(_SKIPPED, _COMPUTED), default=_SKIPPED, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=lambda text: Sizes(**json.loads(text)), default=Sizes(), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not SIMULATED:
        parser.error(NOT_SIMULATED)
    if options.only:
        print(json.dumps(asdict(measure(options.only, options.way, options.cores, options.sizes))))
        return 0
    console = make_console()
    console.print(heading("Launches that skip arithmetic", f"{options.cores} core(s); CPU seconds, one thread of BLAS"))
    table = table_of(
        "Launches, each in a process of its own",
        ("kernel",),
        ("computed s", "skipped s", "ratio", "computed GiB", "skipped GiB", f"at least {LEAST_RATIO:.0f}"),
    )
    are_met = []
    for name in KERNELS:
        computed, skipped = (measure_apart(name, way, options.cores, options.sizes) for way in (_COMPUTED, _SKIPPED))
        ratio = computed.seconds / skipped.seconds
        are_met.append(ratio >= LEAST_RATIO)
        figures = f"{computed.seconds:.2f}", f"{skipped.seconds:.2f}", f"{ratio:.1f}"
        table.add_row(name, *figures, f"{computed.gigabytes:.2f}", f"{skipped.gigabytes:.2f}", verdict(are_met[-1]))
    console.print(table)
    return end_verdicts(console, are_met)


if __name__ == "__main__":
    raise SystemExit(main())
