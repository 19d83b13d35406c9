# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The overhead of the interpreter for an instruction: ``python -m benchmarks.instruction_cost``.

Each line runs one instruction many times on small tiles, and then numpy's part of the work on arrays of the same
sizes. The difference is the interpreter's own: binding, validation, the dispatch and the bookkeeping.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._display import table_of, verdict
from examples._display import heading, make_console
from nkilib.nki import NOT_SIMULATED, SIMULATED, nisa, nki, nl

# The goal, in microseconds an instruction: a kernel of 50,000 then takes less than a second.
LARGEST_MICROSECONDS = 15.0
PARTITIONS = 128
COLUMNS = 4
MICRO = 1e6


@dataclass(frozen=True)
class Measured:
    """The microseconds that one instruction takes, and those of its arithmetic; the smallest of several launches."""

    name: str
    whole: float
    arithmetic: float

    @property
    def own(self) -> float:
        """The microseconds that the interpreter adds to the arithmetic."""
        return self.whole - self.arithmetic

    @property
    def meets_goal(self) -> bool:
        return self.own <= LARGEST_MICROSECONDS


Tiles = dict[str, Any]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """An instruction, and the calls of numpy that do the same to arrays of the same names."""

    instruction: Callable[[Tiles], object]
    arithmetic: Callable[[Arrays], object]


def _tiles(hbm: Any) -> Tiles:
    """Allocate and write the operands of the instructions below, in a kernel."""
    return {
        "x": nl.ones((PARTITIONS, COLUMNS), nl.float32),
        "y": nl.ones((PARTITIONS, COLUMNS), nl.float32),
        "narrow": nl.ones((PARTITIONS, COLUMNS), nl.bfloat16),
        "column": nl.ones((PARTITIONS, 1), nl.float32),
        "integers": nl.ones((PARTITIONS, 1), nl.int32),
        "left": nl.ones((32, 32), nl.float32),
        "right": nl.ones((32, COLUMNS), nl.float32),
        "bank": nl.zeros((32, COLUMNS), nl.float32, nl.psum),
        "hbm": hbm,
    }


def _add_narrow(a: Arrays) -> None:
    np.add(a["narrow"].astype(np.float32), a["narrow"].astype(np.float32), out=a["y"])


def _activate_and_reduce(a: Arrays) -> None:
    np.add(a["x"], a["column"], out=a["y"])
    np.exp(a["y"], out=a["y"])
    np.add.reduce(a["y"], axis=1)


_CASES: dict[str, Case] = {
    "memset": Case(lambda t: nisa.memset(t["x"], 0.0), lambda a: a["x"].fill(0.0)),
    "iota": Case(
        lambda t: nisa.iota(t["integers"], [[1, 1]], channel_multiplier=1),
        lambda a: np.copyto(a["integers"], np.arange(PARTITIONS, dtype=np.int32)[:, None]),
    ),
    "tensor_copy": Case(lambda t: nisa.tensor_copy(t["y"], t["x"]), lambda a: np.copyto(a["y"], a["x"])),
    "tensor_tensor": Case(
        lambda t: nisa.tensor_tensor(t["y"], t["x"], t["x"], nl.add), lambda a: np.add(a["x"], a["x"], out=a["y"])
    ),
    "tensor_tensor, bf16 in": Case(lambda t: nisa.tensor_tensor(t["y"], t["narrow"], t["narrow"], nl.add), _add_narrow),
    "tensor_scalar, number": Case(
        lambda t: nisa.tensor_scalar(t["y"], t["x"], nl.multiply, 2.0),
        lambda a: np.multiply(a["x"], np.float32(2.0), out=a["y"]),
    ),
    "tensor_scalar, column": Case(
        lambda t: nisa.tensor_scalar(t["y"], t["x"], nl.multiply, t["column"]),
        lambda a: np.multiply(a["x"], a["column"], out=a["y"]),
    ),
    "tensor_reduce": Case(
        lambda t: nisa.tensor_reduce(t["column"], nl.max, t["x"], 1),
        lambda a: np.maximum.reduce(a["x"], axis=1, out=a["column"][:, 0]),
    ),
    "activation": Case(lambda t: nisa.activation(t["y"], nl.exp, t["x"]), lambda a: np.exp(a["x"], out=a["y"])),
    "activation, reduced": Case(
        lambda t: nisa.activation(
            t["y"], nl.exp, t["x"], bias=t["column"], reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce
        ),
        _activate_and_reduce,
    ),
    "nc_matmul": Case(
        lambda t: nisa.nc_matmul(t["bank"], t["left"], t["right"], accumulate=False),
        lambda a: np.copyto(a["bank"], a["left"].T @ a["right"]),
    ),
    "dma_copy, load": Case(lambda t: nisa.dma_copy(t["x"], t["hbm"]), lambda a: np.copyto(a["x"], a["hbm"])),
    "dma_copy, store": Case(lambda t: nisa.dma_copy(t["hbm"], t["x"]), lambda a: np.copyto(a["hbm"], a["x"])),
    "slice and copy": Case(
        lambda t: nisa.tensor_copy(t["y"][:, 1:3], t["x"][:, 2:4]),
        lambda a: np.copyto(a["y"][:, 1:3], a["x"][:, 2:4]),
    ),
    "allocate and copy": Case(
        lambda t: nisa.tensor_copy(nl.ndarray((PARTITIONS, 1), nl.float32), t["column"]),
        lambda a: np.copyto(np.empty((PARTITIONS, 1), np.float32), a["column"]),
    ),
}


def measure(name: str, repeats: int, launches: int) -> Measured:
    """Return the shortest of several launches of a kernel that runs instruction ``name`` ``repeats`` times.

    The time is CPU time of the thread: other work on the machine then matters only as far as it cools the caches.
    """
    case = _CASES[name]
    whole: list[float] = []
    arithmetic: list[float] = []

    def kernel(hbm: Any) -> None:
        tiles = _tiles(hbm)
        start = time.thread_time()
        for _ in nl.sequential_range(repeats):
            case.instruction(tiles)
        whole.append(time.thread_time() - start)
        arrays = {key: np.copy(tile.array) for key, tile in tiles.items()}
        start = time.thread_time()
        for _ in range(repeats):
            case.arithmetic(arrays)
        arithmetic.append(time.thread_time() - start)

    for _ in range(launches):
        nki.jit(kernel)(np.ones((PARTITIONS, COLUMNS), np.float32))
    return Measured(name, min(whole) / repeats * MICRO, min(arithmetic) / repeats * MICRO)


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
        console.print(NOT_SIMULATED)
        return 2
    console.print(
        heading(
            "The interpreter's own cost of an instruction",
            f"Tiles of {PARTITIONS} x {COLUMNS} or smaller; the fastest of {options.launches} launches of "
            f"{options.repeats} instructions, in microseconds.",
            "Own: without the arithmetic, which numpy does alone as well; binding, validation, dispatch, bookkeeping.",
            f"Goal: at most {LARGEST_MICROSECONDS:.0f}. CPU time of the thread.",
        )
    )
    results = [measure(name, options.repeats, options.launches) for name in _CASES]
    table = table_of("Microseconds", ("instruction",), ("whole", "numpy's", "own", f"<= {LARGEST_MICROSECONDS:.0f}"))
    for result in results:
        times = (f"{value:.1f}" for value in (result.whole, result.arithmetic, result.own))
        table.add_row(result.name, *times, verdict(result.meets_goal))
    console.print(table)
    met = sum(result.meets_goal for result in results)
    console.print(f"Goal met: {met} of {len(results)}.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
