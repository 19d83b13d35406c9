# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The list of slow tests names tests that exist, and a fast test or folder that does too much fails and says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nkilib.simulator
from nkilib.nki import nisa, nki, nl
from tests.fresh_python import with_checkout
from tests.simulated_work import UNITS_PER_LAUNCH, UNITS_PER_PROCESS, UNITS_PER_PROGRAM, Work, work_so_far
from tests.slow_list import SlowTests
from tests.tiers import LIMIT, UNLISTED, Budgets, folder_of

LIST = """\
# A comment.
tests/a/test_a.py
  test_of_one_case[x y]
  test_of_which_most *
    ![2]
  test_without_cases
tests/b/test_b.py
  test_b
"""


def test_every_test_that_is_listed_as_slow_exists(request: pytest.FixtureRequest) -> None:
    unlisted = request.config.stash.get(UNLISTED, None)
    if unlisted is None:
        pytest.skip("only a run of the whole suite with all packages collects every test")
    assert not unlisted, "tests/slow.txt must name tests that exist: take these out, or write the list anew"


def test_a_list_has_single_tests_and_functions_but_some_cases() -> None:
    slow = SlowTests.parsed(LIST)
    file = "tests/a/test_a.py::"
    listed = [f"{file}test_of_one_case[x y]", f"{file}test_of_which_most[1]", f"{file}test_without_cases"]
    assert all(test in slow for test in listed)
    others = [f"{file}test_of_one_case[z]", f"{file}test_of_which_most[2]", "tests/b/test_b.py::test_of_one_case[x y]"]
    assert not any(test in slow for test in others)
    assert slow.text().partition("tests/")[2] == LIST.partition("tests/")[2]


def test_what_a_list_names_and_is_not_there() -> None:
    there = ["tests/a/test_a.py::test_of_which_most[3]", "tests/b/test_b.py::test_b"]
    assert SlowTests.parsed(LIST).not_among(there) == [
        "tests/a/test_a.py::test_of_one_case[x y]",
        "tests/a/test_a.py::test_of_which_most[2]",
        "tests/a/test_a.py::test_without_cases",
    ]


def test_a_list_is_short_and_keeps_what_is_slow() -> None:
    tests = [f"t.py::test_many[{number}]" for number in range(9)] + ["t.py::test_two[a]", "t.py::test_two[b]"]
    slow = {*tests[:7], tests[-1]}
    found = SlowTests.of(slow, tests)
    assert {test for test in tests if test in found} == slow
    assert found.text().splitlines()[-5:] == ["t.py", "  test_many *", "    ![7]", "    ![8]", "  test_two[b]"]


def test_tests_move_from_tier_to_tier() -> None:
    slow = SlowTests.parsed(LIST)
    one, of_most = "tests/a/test_a.py::test_new[1]", "tests/a/test_a.py::test_of_which_most[2]"
    moved = slow.changed([one, of_most], [])
    assert one in moved and of_most in moved and one not in slow
    assert moved.changed([], [one, of_most]).text() == slow.text()


def test_budgets_are_of_folders_and_of_tests_that_may_do_more() -> None:
    budgets = Budgets({"tests/a": Work(100_000, 1)}, {"tests/a/t.py::test_dear": Work(50_000, 0)})
    assert budgets.why_too_much("tests/a/t.py::test_new", LIMIT) == ""
    assert budgets.why_too_much("tests/a/t.py::test_dear", Work(50_000, 0)) == ""
    reason = budgets.why_too_much("tests/a/t.py::test_new", Work(9_000, 0))
    assert "may do 8,000 units of simulated work and 4 compilations, and this one did 9,000 units" in reason
    assert reason.endswith("python -m tools.write_slow_tests --move 'tests/a/t.py::test_new'")
    assert "5 compilations" in budgets.why_too_much("tests/a/t.py::test_new", Work(1, 5))
    assert budgets.exceeded({"tests/a": Work(100_000, 1), "tests/new": Work(80_000, 8)}) == []
    (line,) = budgets.exceeded({"tests/a": Work(100_000, 2), "tests/new": Work(1, 1)})
    assert line.startswith("tests/a: the fast tests of this folder may do 100,000 units") and "budgets.json" in line


