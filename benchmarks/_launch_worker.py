# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A process that runs a launch as often as requested and reports each time: started by `benchmarks.launch_cost`.

It is run as a file, so that it measures the checkout that is first on the path, which may have no such benchmark. It
reads lines from its standard input, each a number of runs, and answers each with a list of CPU times in JSON. The first
answer, before any request, names the package that it measures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ELEMENTS = (8, 64)
LOGITS = (128, 1000)
# Before the first run that counts: caches are filled, and nothing is compiled any more.
_WARM_UP = 5


def _mse_step() -> Callable[[], object]:
    """A training step of ``mse_loss``: forward and backward, on the cores that wrappers launch on."""
    import torch

    from nkilib.torch import mse_loss

    values = np.random.default_rng(0).standard_normal((2, *ELEMENTS)).astype(np.float32)
    prediction, target = torch.from_numpy(values[0]).requires_grad_(), torch.from_numpy(values[1])

    def step() -> None:
        prediction.grad = None
        mse_loss(prediction, target).backward()

    return step


def _cross_entropy_launch() -> Callable[[], object]:
    """A launch of ``cross_entropy_forward`` on two cores, with each row in one chunk."""
    from nkilib.experimental.loss import cross_entropy_forward

    positions, vocabulary = LOGITS
    random = np.random.default_rng(0)
    logits = random.standard_normal(LOGITS).astype(np.float32)
    targets = random.integers(0, vocabulary, positions).astype(np.int32)
    launch: Any = cross_entropy_forward[2]
    return lambda: launch(logits, targets, chunk_size=vocabulary)


CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "mse_loss step": _mse_step,
    "cross_entropy_forward[2]": _cross_entropy_launch,
}


def run_times(step: Callable[[], object], runs: int) -> list[float]:
    """The CPU seconds of each of several runs, of all threads of the process."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        step()
        times.append(time.process_time() - start)
    return times


def main() -> int:
    """Answer until the input ends."""
    step = CASES[sys.argv[1]]()
    run_times(step, _WARM_UP)
    print(json.dumps(sys.modules["nkilib"].__file__), flush=True)
    for line in sys.stdin:
        print(json.dumps(run_times(step, int(line))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
