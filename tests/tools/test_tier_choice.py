# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The fast tier has what it needs, reaches what it shall, and is cheap, in this order; but time wins."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from tools.tier_choice import Goal, Measured, Wanted, choose, choose_within, covering


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
