# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The linear cross-entropy that is measured: its inputs, its passes on two simulated cores, and their memory.

``python -m benchmarks._linear N D V PASS`` launches one pass and prints what memory it took, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks._inputs import BF16, make_targets
from benchmarks._memory import MemoryUse, Sizes, measure_in_process, peak_resident_bytes, resident_bytes
from nkilib.experimental.loss import (
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    linear_cross_entropy_forward_backward,
)

CORES = 2
FORWARD, FORWARD_BACKWARD, IN_ONE_LAUNCH = "forward", "forward + backward", "in one launch"
# The spread of the logits, those of a model that has learned something.
_SPREAD = 2.0
_SEED = 0


@dataclass(frozen=True)
class LinearCase(Sizes):
    """A problem size, as tables show it."""

    def __str__(self) -> str:
        return f"({self.positions}, {self.features}, {self.classes})"


@dataclass
class LinearInputs:
    """bfloat16 input [N, D] and weight [V, D] with logits of spread 2, int32 targets, gradient of the mean.

    Attributes:
        case: the sizes.
    """

    case: LinearCase
    input: np.ndarray = field(init=False)
    weight: np.ndarray = field(init=False)
    targets: np.ndarray = field(init=False)
    grad_loss: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        rng, case = np.random.default_rng(_SEED), self.case
        self.input = _normal(rng, case.positions, case.features, 1.0)
        self.weight = _normal(rng, case.classes, case.features, _SPREAD / case.features**0.5)
        self.targets = make_targets(case.positions, case.classes)
        self.grad_loss = np.full(case.positions, 1 / case.positions, np.float32)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All of them."""
        return self.input, self.weight, self.targets, self.grad_loss


def _normal(rng: np.random.Generator, rows: int, columns: int, spread: float) -> np.ndarray:
    """Row by row, so that there is no float32 copy of the whole."""
    values = np.empty((rows, columns), BF16)
    for row in values:
        row[:] = (rng.standard_normal(columns, np.float32) * np.float32(spread)).astype(BF16)
    return values


def forward(inputs: LinearInputs) -> tuple[np.ndarray, ...]:
    """Loss and log-sum-exp [N], float32."""
    return tuple(linear_cross_entropy_forward[CORES](inputs.input, inputs.weight, inputs.targets))


def first_form(inputs: LinearInputs) -> tuple[np.ndarray, ...]:
    """Loss, log-sum-exp, and the gradients of the mean loss: a forward and a backward, four products."""
    loss, lse = forward(inputs)
    gradients = linear_cross_entropy_backward[CORES](inputs.input, inputs.weight, inputs.targets, lse, inputs.grad_loss)
    return (loss, lse, *gradients)


def second_form(inputs: LinearInputs) -> tuple[np.ndarray, ...]:
    """Return the same results from a single launch, with three products."""
    return tuple(
        linear_cross_entropy_forward_backward[CORES](
            inputs.input, inputs.weight, inputs.targets, grad_scale=1 / inputs.case.positions
        )
    )


PASSES: dict[str, Callable[[LinearInputs], tuple[np.ndarray, ...]]] = {
    FORWARD: forward,
    FORWARD_BACKWARD: first_form,
    IN_ONE_LAUNCH: second_form,
}


def measure_linear_memory(case: LinearCase, name: str) -> MemoryUse:
    """Launch the pass ``name`` of ``case`` in a fresh process and return what it needed.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    return measure_in_process("benchmarks._linear", case.positions, case.features, case.classes, name)


def main(arguments: list[str]) -> None:
    positions, features, classes, name = arguments
    before = resident_bytes()
    inputs = LinearInputs(LinearCase(int(positions), int(features), int(classes)))
    results = PASSES[name](inputs)
    arrays = sum(array.nbytes for array in (*inputs.arrays, *results))
    print(json.dumps(asdict(MemoryUse(growth=peak_resident_bytes() - before, arrays=arrays))))


if __name__ == "__main__":
    main(sys.argv[1:])
