"""Peak memory of one launch, measured in a process of its own.

Run as ``python -m benchmarks._memory ROWS VOCABULARY DTYPE PASS POSITIONS CHUNK`` it prints one line of JSON.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks._cases import Case, Tuning

STATUS = Path("/proc/self/status")
FORWARD, BACKWARD, BACKWARD_IN_PLACE = "forward", "backward", "in place"
# Forward and backward in place through nkilib.torch.
TORCH_IN_PLACE = "torch in place"


@dataclass(frozen=True)
class MemoryUse:
    """What a launch needed.

    Attributes:
        growth: bytes by which the peak resident set lies above the resident set after the imports.
        arrays: bytes of the arrays that went in and came out; an array written in place counts once.
    """

    growth: int
    arrays: int

    @property
    def beyond_arrays(self) -> int:
        return self.growth - self.arrays


def measure_memory(case: Case, pass_name: str, tuning: Tuning) -> MemoryUse:
    """Launch ``pass_name`` of ``case`` in a fresh process and return what it needed.

    ``TORCH_IN_PLACE`` takes no notice of ``tuning``: nkilib.torch chooses its own.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    arguments = (case.rows, case.vocabulary, case.dtype_name, pass_name, tuning.positions, tuning.chunk)
    return measure_in_process("benchmarks._memory", *arguments)


def measure_in_process(module: str, *arguments: object) -> MemoryUse:
    """What ``python -m module arguments`` prints as JSON.

    Raises:
        RuntimeError: the process failed; the message ends with what it wrote.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # The process finds modules where this one does, from whatever directory this one was started.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"measure_in_process: {' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return MemoryUse(**json.loads(result.stdout))


def resident_bytes() -> int:
    """Resident set of this process now; where the system does not tell, its peak so far."""
    return _status_bytes("VmRSS") if STATUS.exists() else _maximum_resident_bytes()


def peak_resident_bytes() -> int:
    """Largest resident set that this process has had.

    VmHWM where there is one: ``ru_maxrss`` of a child starts from the size of its parent on Linux.
    """
    return _status_bytes("VmHWM") if STATUS.exists() else _maximum_resident_bytes()


def _status_bytes(field: str) -> int:
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no line {field}")


def _maximum_resident_bytes() -> int:
    import resource  # Unix only

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _launch_and_measure(case: Case, pass_name: str, tuning: Tuning) -> MemoryUse:
    import numpy as np

    from benchmarks._inputs import make_logits, make_targets
    from benchmarks._launch import backward, forward

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
    import torch

    from benchmarks._against_torch import as_tensor
    from benchmarks._inputs import make_logits, make_targets
    from benchmarks.torch_path import torch_step

    before = resident_bytes()
    logits = as_tensor(make_logits(case.rows, case.vocabulary, case.dtype))
    targets = torch.from_numpy(make_targets(case.rows, case.vocabulary))
    _, gradient = torch_step(logits, targets, backward=True, inplace=True)
    assert gradient is not None and gradient.data_ptr() == logits.data_ptr()
    return MemoryUse(growth=peak_resident_bytes() - before, arrays=logits.nbytes + targets.nbytes)


def main(arguments: list[str]) -> None:
    rows, vocabulary, dtype_name, pass_name, positions, chunk = arguments
    case = Case(int(rows), int(vocabulary), dtype_name)
    if pass_name == TORCH_IN_PLACE:
        use = _step_and_measure(case)
    else:
        use = _launch_and_measure(case, pass_name, Tuning(int(positions), int(chunk)))
    print(json.dumps(asdict(use)))


if __name__ == "__main__":
    main(sys.argv[1:])
