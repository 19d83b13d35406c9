# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Choose the fast tests by what they reach, and write ``tests/slow.txt`` and ``tests/budgets.json``.

    python -m pytest -n 16 --dist loadfile -p tests.measuring --measure build/cost -m "not sweep"
    python -m pytest -n 16 --dist load -p tests.measuring --measure build/reach --measure-reach -m "not sweep"
    python -m tools.write_slow_tests build/cost build/reach

on an otherwise idle machine. Of a test that several directories have, the last one counts, and seconds from a run that
measured reach count only where there are no others. Costs move: once dear tests are left out, a cheap one makes what
they shared. So measure the fast tier again, without ``-m``, and choose again with its directory as the last.

``--keep`` writes budgets and prints figures for the list as it is. ``--move ID ...`` makes tests slow, ``--back ID
...`` makes them fast, and both need no measurement.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulated_work import Work
from tests.slow_list import LISTED, SlowTests, function_of, read
from tests.tiers import BUDGETS, LIMIT, Budgets, folder_of
from tools.tier_choice import Choice, Goal, Measured, Wanted, choose_within, seconds_of

_ROOT = Path(__file__).resolve().parent.parent
_SHARED = 0.3  # seconds of a setup from which on it makes what other tests of the file share
_ROOM = 1.25  # of a budget, for what a change adds
_PLANS = "tests/experimental/plans/test_tables.py::test_launch_of_a_row["
_ON_THE_STAND_IN = "tests/neuron/test_kernels.py::test_results_are_those_of_the_simulator_bit_for_bit["
# Tests whose launch is one of those that a process makes for their file: only what the tests of a run ask for.
_ASKS_FOR_A_LAUNCH = (
    _ON_THE_STAND_IN,
    "tests/verify/test_on_stand_in.py::test_every_kernel_and_probe_is_documented_nki[",
)
# One test of each group, which the parentheses find.
_NEEDS = {
    "gradients against float64": (
        r"tests/torch/benchmarks/test_fuzz_results\.py::test_results_and_gradients_are_within_their_bounds\[(\w+)"
    ),
    "a compiled graph": (
        r"tests/torch/functions/cross_entropy/test_compile\.py::test_a_full_graph_gives_equal_results()"
    ),
    "two ranks": (r"tests/torch/test_trainer_ranks\.py::test_loss_and_gradient_of_a_sharded_vocabulary()"),
    "a tutorial": r"tests/tutorials/test_tutorials\.py::test_what_a_page_shows_is_what_is_printed\[(\w+)",
}

_NONE = Work()
Arc = tuple[str, int, int]


@dataclass
class Test:
    """Figures of a test; ``seconds`` is None before it was measured without reach."""

    seconds: float | None = None
    seconds_with_reach: float = 0.0
    setup: float = 0.0
    work: Work = _NONE
    in_call: Work = _NONE
    arcs: int = 0

    @property
    def cost(self) -> float:
        return self.seconds_with_reach if self.seconds is None else self.seconds


@dataclass
class Run:
    """All measurements.

    Attributes:
        tests: the tests.
        arcs: the arcs that there are, by their bit.
        by_imports: the arcs that imports reach.
        shared: the seconds of what the tests of a file share.
    """

    tests: dict[str, Test] = field(default_factory=lambda: defaultdict(Test))
    arcs: dict[Arc, int] = field(default_factory=dict)
    by_imports: int = 0
    shared: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def read(self, directory: Path) -> None:
        """Add what the files of a directory say.

        Raises:
            FileNotFoundError: if it has none.
        """
        files = sorted(directory.glob("*.jsonl.gz"))
        if not files:
            raise FileNotFoundError(
                f"write_slow_tests: {directory} must have files of `-p tests.measuring --measure`, and has none"
            )
        before, self.shared = self.shared, defaultdict(float)
        for file in files:
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                self._add([json.loads(line) for line in lines])
        # Which test of a file makes what it shares depends on what else runs: of several runs the dearest counts.
        for name, seconds in before.items():
            self.shared[name] = max(self.shared[name], seconds)

    def _add(self, lines: list[dict[str, Any]]) -> None:
        arcs: list[list[Any]] = next((line["arcs"] for line in lines if "arcs" in line), [])
        places = np.array([self.arcs.setdefault(tuple(arc), len(self.arcs)) for arc in arcs], np.int64)
        for line in lines:
            if "test" not in line:
                continue
            reached = None
            if "reached" in line:
                reached = _packed(places[np.flatnonzero(_unpacked(int(line["reached"], 16), 1))])
            if not line["test"]:
                self.by_imports |= reached or 0
                continue
            test = self.tests[line["test"]]
            # Which test makes a value that many share is left to chance: the budget is for the one that does.
            test.work, test.in_call = Work(*line["work"]), Work(*map(max, test.in_call, line["in_call"]))
            if reached is None:
                test.seconds = line["seconds"]
                test.setup = line["setup"] if line["setup"] > _SHARED else 0.0
                self.shared[file_of(line["test"])] += test.setup
            else:
                test.seconds_with_reach, test.arcs = line["seconds"], reached


