"""What the interpreter adds to an instruction: ``python -m benchmarks.instruction_cost`` or ``make instruction-cost``.

Each line runs one instruction many times on tiles so small that numpy's arithmetic is next to nothing: what remains is
binding, validation, the dispatch and the bookkeeping of the simulator. The kernel includes the loop around it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._display import verdict
from examples._display import heading, make_console, plain_table
from nkilib.nki import SIMULATED, nisa, nki, nl

# The goal, in microseconds an instruction: a kernel of 50,000 then takes less than a second.
LARGEST_MICROSECONDS = 15.0
PARTITIONS = 128
COLUMNS = 4
MICRO = 1e6


@dataclass(frozen=True)
class Measured:
    """The microseconds that one instruction takes; the smallest of several launches."""

    name: str
    microseconds: float

    @property
    def meets_goal(self) -> bool:
        return self.microseconds <= LARGEST_MICROSECONDS


def _tiles() -> dict[str, Any]:
    """In a kernel: the operands of the instructions below, all written."""
    return {
        "x": nl.ones((PARTITIONS, COLUMNS), nl.float32),
        "y": nl.ones((PARTITIONS, COLUMNS), nl.float32),
        "narrow": nl.ones((PARTITIONS, COLUMNS), nl.bfloat16),
        "column": nl.ones((PARTITIONS, 1), nl.float32),
        "integers": nl.ones((PARTITIONS, 1), nl.int32),
        "left": nl.ones((32, 32), nl.bfloat16),
        "right": nl.ones((32, COLUMNS), nl.bfloat16),
        "bank": nl.zeros((32, COLUMNS), nl.float32, nl.psum),
    }


# What is measured: a name, and the instruction on the tiles above and an array in HBM.
_CASES: dict[str, Callable[[dict[str, Any], Any], object]] = {
    "memset": lambda t, hbm: nisa.memset(t["x"], 0.0),
    "iota": lambda t, hbm: nisa.iota(t["integers"], [[1, 1]], channel_multiplier=1),
    "tensor_copy": lambda t, hbm: nisa.tensor_copy(t["y"], t["x"]),
    "tensor_tensor": lambda t, hbm: nisa.tensor_tensor(t["y"], t["x"], t["x"], nl.add),
    "tensor_tensor, bf16 in": lambda t, hbm: nisa.tensor_tensor(t["y"], t["narrow"], t["narrow"], nl.add),
    "tensor_scalar, number": lambda t, hbm: nisa.tensor_scalar(t["y"], t["x"], nl.multiply, 2.0),
    "tensor_scalar, column": lambda t, hbm: nisa.tensor_scalar(t["y"], t["x"], nl.multiply, t["column"]),
    "tensor_reduce": lambda t, hbm: nisa.tensor_reduce(t["column"], nl.max, t["x"], 1),
    "activation": lambda t, hbm: nisa.activation(t["y"], nl.exp, t["x"]),
    "activation, reduced": lambda t, hbm: nisa.activation(
        t["y"], nl.exp, t["x"], bias=t["column"], reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce
    ),
    "nc_matmul": lambda t, hbm: nisa.nc_matmul(t["bank"], t["left"], t["right"]),
    "dma_copy, load": lambda t, hbm: nisa.dma_copy(t["x"], hbm),
    "dma_copy, store": lambda t, hbm: nisa.dma_copy(hbm, t["x"]),
    "slice and copy": lambda t, hbm: nisa.tensor_copy(t["y"][:, 1:3], t["x"][:, 2:4]),
    "allocate and copy": lambda t, hbm: nisa.tensor_copy(nl.ndarray((PARTITIONS, 1), nl.float32), t["column"]),
}


def measure(name: str, repeats: int, launches: int) -> Measured:
    """The shortest of several launches of a kernel that runs instruction ``name`` ``repeats`` times.

    In CPU time of the thread: what else runs on the machine then counts only as far as it cools the caches.
    """
    case = _CASES[name]

    def kernel(hbm: Any) -> Any:
        tiles = _tiles()
        start = time.thread_time()
        for _ in nl.sequential_range(repeats):
            case(tiles, hbm)
        seconds.append(time.thread_time() - start)

    seconds: list[float] = []
    for _ in range(launches):
        nki.jit(kernel)(np.ones((PARTITIONS, COLUMNS), np.float32))
    return Measured(name, min(seconds) / repeats * MICRO)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instruction_cost", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5000, help="instructions in a launch (default 5000)")
    parser.add_argument("--launches", type=int, default=7, help="launches, of which the fastest counts (default 7)")
    options = parser.parse_args(arguments)
    for name in ("repeats", "launches"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print("This times the simulator, and nkilib runs on the real NKI here: set NKILIB_BACKEND=simulator.")
        return 2
    console.print(
        heading(
            "The interpreter's own cost of an instruction",
            f"Tiles of {PARTITIONS} x {COLUMNS} or smaller; the fastest of {options.launches} launches of "
            f"{options.repeats} instructions, in microseconds.",
            f"Goal: at most {LARGEST_MICROSECONDS:.0f}. CPU time of the thread.",
        )
    )
    results = [measure(name, options.repeats, options.launches) for name in _CASES]
    table = plain_table("Microseconds")
    table.add_column("instruction", no_wrap=True)
    table.add_column("each", justify="right")
    table.add_column(f"<= {LARGEST_MICROSECONDS:.0f}", justify="right")
    for result in results:
        table.add_row(result.name, f"{result.microseconds:.1f}", verdict(result.meets_goal))
    console.print(table)
    met = sum(result.meets_goal for result in results)
    console.print(f"Goal met: {met} of {len(results)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
