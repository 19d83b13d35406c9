# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Memory of launches that come to be replayed: ``python -m benchmarks._replay_memory SHAPE AXIS DTYPE PASS``.

Prints as JSON what a process took in which a pass of the softmax family was launched often enough to be recorded,
planned and replayed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Final

from benchmarks._memory import MemoryUse, measure_in_process, peak_resident_bytes, resident_bytes
from benchmarks._softmax import PASSES, SoftmaxCase, SoftmaxInputs

_LAUNCHES: Final = 7
MEMORY_CASES: Final = tuple(
    (SoftmaxCase((8, 1024, 2048), 1, dtype_name), name)
    for name in ("softmax", "softmax, backward")
    for dtype_name in ("fp32", "bf16")
)


def measure_replay_memory(case: SoftmaxCase, name: str) -> MemoryUse:
    """Launch the pass ``name`` of ``case`` in a fresh process until it is replayed, and return what that needed.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    shape = "x".join(map(str, case.shape))
    return measure_in_process("benchmarks._replay_memory", shape, case.axis, case.dtype_name, name)


def main(arguments: list[str]) -> None:
    shape, axis, dtype_name, name = arguments
    inputs = SoftmaxInputs(SoftmaxCase(tuple(map(int, shape.split("x"))), int(axis), dtype_name))
    kept = sum(array.nbytes for array in inputs.tensors)
    before, result = resident_bytes(), None
    for _ in range(_LAUNCHES):
        del result
        result = PASSES[name].ours(inputs)
    assert result is not None
    # The inputs lay in memory before: both what grew and what is held count them.
    growth = max(peak_resident_bytes() - before, result.nbytes) + kept
    print(json.dumps(asdict(MemoryUse(growth=growth, arrays=kept + result.nbytes))))


if __name__ == "__main__":
    main(sys.argv[1:])