@dataclass(frozen=True)
class Elements:
    """The lines and branches of nkilib: those of coverage.py, statements and the ways out of a line that has several.

    Attributes:
        lines, branches: how many there are; lines have the first numbers.
        pairs: arcs, each with an element that it reaches.
    """

    lines: int
    branches: int
    pairs: np.ndarray

    @classmethod
    def of(cls, arcs: Mapping[Arc, int]) -> Elements:
        """The elements that arcs reach."""
        lines: dict[tuple[str, int], int] = {}
        branches: dict[Arc, int] = {}
        of_lines, of_branches = [], []
        for (file, start, end), number in arcs.items():
            if not (_ROOT / file).is_file():
                continue  # a test has written it
            source = _source(file)
            first, last = source.parser.first_line(start), source.parser.first_line(end)
            of_lines += [
                (number, lines.setdefault((file, line), len(lines)))
                for line in {first, last}
                if line in source.statements
            ]
            if source.exits.get(first, 0) > 1 and (first, last) in source.arcs:
                of_branches.append((number, branches.setdefault((file, first, last), len(branches))))
        moved = [(number, len(lines) + branch) for number, branch in of_branches]
        return cls(len(lines), len(branches), np.array([*of_lines, *moved], np.int64).reshape(-1, 2))

    def reached(self, arcs: int) -> int:
        """The elements, a bit each, that arcs reach."""
        bits = _unpacked(arcs, int(self.pairs[:, 0].max()) + 1)
        return _packed(self.pairs[bits[self.pairs[:, 0]] != 0, 1])

    def goals(self) -> list[Goal]:
        """The shares that the fast tier reaches."""
        return [
            Goal("lines", (1 << self.lines) - 1, 0.98),
            Goal("branches", ((1 << self.branches) - 1) << self.lines, 0.97),
        ]


class _Source:
    """A file as coverage.py sees it."""

    def __init__(self, file: str) -> None:
        from coverage.parser import PythonParser

        self.parser = PythonParser(filename=str(_ROOT / file))
        self.parser.parse_source()
        self.statements, self.arcs, self.exits = self.parser.statements, self.parser.arcs(), self.parser.exit_counts()


_source = cache(_Source)


def _unpacked(bits: int, count: int) -> np.ndarray:
    """The bits of a number, the lowest first, of which there are at least ``count``."""
    size = (max(bits.bit_length(), count) + 7) // 8
    return np.unpackbits(np.frombuffer(bits.to_bytes(size, "little"), np.uint8), bitorder="little")


def _packed(places: np.ndarray) -> int:
    """The number with these bits."""
    bits = np.zeros(int(places.max(initial=0)) + 1, np.uint8)
    bits[places] = 1
    return int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")


