# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`benchmarks.linear_table`: every row has a goal, and what is missed is shown as that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import _display, linear_table
from benchmarks.linear_table import PUBLISHED, Forms, Launch, Row, launches, main

SMALL = Launch(256, 512, 4096, "forward", 9.0)


def test_goals_are_those_of_their_sizes() -> None:
    goals = {
        (row.direction, row.positions, row.features): row.goal
        for row in launches()
        if (row.dtype, row.layout) == ("bf16", "vd") and not row.options and not row.one_queue
    }
    assert goals["forward", 2048, 1024] == goals["forward", 4096, 8192] == 1.02
    assert (goals["forward", 1024, 4096], goals["forward", 512, 4096], goals["forward", 4096, 512]) == (1.03, 1.1, 1.1)
    assert [goals["backward", positions, 4096] for positions in (4096, 1024, 512)] == [1.04, 1.06, 1.1]
    assert [goals["backward", positions, 1024] for positions in (4096, 1024, 512)] == [1.06, 1.07, 1.2]
    assert goals["forward", 16384, 4096] == goals["backward", 16384, 4096] == 1.08
    names = [(row.direction, row.positions, row.features, row.vocabulary, row.notes) for row in launches()]
    assert len(names) == len(set(names))


def test_a_row_is_met_by_its_time_and_its_program() -> None:
    profiled = SMALL.profile()
    row = Row(SMALL, profiled, SMALL.program())
    assert row.is_met and row.program > 100
    assert not replace(row, launch=replace(SMALL, goal=0.9)).is_met
    assert not replace(row, program=30_001).is_met


def test_one_launch_is_compared_with_two() -> None:
    forms = Forms(256, 512, 8192)
    assert 0.5 < forms.ratio < 1.2
    two, one = forms.mebibytes
    assert two == 8 * 256 * 512 / 2**20 and one == two + 4 * 256 * 8192 / 2**20
    assert (forms.positions, forms.features, forms.vocabulary) != PUBLISHED


def test_nothing_is_shown_where_nothing_models(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_display, "SIMULATED", False)
    assert main(()) == 2
    assert capsys.readouterr().out.strip() == _display.NOT_SIMULATED


@pytest.mark.parametrize(("goal", "status", "met"), [(9.0, 0, "Goals met: 2 of 2."), (0.9, 1, "Goals met: 1 of 2.")])
def test_a_missed_goal_is_an_exit_code(
    goal: float, status: int, met: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear_table, "launches", lambda: iter([replace(SMALL, goal=goal)]))
    monkeypatch.setattr(linear_table, "ONE_LAUNCH_SHAPES", [(256, 512, 8192)])
    monkeypatch.setattr(linear_table, "OF_TWO_LAUNCHES", 1.2)
    assert main(()) == status
    printed = capsys.readouterr().out
    assert met in printed and ("missed" in printed) == bool(status) and "not measured" in printed
