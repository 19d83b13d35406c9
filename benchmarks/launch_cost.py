# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cost of a small launch without replay: ``python -m benchmarks.launch_cost [--against DIR]``.

Two launches in which the interpreter, and not numpy, takes the time: a training step of ``nkilib.torch.mse_loss`` on
[8, 64], and a launch of ``cross_entropy_forward[2]`` on [128, 1000]. Times are CPU times of the process, so that both
simulated cores count, with ``NKILIB_REPLAY=0``, after the first launches have filled all caches.

With ``--against DIR``, the root of another checkout, both are measured in one run: each case runs in a process for each
checkout, and the two alternate in rounds of a few runs, so that other load on the machine slows both alike. In each
round the mean time of the runs, including garbage collection, of one checkout is divided by that of the other; the
ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import IO, Any

from benchmarks._display import end_verdicts, verdict
from benchmarks._launch_worker import CASES, ELEMENTS, LOGITS
from examples._display import heading, make_console, plain_table
from nkilib.nki import NOT_SIMULATED, SIMULATED

# The goal: so much of the CPU time of the other checkout a launch may take.
LARGEST_RATIO = 0.7
MILLI = 1e3
_HERE = Path(__file__).resolve().parents[1]
_WORKER = Path(__file__).with_name("_launch_worker.py")


class Worker:
    """A process that runs one case with the package of one checkout.

    Args:
        root: the directory of the checkout.
        case: the case that it runs.

    Raises:
        RuntimeError: if it ends, or measures another package than that of the checkout.
    """

    def __init__(self, root: Path, case: str) -> None:
        environment = {**os.environ, "NKILIB_REPLAY": "0", "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
        self._root = root
        self.process = subprocess.Popen(
            [sys.executable, str(_WORKER), case],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env=environment,
        )
        package = Path(self._answer())
        if root not in package.resolve().parents:
            self.close()
            raise RuntimeError(f"launch_cost: a process for {root} measures {package}; pass the root of a checkout")

    def measure(self, runs: int) -> list[float]:
        """The CPU seconds of each of so many runs."""
        stdin: IO[str] | None = self.process.stdin
        assert stdin is not None
        stdin.write(f"{runs}\n")
        stdin.flush()
        times: list[float] = self._answer()
        return times

    def close(self) -> None:
        """End the process."""
        self.process.communicate()

    def _answer(self) -> Any:
        stdout: IO[str] | None = self.process.stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"launch_cost: the process that measures {self._root} has ended; its error is above")
        return json.loads(line)


@dataclass(frozen=True)
class Cost:
    """The CPU times of one case in one checkout.

    Attributes:
        rounds: the mean of the runs of each round, in seconds.
    """

    rounds: tuple[float, ...]

    @property
    def fastest(self) -> float:
        """The mean of the fastest round."""
        return min(self.rounds)

    @property
    def usual(self) -> float:
        """The median over the rounds."""
        return median(self.rounds)


def ratio(here: Cost, other: Cost) -> float:
    """Return the median, over the rounds, of the time of ``here`` over the time of ``other``."""
    return median(one / another for one, another in zip(here.rounds, other.rounds, strict=True))


@contextmanager
def workers(roots: Sequence[Path], case: str) -> Iterator[list[Worker]]:
    """A process for each checkout, for the ``with`` block."""
    started: list[Worker] = []
    try:
        for root in roots:
            started.append(Worker(root, case))
        yield started
    finally:
        for worker in started:
            worker.close()


def measure(roots: Sequence[Path], case: str, rounds: int, runs: int) -> list[Cost]:
    """Return the cost of a case in each checkout; the checkouts alternate."""
    results: list[list[float]] = [[] for _ in roots]
    with workers(roots, case) as started:
        for _ in range(rounds):
            for times, worker in zip(results, started, strict=True):
                times.append(fmean(worker.measure(runs)))
    return [Cost(tuple(times)) for times in results]


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.launch_cost", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIR", help="root of another checkout to compare with")
    parser.add_argument("--rounds", type=int, default=30, help="turns of each process (default 30)")
    parser.add_argument("--runs", type=int, default=10, help="launches or steps in a turn (default 10)")
    options = parser.parse_args(arguments)
    for name in ("rounds", "runs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.against is not None and not (options.against / "nkilib").is_dir():
        parser.error(f"--against must be the root of a checkout of nkilib, got {options.against}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 0, 1 if a comparison misses the goal, or 2 if there is no simulator to time."""
    options = parse_arguments(arguments)
    console = make_console()
    if not SIMULATED:
        console.print(NOT_SIMULATED)
        return 2
    roots = [_HERE] if options.against is None else [_HERE, options.against.resolve()]
    lines = [
        f"mse_loss of {list(ELEMENTS)}, forward and backward, by nkilib.torch; cross-entropy of {list(LOGITS)}.",
        f"CPU milliseconds of the process, replay off: means of {options.runs} runs, in {options.rounds} rounds.",
    ]
    if options.against is not None:
        lines.append(f"Against {options.against}, alternating. Goal: a ratio of at most {LARGEST_RATIO}.")
    console.print(heading("What a launch costs that is not replayed", *lines))
    table = plain_table("Milliseconds")
    table.add_column("case", no_wrap=True)
    names = ["least", "median"]
    if options.against is not None:
        names += ["other's least", "other's median", "ratio", f"<= {LARGEST_RATIO}"]
    for name in names:
        table.add_column(name, justify="right")
    are_met = []
    for case in CASES:
        costs = measure(roots, case, options.rounds, options.runs)
        cells: list[Any] = [f"{value * MILLI:.2f}" for cost in costs for value in (cost.fastest, cost.usual)]
        if options.against is not None:
            compared = ratio(*costs)
            are_met.append(compared <= LARGEST_RATIO)
            cells += [f"{compared:.3f}", verdict(are_met[-1])]
        table.add_row(case, *cells)
    console.print(table)
    return end_verdicts(console, are_met) if are_met else 0


if __name__ == "__main__":
    raise SystemExit(main())
