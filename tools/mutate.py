# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Change the code at random places, one at a time, and list the changes that no test notices.

    python -m tools.mutate --seed 1 --count 100 --workers 16 --seconds 480 --out survivors.md nkilib/core

draws 100 mutants by a seed (one comparison, arithmetic operator, small constant, boolean or condition changed), runs
the tests of the package of each in a temporary copy of the checkout, and writes those that survive. The same seed draws
the same mutants from the same sources. It needs what the tests need, and no installation.
"""

from __future__ import annotations

import argparse
import queue
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tools.mutation.checkout import Copy, Mutant, copies_of, imported_from, mutants_in
from tools.mutation.judging import Judge, Judged, report

_CHECKOUT = Path(__file__).resolve().parent.parent


def judged_mutants(checkout: Path, mutants: list[Mutant], workers: int, judge: Judge) -> Iterator[Judged]:
    """Yield mutants with their verdicts. Each worker judges its mutants in a copy of the checkout of its own.

    Raises:
        RuntimeError: Python would import another nkilib instead of the copy.
    """
    free: queue.Queue[Copy] = queue.Queue()

    def judged(mutant: Mutant) -> Judged:
        copy = free.get()
        try:
            return judge.judge(mutant, copy)
        finally:
            free.put(copy)

    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        for copy in copies_of(checkout, Path(folder), min(workers, len(mutants))):
            free.put(copy)
            module = Path(mutants[0].path).parts[0]
            result = imported_from(copy.root, module)
            if result != (copy.root / module).resolve():
                raise RuntimeError(
                    f"mutate: tests must import {module} from {copy.root}, got {result}; uninstall it there"
                )
        with ThreadPoolExecutor(workers) as threads:
            try:
                for done in as_completed([threads.submit(judged, mutant) for mutant in mutants]):
                    yield done.result()
            finally:
                threads.shutdown(cancel_futures=True)


def main(arguments: list[str], checkout: Path = _CHECKOUT) -> int:
    """Draw mutants, judge them and write the page. The status is always 0, because survivors are no failure."""
    options = _parser().parse_args(arguments)
    places = mutants_in(checkout, options.packages)
    drawn = random.Random(options.seed).sample(places, min(options.count, len(places)))
    head = f"Seed {options.seed}: {len(drawn)} of {len(places):,} mutants of {', '.join(options.packages)}."
    print(head, flush=True)
    marks = "not sweep and not slow" if options.fast else "not sweep"
    judge = Judge(options.limit, time.monotonic() + options.seconds, options.reach, marks)
    judged: list[Judged] = []
    for mutant in judged_mutants(checkout, drawn, options.workers, judge):
        judged.append(mutant)
        change = mutant.mutant.change
        print(
            f"{mutant.verdict.value}: {mutant.mutant.place}  {change.before}  ->  {change.after}  {mutant.test}",
            flush=True,
        )
        if options.out is not None:  # again after each: what is known stays if the run is ended
            options.out.write_text(report(head, judged), "utf-8")
    if options.out is None:
        print(report(head, judged))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("packages", nargs="+", help="folders or files of nkilib, from the root of the checkout")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--count", type=_positive, default=20, help="mutants that are drawn")
    parser.add_argument("--workers", type=_positive, default=1, help="mutants at a time, each in its copy")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for everything; mutants after that are not run")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one mutant")
    parser.add_argument("--reach", action="store_true", help="tell of each survivor whether a test evaluates the place")
    parser.add_argument("--fast", action="store_true", help="run the fast tier of the tests alone")
    parser.add_argument("--out", type=Path, help="the page that is written; without it the page is printed")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