def needs_of(tests: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tests of which the fast tier needs one, by the name of what is needed."""
    needs: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        for need, pattern in _NEEDS.items():
            found = re.match(pattern, test)
            if found:
                needs[f"{need}: {found.group(1)}"].append(test)
    on_the_stand_in = [test for test in tests if test.startswith(_ON_THE_STAND_IN)]
    if on_the_stand_in:
        from tests.neuron.launches import launches

        kernels = {name: launch.kernel for name, launch in launches().items()}
        for test in on_the_stand_in:
            kernel = kernels.get(test[len(_ON_THE_STAND_IN) : -1])
            if kernel is not None:
                needs[f"stand-in: {kernel.__module__}.{kernel.__name__}"].append(test)
    return needs


def _measured(run: Run) -> tuple[dict[str, Measured], list[Goal]]:
    """The tests by cost and elements, and the goals; what imports reach every test reaches."""
    elements = Elements.of(run.arcs)
    by_imports = elements.reached(run.by_imports)
    counts = Counter(file_of(name) for name in run.tests)
    tests = {}
    for name, test in run.tests.items():
        file = file_of(name)
        own, share = max(0.0, test.cost - test.setup), run.shared.get(file, 0.0) / counts[file]
        if name.startswith(_ASKS_FOR_A_LAUNCH):
            own, share, file = own + share, 0.0, ""
        tests[name] = Measured(own, elements.reached(test.arcs) | by_imports, file if share else "", share)
    return tests, elements.goals()


def file_of(test: str) -> str:
    """The file of a test."""
    return test.partition("::")[0]


def _write(run: Run, slow: SlowTests) -> None:
    LISTED.write_text(slow.text(), encoding="utf-8")
    fast = {name: test for name, test in run.tests.items() if name not in slow}
    folders: dict[str, Work] = defaultdict(Work)
    for name, test in fast.items():
        done = folders[folder_of(name)]
        folders[folder_of(name)] = Work(*map(sum, zip(done, test.work, strict=True)))
    own = {
        name: _with_room(test.in_call)
        for name, test in fast.items()
        if any(part > most for part, most in zip(test.in_call, LIMIT, strict=True))
    }
    budgets = Budgets({name: _with_room(work) for name, work in folders.items()}, own)
    BUDGETS.write_text(budgets.written(), encoding="utf-8")


def _with_room(work: Work) -> Work:
    """A round number of units, so that the file does not change with every measurement."""
    return Work(-(-int(_ROOM * work.units) // 1000) * 1000, int(_ROOM * work.compilations + 0.99))


def _print_report(tests: Mapping[str, Measured], goals: list[Goal], slow: SlowTests, choice: Choice | None) -> None:
    fast = [name for name in tests if name not in slow]
    reached = 0
    for name in fast:
        reached |= tests[name].reached
    for goal in goals:
        print(f"{goal.name}: {goal.reached_share(reached):.2%} of {goal.elements.bit_count():,} that all tests reach")
    for tier, names in (("fast", fast), ("slow", [name for name in tests if name in slow])):
        functions = len({function_of(name) for name in names})
        seconds = seconds_of(tests, names)
        print(f"{tier}: {len(names):,} tests of {functions:,} functions, {seconds:.0f} s")
    if choice is not None:
        reasons = Counter(reason.partition(":")[0] for reason in choice.fast.values())
        for reason, count in reasons.most_common():
            names = [name for name, why in choice.fast.items() if why.partition(":")[0] == reason]
            print(f"  {reason}: {count:,} tests, {seconds_of(tests, names):.0f} s")
    for line in _by_folder(tests, slow):
        print(line)
    has_fast = {function_of(name) for name in fast}
    cheapest: dict[str, float] = {}
    for name, measured in tests.items():
        function = function_of(name)
        if function not in has_fast:
            cheapest[function] = min(measured.price, cheapest.get(function, measured.price))
    print(f"functions without a fast test: {len(cheapest)}; each with the seconds of its cheapest case")
    for function, seconds in sorted(cheapest.items(), key=lambda entry: -entry[1]):
        print(f"  {seconds:.2f}  {function}")


def _by_folder(tests: Mapping[str, Measured], slow: SlowTests) -> Iterator[str]:
    yield "folder: fast tests, functions, s | slow tests, functions, s"
    folders: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for name in tests:
        folders[folder_of(name)][name in slow].append(name)
    for folder, tiers in sorted(folders.items()):
        figures = [
            f"{len(names):,}, {len({function_of(name) for name in names})}, {seconds_of(tests, names):.1f}"
            for names in tiers
        ]
        yield f"  {folder}: {' | '.join(figures)}"


def main(arguments: list[str]) -> int:
    """Do what the arguments ask for."""
    options = _parser().parse_args(arguments)
    if options.move or options.back:
        LISTED.write_text(read().changed(options.move, options.back).text(), encoding="utf-8")
        return 0
    run = Run()
    for directory in options.directories:
        run.read(directory)
    if not run.tests:
        _parser().error("give the directories of measurements, or --move or --back with ids")
    tests, goals = _measured(run)
    choice = None
    slow = read()
    if not options.keep:
        plans = [name for name in tests if name.startswith(_PLANS)]
        wanted = Wanted(goals, needs_of(tests), [plans], options.small, options.longest, options.most_left_out)
        choice, wanted = choose_within(tests, wanted, function_of, options.seconds)
        print(f"fast is what takes {wanted.small:.3f} s, or {wanted.longest:.2f} s as the cheapest of its function")
        slow = SlowTests.of(tests.keys() - choice.fast.keys(), tests)
    _print_report(tests, goals, slow, choice)
    _write(run, slow)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.write_slow_tests", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("directories", nargs="*", type=Path, help="what runs with -p tests.measuring wrote")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="CPU seconds that the fast tests may take")
    parser.add_argument("--small", type=float, default=0.05, help="every test of so many seconds is fast")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of a test that is fast for its function")
    parser.add_argument("--most-left-out", type=int, default=260, help="functions that may have no fast test")
    parser.add_argument("--keep", action="store_true", help="keep the list; write budgets and print figures")
    parser.add_argument("--move", nargs="+", default=[], metavar="ID", help="make these tests slow")
    parser.add_argument("--back", nargs="+", default=[], metavar="ID", help="make these tests fast")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
