# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Peak memory, measured in a process of its own: :func:`measure_in_process` runs it, and gets a :class:`MemoryUse`.

:class:`Sizes` are those of an output layer whose loss is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Sizes:
    """The sizes of an output layer.

    Attributes:
        positions, features, classes: N, D and V.
    """

    positions: int
    features: int
    classes: int

    def logits_bytes(self, itemsize: int) -> int:
        """Return the bytes of one tensor [N, V] with elements of ``itemsize`` bytes."""
        return itemsize * self.positions * self.classes


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a launch.

    Attributes:
        growth: bytes by which the peak resident set exceeds the resident set after the imports.
        arrays: bytes of the arrays that went in and came out; an array written in place counts once.
    """

    growth: int
    arrays: int

    @property
    def beyond_arrays(self) -> int:
        return self.growth - self.arrays


def measure_in_process(module: str, *arguments: object) -> MemoryUse:
    """Run ``python -m module arguments`` and return the memory use that it prints as JSON.

    Raises:
        RuntimeError: the process failed; the message ends with the error output of the process.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    # The process finds modules where this one does, from whatever directory this one was started.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Settings of glibc that keep freed memory, as the tests have them, would be measured.
    environment = {name: value for name, value in environment.items() if not name.startswith("MALLOC_")}
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
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
