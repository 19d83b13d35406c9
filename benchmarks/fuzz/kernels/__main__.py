# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Bits of random kernels replayed and not: ``python -m benchmarks.fuzz.kernels``.

Kernels are drawn until the time is over; failures are shrunk and printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.fuzz.kernels.checking import checked, complaint
from benchmarks.fuzz.kernels.drawing import SIZES
from benchmarks.fuzz.kernels.situations import random_kernel


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``None`` means that of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz.kernels",
        description="Draw kernels of random legal instructions, launch each as always and replayed, on the data that "
        "was recorded and on other data, and compare all bits.",
        epilog="The exit code is 1 if a kernel differed. A kernel depends on its seed, sizes and cores alone.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no further kernel begins (default 60)")
    parser.add_argument("--seed", type=int, help="of the first kernel (default: a new one, which is printed)")
    parser.add_argument("--sizes", choices=sorted(SIZES), default="", help="of tiles (default: all in turn)")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=0, help="of each launch (default: 1 or 2)")
    parser.add_argument("--only", action="store_true", help="run the kernel of this seed alone, and print it")
    options = parser.parse_args(arguments)
    if options.only and options.seed is None:
        parser.error("--only needs the --seed of the kernel")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kernels; returns 0, or 1 if one differed."""
    options = parse_arguments(arguments)
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    counts: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    while not counts or (time.monotonic() < end and not options.only):
        program = random_kernel(seed, options.sizes, options.cores)
        if options.only:
            print(program)
        try:
            report = checked(program)
        except Exception as error:
            counts["failed"] += 1
            print(f"FAILED seed {seed}: {type(error).__name__}: {error}\n{program}", flush=True)
        else:
            counts[f"not planned: {report.refusal}" if report.refusal else "planned"] += 1
            counts["replays that went back to the launch as always"] += len(report.fallbacks)
            if report.differences:
                counts["different"] += 1
                print(f"DIFFERENT {complaint(program, report)}", flush=True)
        seed += 1
    for name, count in counts.most_common():
        print(f"{count:8} {name}")
    return 1 if counts["different"] or counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
