# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cost of profiles of long kernels: ``python -m benchmarks.loop_profiles``.

One kernel of ten instructions an iteration, on shapes, written with ``nl.fori_loop`` and with a loop of Python, which
is unrolled. Each profile runs in a process of its own; the time does not count the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks._display import table_of, verdict
from benchmarks._memory import peak_resident_bytes
from examples._display import heading, make_console
from nkilib.nki import NOT_SIMULATED, SIMULATED, nisa, nki, nl

# The goal, for a kernel of two million instructions.
INSTRUCTIONS = 2_000_000
MOST_SECONDS, MOST_MEGABYTES = 10.0, 300.0
# By how much the modelled time may differ from that in which every iteration has run.
MOST_DIFFERENCE = 1e-3
_IN_AN_ITERATION = 10
_ROWS, _COLUMNS = 128, 512
_LOOPS = {"fori_loop": "nl.fori_loop", "all": "nl.fori_loop, every iteration run", "python": "loop of Python, unrolled"}


@dataclass(frozen=True)
class Cost:
    """The cost of a profile, and the time that it models."""

    instructions: int
    seconds: float
    megabytes: float
    modelled_us: float


@nki.jit
def _long(x: Any, is_device_loop: bool) -> Any:
    """Run one load, eight computing instructions and one store for each block of 128 rows."""
    result = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)

    def body(i: Any) -> None:
        tile = nl.ndarray((_ROWS, _COLUMNS), x.dtype)
        nisa.dma_copy(tile, x[nl.ds(i * _ROWS, _ROWS)])
        for _ in range(4):
            nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
            nisa.activation(tile, nl.exp, tile)
        nisa.dma_copy(result[nl.ds(i * _ROWS, _ROWS)], tile)

    count = x.shape[0] // _ROWS
    if is_device_loop:
        nl.fori_loop(0, count, body)
    else:
        for i in range(count):
            body(i)
    return result


def measure(loop: str, instructions: int) -> Cost:
    """Profile the kernel in this process; ``loop`` is one of those above."""
    from nkilib.simulator import profile, spec
    from nkilib.simulator.language import loops as device_loop

    if loop == "all":
        device_loop.FEWEST_ITERATIONS = sys.maxsize
    start = time.perf_counter()
    rows = _ROWS * (instructions // _IN_AN_ITERATION)
    profiled = profile(_long, spec((rows, _COLUMNS), nl.float32), loop != "python")
    seconds = time.perf_counter() - start
    count = sum(profiled.instruction_counts.values())
    return Cost(count, seconds, peak_resident_bytes() / 1e6, profiled.time_us)


def measure_apart(loop: str, instructions: int) -> Cost:
    """Do the work of :func:`measure` in a process of its own.

    Raises:
        RuntimeError: if the process failed; the message ends with the error output of the process.
    """
    command = [sys.executable, "-m", "benchmarks.loop_profiles", "--only", loop, "--instructions", str(instructions)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode != 0:
        raise RuntimeError(f"measure_apart: {' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return Cost(**json.loads(result.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0 if the goals are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_profiles", description="What long profiles cost.")
    parser.add_argument("--instructions", type=int, default=INSTRUCTIONS, help="of the long kernel (2,000,000)")
    parser.add_argument("--unrolled", type=int, default=INSTRUCTIONS // 20, help="of those that run whole (100,000)")
    parser.add_argument("--only", choices=_LOOPS, help=argparse.SUPPRESS)  # in this process, as JSON
    options = parser.parse_args(arguments)
    if not SIMULATED:
        parser.error(NOT_SIMULATED)
    if options.only:
        print(json.dumps(asdict(measure(options.only, options.instructions))))
        return 0
    console = make_console()
    console.print(heading("Profiles of long kernels", "on shapes; times are modelled, not measured"))
    table = table_of(
        "Profiles, each in a process of its own", ("kernel",), ("instructions", "seconds", "peak MB", "modelled us")
    )
    asked = [("fori_loop", options.instructions), ("fori_loop", options.unrolled), ("all", options.unrolled)]
    asked.append(("python", options.unrolled))
    costs = [measure_apart(*item) for item in asked]
    for (loop, _), cost in zip(asked, costs, strict=True):
        columns = f"{cost.instructions:,}", f"{cost.seconds:.2f}", f"{cost.megabytes:,.0f}", f"{cost.modelled_us:,.1f}"
        table.add_row(_LOOPS[loop], *columns)
    console.print(table)
    difference = abs(costs[1].modelled_us / costs[2].modelled_us - 1)
    is_met = costs[0].seconds < MOST_SECONDS and costs[0].megabytes < MOST_MEGABYTES and difference <= MOST_DIFFERENCE
    console.print(
        verdict(is_met), f"at most {MOST_SECONDS:.0f} s and {MOST_MEGABYTES:.0f} MB; differs by {difference:.1e}"
    )
    return int(not is_met)


if __name__ == "__main__":
    raise SystemExit(main())
