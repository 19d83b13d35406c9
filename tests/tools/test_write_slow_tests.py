# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Measurements of several processes and runs are put together, and a list and budgets come of them."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.simulated_work import Work
from tests.slow_list import SlowTests
from tests.tiers import Budgets
from tools import write_slow_tests
from tools.tier_choice import Goal, Measured, Wanted, choose, choose_within, covering, seconds_of
from tools.write_slow_tests import Elements, Run, main, needs_of

SOURCE = """\
def sign(
    x,
):
    if x < 0:
        return -1
    return 1
"""
# From line to line, as coverage.py says it: -1 is outside.
IMPORTED, NEGATIVE, POSITIVE = [(-1, 1), (1, -1)], [(-1, 4), (4, 5), (5, -1)], [(-1, 4), (4, 6), (6, -1)]
FILE = "nkilib/sign.py"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of one file, without a list and budgets."""
    pytest.importorskip("coverage")
    (tmp_path / "nkilib").mkdir()
    (tmp_path / FILE).write_text(SOURCE)
    monkeypatch.setattr(write_slow_tests, "_ROOT", tmp_path)
    monkeypatch.setattr(write_slow_tests, "LISTED", tmp_path / "slow.txt")
    monkeypatch.setattr(write_slow_tests, "BUDGETS", tmp_path / "budgets.json")
    write_slow_tests._source.cache_clear()
    return tmp_path


def measure(directory: Path, process: str, arcs: list[tuple[int, int]] | None, *tests: dict[str, Any]) -> None:
    """Write a file as tests/measuring.py does; ``reached`` of a test has arcs."""
    directory.mkdir(exist_ok=True)
    lines = []
    for test in tests:
        line = {"setup": 0.0, "work": [0, 0], "in_call": [0, 0], "outcome": "passed", **test}
        reached = line.pop("reached", [])
        if arcs is not None:
            line["reached"] = f"{sum(1 << arcs.index(arc) for arc in reached):x}"
        lines.append(line)
    if arcs is not None:
        lines.append({"arcs": [(FILE, *arc) for arc in arcs]})
    with gzip.open(directory / f"{process}.jsonl.gz", "wt") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in lines))


def test_measurements_of_processes_and_runs_are_put_together(checkout: Path) -> None:
    reach, cost, again = (checkout / name for name in ("reach", "cost", "again"))
    forward = IMPORTED + NEGATIVE + POSITIVE[1:]
    measure(reach, "gw0", forward, {"test": "", "reached": IMPORTED}, {"test": "a", "seconds": 9, "reached": NEGATIVE})
    measure(reach, "gw1", forward[::-1], {"test": "b", "seconds": 8, "reached": POSITIVE})
    measure(cost, "main", None, {"test": "a", "seconds": 1.5, "work": [7, 1], "in_call": [7, 0]})
    measure(again, "main", None, {"test": "a", "seconds": 1.0, "work": [5, 0], "in_call": [5, 1]})
    run = Run()
    for directory in (reach, cost, again):
        run.read(directory)
    a, b = run.tests["a"], run.tests["b"]
    assert (a.cost, b.cost) == (1.0, 8)  # the last; and what was measured with reach if there is nothing else
    assert (a.work, a.in_call) == (Work(5, 0), Work(7, 1))
    arcs = {number: arc[1:] for arc, number in run.arcs.items()}
    for bits, reached in ((run.by_imports, IMPORTED), (a.arcs, NEGATIVE), (b.arcs, POSITIVE)):
        assert sorted(arcs[number] for number in arcs if bits >> number & 1) == sorted(reached)


def test_lines_and_branches_are_those_of_coverage(checkout: Path) -> None:
    """Lines 2 and 3 are of the statement of line 1; only line 4 has two ways out."""
    arcs = {(FILE, *arc): number for number, arc in enumerate(dict.fromkeys(IMPORTED + NEGATIVE + POSITIVE))}
    elements = Elements.of(arcs)
    lines, branches = elements.goals()
    assert (elements.lines, elements.branches) == (4, 2)
    bits = lambda reached: sum(1 << arcs[FILE, arc[0], arc[1]] for arc in set(reached))  # noqa: E731
    negative = elements.reached(bits(NEGATIVE))
    assert (lines.reached_share(negative), branches.reached_share(negative)) == (2 / 4, 1 / 2)
    assert elements.reached(bits(IMPORTED + NEGATIVE + POSITIVE)) == lines.elements | branches.elements
    assert elements.reached(0) == 0


def test_a_list_and_budgets_are_written(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reach, cost = checkout / "reach", checkout / "cost"
    arcs = IMPORTED + NEGATIVE + POSITIVE[1:]
    names = [f"tests/t.py::test_{name}" for name in ("cheap", "of_cases[1]", "of_cases[2]", "dear")]
    seconds = [0.01, 0.2, 0.3, 2.0]
    reached = [NEGATIVE, NEGATIVE, POSITIVE, NEGATIVE]
    tests = [
        {"test": name, "seconds": cost, "reached": arcs, "work": [2_000, 1], "in_call": [2_000 * (cost == 0.01), 0]}
        for name, cost, arcs in zip(names, seconds, reached, strict=True)
    ]
    tests[1]["in_call"] = [9_000, 0]
    measure(reach, "main", arcs, {"test": "", "reached": IMPORTED}, *tests)
    measure(cost, "main", None, *tests)
    assert main([str(cost), str(reach)]) == 0
    assert SlowTests.parsed((checkout / "slow.txt").read_text()).text().splitlines()[2:] == [
        "tests/t.py",
        "  test_dear",
    ]
    printed = capsys.readouterr().out
    assert "lines: 100.00% of 4 that all tests reach" in printed and "branches: 100.00% of 2" in printed
    assert "fast: 3 tests of 2 functions, 1 s" in printed and "slow: 1 tests of 1 functions, 2 s" in printed
    assert "  2.00  tests/t.py::test_dear" in printed
    budgets = Budgets.read(checkout / "budgets.json")
    assert budgets == Budgets({"tests": Work(8_000, 4)}, {"tests/t.py::test_of_cases[1]": Work(12_000, 0)})


def test_what_a_file_shares_is_paid_once_whichever_test_makes_it(checkout: Path) -> None:
    arcs = IMPORTED + NEGATIVE + POSITIVE[1:]
    names = [f"tests/t.py::test_{number}" for number in range(4)]
    first, second = checkout / "first", checkout / "second"
    measure(
        first, "reach", arcs, {"test": "", "reached": IMPORTED}, *({"test": name, "seconds": 9.0} for name in names)
    )
    costs = [{"test": name, "seconds": 0.01} for name in names]
    measure(first, "main", None, {**costs[0], "seconds": 8.01, "setup": 8.0}, *costs[1:])
    measure(second, "main", None, {**costs[1], "seconds": 7.01, "setup": 7.0}, *costs[2:])
    run = Run()
    run.read(first)
    run.read(second)
    tests, _ = write_slow_tests._measured(run)
    assert [tests[name].seconds for name in names] == pytest.approx([0.01] * 4)
    assert [tests[name].share for name in names] == pytest.approx([2.0] * 4)
    assert seconds_of(tests, names[:1]) == pytest.approx(8.01)
    assert seconds_of(tests, names) == pytest.approx(8.04)


def test_a_directory_without_measurements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"must have files of `-p tests.measuring --measure`, and has none"):
        main([str(tmp_path)])


def test_moving_needs_no_measurement(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.slow_list.LISTED", checkout / "slow.txt")
    assert main(["--move", "tests/t.py::test_a[1]", "tests/t.py::test_b"]) == 0
    assert main(["--back", "tests/t.py::test_b"]) == 0
    assert (checkout / "slow.txt").read_text().splitlines()[2:] == ["tests/t.py", "  test_a[1]"]


def test_what_the_fast_tier_needs_is_found_by_the_names_of_tests() -> None:
    launch = "mse_loss forward, none, float32, 2 core(s)"
    needed = {
        "tests/neuron/test_kernels.py::test_results_are_those_of_the_simulator_bit_for_bit": launch,
        "tests/torch/benchmarks/test_fuzz_results.py::test_results_and_gradients_are_within_their_bounds": "mse_loss-2",
        "tests/torch/functions/cross_entropy/test_compile.py::test_a_full_graph_gives_equal_results": "a",
        "tests/torch/test_trainer_ranks.py::test_loss_and_gradient_of_a_sharded_vocabulary": "a",
        "tests/tutorials/test_tutorials.py::test_what_a_page_shows_is_what_is_printed": "a_page",
    }
    tests = [f"{function}[{case}]" for function, case in needed.items()]
    for function in needed:
        file, _, name = function.partition("::")
        source = (Path(__file__).resolve().parents[2] / file).read_text(encoding="utf-8")
        assert f"\ndef {name}(" in source, f"{function} has another name: tell tools/write_slow_tests.py"
    assert sorted(needs_of(tests).values()) == sorted([test] for test in tests)


def function_of(test: str) -> str:
    return test.partition("[")[0]


TESTS = {
    "cheap[1]": Measured(0.01, 0b0001),
    "cheap[2]": Measured(0.02, 0b0001),
    "middling[1]": Measured(0.4, 0b0011),
    "middling[2]": Measured(0.3, 0b0001),
    "dear[1]": Measured(5.0, 0b1000),
    "dear[2]": Measured(3.0, 0b0100),
}


def test_what_is_cheap_and_the_cheapest_of_each_function_but_the_dear_are_fast() -> None:
    choice = choose(TESTS, Wanted(), function_of)
    assert choice.fast == {
        "cheap[1]": "cheap",
        "cheap[2]": "cheap",
        "middling[2]": "the cheapest of its function",
    }
    assert choice.left_out == {"dear": 3.0} and choice.reached == 0b0001


def test_at_most_so_many_functions_are_left_out_the_dearest_first() -> None:
    tests = {"a": Measured(4.0), "b": Measured(3.0), "c": Measured(2.0)}
    choice = choose(tests, Wanted(most_left_out=2), function_of)
    assert choice.left_out == {"a": 4.0, "b": 3.0} and list(choice.fast) == ["c"]


def test_one_of_what_is_needed_is_fast_whatever_it_costs() -> None:
    choice = choose(TESTS, Wanted(needs={"ranks": ["dear[1]", "dear[2]"], "no test": []}), function_of)
    assert choice.fast["dear[2]"] == "ranks" and "dear[1]" not in choice.fast


@pytest.mark.parametrize(("share", "added"), [(0.5, ["middling[1]"]), (0.7, ["middling[1]", "dear[2]"]), (0.25, [])])
def test_tests_are_added_until_a_share_is_reached_the_best_for_their_cost_first(share: float, added: list[str]) -> None:
    goal = Goal("lines", 0b1111, share)
    choice = choose(TESTS, Wanted([goal]), function_of)
    assert list(choice.fast)[3:] == added
    assert goal.missing(choice.reached) == 0 and goal.reached_share(choice.reached) >= share


def test_time_wins_over_a_share() -> None:
    goal = Goal("lines", 0b1111, 1.0)
    assert "dear[1]" in choose(TESTS, Wanted([goal]), function_of, inf).fast
    assert "dear[1]" not in choose(TESTS, Wanted([goal]), function_of, 4.0).fast


def test_a_cover_reaches_what_all_reach_and_repeats_nothing() -> None:
    tests = {"all but one": Measured(1.0, 0b0111), "one": Measured(1.0, 0b1000), "again": Measured(9.0, 0b1111)}
    assert list(covering(tests, tests, 0b1111)) == ["all but one", "one"]
    assert list(covering(tests, [], 0b1111)) == []
    choice = choose(tests, Wanted(covers=[["one", "again"]], small=0.0, longest=0.0), function_of)
    assert choice.fast.keys() == {"one", "again"}  # the cheaper for what it reaches, then what it lacks


def test_the_limits_of_cheap_tests_go_down_until_all_take_so_many_seconds() -> None:
    tests = {f"f[{number}]": Measured(0.01 * number) for number in range(1, 6)}
    choice, wanted = choose_within(tests, Wanted(), function_of, 0.07)
    assert choice.seconds(tests) == pytest.approx(0.06) and 0.03 <= wanted.small < 0.04
    choice, wanted = choose_within(tests, Wanted(), function_of, 1.0)
    assert len(choice.fast) == 5 and wanted == Wanted()


def test_tests_that_share_what_is_dear_are_fast_only_where_they_are_needed() -> None:
    tests = {f"a.py::test_{name}": Measured(0.01, 1, "a.py", 4.0) for name in "abcd"}
    tests["b.py::test_e"] = Measured(0.01, 1, "b.py", 2.0)
    wanted = Wanted(small=5.0)
    assert set(choose(tests, wanted, str).fast) == {"b.py::test_e"}
    assert set(choose(tests, replace(wanted, shared=20.0), str).fast) == set(tests)
    needed = replace(wanted, needs={"it": ["a.py::test_c"]})
    assert set(choose(tests, needed, str).fast) == {"a.py::test_c", "b.py::test_e"}
