# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cost of an import: ``python -m benchmarks.import_cost [--against DIR] [--runs N]``.

For each import, the CPU time that a fresh process takes for it beyond that of the framework alone, and the number of
modules that it loads. Times are medians over the runs, with bytecode in place. With ``--against DIR``, the root of
another checkout, fresh processes of both checkouts alternate, so that other load on the machine slows both alike.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_HERE = Path(__file__).resolve().parents[1]
_NUMPY = "numpy, ml_dtypes"
# What is imported before each import, and is left out of its cost.
IMPORTS = {
    "nkilib": _NUMPY,
    "nkilib.nki": _NUMPY,
    "nkilib.simulator": _NUMPY,
    "nkilib.experimental.loss": _NUMPY,
    "nkilib.experimental.softmax": _NUMPY,
    "nkilib.torch": "torch",
    "nkilib.jax": "jax",
}


@dataclass(frozen=True)
class Cost:
    """The ``seconds`` of CPU time that a process took, and the number of ``modules`` that it had loaded at its end."""

    seconds: float
    modules: int


def cost(root: Path, imported: str) -> Cost:
    """Run ``import {imported}`` in a fresh process, with the package of the checkout in ``root``."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    code = f"import {imported}, sys; print(len(sys.modules))"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    modules = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, check=True, capture_output=True, text=True
    ).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(modules))


def costs(roots: Sequence[Path], name: str, runs: int) -> list[Cost]:
    """Return for each checkout the cost of an import beyond what is imported before it."""
    base = IMPORTS[name]
    measured: dict[Path, list[Cost]] = {root: [] for root in roots}
    for run in range(runs + 1):
        for root in roots:
            alone, together = cost(root, base), cost(root, f"{base}, {name}")
            if run:  # the first one writes the bytecode
                measured[root].append(Cost(together.seconds - alone.seconds, together.modules - alone.modules))
    return [Cost(median(each.seconds for each in taken), taken[0].modules) for taken in measured.values()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each import."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.import_cost", description=(__doc__ or "").split("\n")[2]
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="the root of another checkout")
    parser.add_argument("--runs", type=int, default=10, help="processes for each time (default: %(default)s)")
    parser.add_argument("--only", choices=IMPORTS, action="append", help="measure this import alone; may be repeated")
    options = parser.parse_args(arguments)
    roots = [_HERE] if options.against is None else [_HERE, options.against.resolve()]
    for name in options.only or IMPORTS:
        here, *others = costs(roots, name, options.runs)
        line = f"{name:27} {1e3 * here.seconds:6.0f} ms {here.modules:4} modules"
        for other in others:
            line += f"   there {1e3 * other.seconds:6.0f} ms {other.modules:4} modules"
            line += f"   ratio {here.seconds / other.seconds:.2f}" if other.seconds > 0.0 else ""
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
