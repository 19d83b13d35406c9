# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Search for the tuning that simulates fastest."""

from __future__ import annotations

import numpy as np
from rich.console import Console

from benchmarks._against_torch import SharedInputs
from benchmarks._cases import Case, Tuning
from benchmarks._launch import backward, forward
from benchmarks._timing import Contender, interleaved_minimum

RUNS = 3
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
    forward_seconds = interleaved_minimum({name: c[1] for name, c in contenders.items()}, RUNS)
    backward_seconds = interleaved_minimum({name: c[2] for name, c in contenders.items()}, RUNS)
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
