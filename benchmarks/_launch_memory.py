# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Peak memory of one launch of cross-entropy, measured in a process of its own.

Run as ``python -m benchmarks._launch_memory ROWS VOCABULARY DTYPE PASS POSITIONS CHUNK`` it prints one line of JSON.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict

import numpy as np

from benchmarks._cross_entropy import Case, Tuning, backward, forward
from benchmarks._inputs import make_logits, make_targets
from benchmarks._memory import MemoryUse, measure_in_process, peak_resident_bytes, resident_bytes

FORWARD, BACKWARD, BACKWARD_IN_PLACE = "forward", "backward", "in place"
# Forward and backward in place through nkilib.torch.
TORCH_IN_PLACE = "torch in place"


def measure_memory(case: Case, pass_name: str, tuning: Tuning) -> MemoryUse:
    """Launch ``pass_name`` of ``case`` in a fresh process and return what it needed.

    ``TORCH_IN_PLACE`` takes no notice of ``tuning``: nkilib.torch chooses its own.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    arguments = (case.rows, case.vocabulary, case.dtype_name, pass_name, tuning.positions, tuning.chunk)
    return measure_in_process("benchmarks._launch_memory", *arguments)


def _launch_and_measure(case: Case, pass_name: str, tuning: Tuning) -> MemoryUse:
    before = resident_bytes()
    logits = make_logits(case.rows, case.vocabulary, case.dtype)
    targets = make_targets(case.rows, case.vocabulary)
    arrays: tuple[np.ndarray, ...]
    if pass_name == FORWARD:
        arrays = (logits, targets, *forward(logits, targets, tuning))
    else:
        # Near enough to the log-sum-exp of normal logits; the forward is not run, so that its peak does not count.
        lse = np.full(case.rows, math.log(case.vocabulary) + 0.5, dtype=np.float32)
        gradient = backward(logits, targets, lse, tuning, inplace=pass_name == BACKWARD_IN_PLACE)
        arrays = (logits, targets, lse) if gradient is logits else (logits, targets, lse, gradient)
    return MemoryUse(growth=peak_resident_bytes() - before, arrays=sum(array.nbytes for array in arrays))


def _step_and_measure(case: Case) -> MemoryUse:
    # Here, since a process that measures a launch of the kernels alone shall not load PyTorch.
    import torch

    from benchmarks._against_torch import as_tensor, torch_step

    before = resident_bytes()
    logits = as_tensor(make_logits(case.rows, case.vocabulary, case.dtype))
    targets = torch.from_numpy(make_targets(case.rows, case.vocabulary))
    _, gradient = torch_step(logits, targets, backward=True, inplace=True)
    assert gradient is not None and gradient.data_ptr() == logits.data_ptr()
    return MemoryUse(growth=peak_resident_bytes() - before, arrays=logits.nbytes + targets.nbytes)


def main(arguments: list[str]) -> None:
    """Measure what the arguments name, and print it."""
    rows, vocabulary, dtype_name, pass_name, positions, chunk = arguments
    case = Case(int(rows), int(vocabulary), dtype_name)
    if pass_name == TORCH_IN_PLACE:
        use = _step_and_measure(case)
    else:
        use = _launch_and_measure(case, pass_name, Tuning(int(positions), int(chunk)))
    print(json.dumps(asdict(use)))


if __name__ == "__main__":
    main(sys.argv[1:])