def test_budgets_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "budgets.json"
    assert Budgets.read(file) is None
    budgets = Budgets({"tests/b": Work(2, 0), "tests/a": Work(1, 0)}, {"tests/a/t.py::test[é]": Work(3, 1)})
    file.write_text(budgets.written())
    assert Budgets.read(file) == budgets


@pytest.mark.parametrize(
    ("test", "folder"),
    [
        ("tests/test_tiers.py::test", "tests"),
        ("tests/torch/functions/cross_entropy/test_figures.py::test[a/b]", "tests/torch/functions"),
    ],
)
def test_the_folder_of_a_test_is_at_most_three_levels_deep(test: str, folder: str) -> None:
    assert folder_of(test) == folder


@nki.jit
def _copied(source):
    tile = nl.ndarray(source.shape, source.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source)
    result = nl.ndarray(source.shape, source.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=tile)
    return result


@pytest.mark.parametrize("cores", [1, 2])
def test_a_replayed_launch_counts_as_one_that_runs(cores: int) -> None:
    """Otherwise what a test does would depend on the tests before it."""
    source = np.ones((100, 20), np.float32)
    counts = []
    replayed = nkilib.simulator.replay_counts().total.replayed
    with nkilib.simulator.using(replay="always"):
        for _ in range(6):
            before = work_so_far()
            nki.simulate(_copied[cores])(source)
            counts.append(work_so_far().since(before).units)
    assert nkilib.simulator.replay_counts().total.replayed > replayed
    expected = cores * (UNITS_PER_LAUNCH + source.size // 100 + 2)
    assert counts[0] == counts[-1] == expected


def test_a_process_has_a_price() -> None:
    before = work_so_far()
    subprocess.run([sys.executable, "-c", ""], env=with_checkout(), check=True)
    assert work_so_far().since(before) == Work(UNITS_PER_PROCESS, 0)
    before = work_so_far()
    subprocess.run(["git", "--version"], env=with_checkout(), capture_output=True, check=True)
    assert work_so_far().since(before) == Work(UNITS_PER_PROGRAM, 0)


def test_compilations_count_from_where_torch_begins_anew() -> None:
    assert Work(5, 3).since(Work(1, 1)) == Work(4, 2)
    assert Work(5, 3).since(Work(5, 7)) == Work(0, 3)


CONFTEST = """\
import pytest
from tests import slow_list, tiers

slow_list.LISTED = tiers.Path(__file__).with_name("slow.txt")
tiers.BUDGETS = tiers.Path(__file__).with_name("budgets.json")


def pytest_addoption(parser):
    parser.addoption("--outcomes")


def pytest_configure(config):
    plugin = tiers.Tiers(config)
    plugin._budgets = tiers.Budgets.read(tiers.BUDGETS)
    config.pluginmanager.register(plugin, "tiers")
"""
TESTS = """\
import pytest
from tests import simulated_work


@pytest.mark.parametrize("units", [1, 8_000, 8_001])
def test_work(units):
    simulated_work._add(units)


def test_listed():
    simulated_work._add(1_000_000)


def test_that_fails():
    assert False
"""


def test_a_run_leaves_slow_tests_out_and_fails_what_does_too_much(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "slow.txt").write_text("test_it.py\n  test_listed\n")
    (tmp_path / "budgets.json").write_text(Budgets({"": Work(16_001, 0)}, {}).written())
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers =\n  slow: slow\n  sweep: long\n")
    outcomes = tmp_path / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--outcomes={outcomes}"]
    done = subprocess.run(command, cwd=tmp_path, env=with_checkout(), capture_output=True, text=True, check=False)
    assert "2 failed, 2 passed, 1 deselected" in done.stdout, done.stdout + done.stderr
    assert "this one did 8,001 units of simulated work" in done.stdout
    assert "FAILED : the fast tests of this folder may do 16,001 units of simulated work" in done.stdout
    failed = '["test_it.py::test_work[8001]", "test_it.py::test_that_fails"]'
    assert outcomes.read_text() == f'{{"passed": 2, "slow": 1, "failed": {failed}}}'
