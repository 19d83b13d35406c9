# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""`BusyTimes`: work goes into the earliest hours that are free, in pieces if need be."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from nkilib.simulator.timing.busy_times import BusyTimes


def test_work_follows_work() -> None:
    engine = BusyTimes()
    assert engine.add(10.0, 5.0) == 15.0
    assert engine.add(0.0, 3.0) == 3.0  # before it there was time
    assert engine.add(12.0, 5.0) == 20.0
    assert engine.total_ns == 13.0


def test_work_is_cut_where_a_gap_is_too_short() -> None:
    """Busy from 10 to 20 and 25 to 30: nine hours from 5 on are 5 to 10 and 20 to 24."""
    engine = BusyTimes()
    engine.add(10.0, 10.0)
    engine.add(25.0, 5.0)
    assert engine.add(5.0, 9.0) == 24.0
    assert engine.add(0.0, 7.0) == 31.0  # 0 to 5, 24 to 25, 30 to 31


def test_no_work_is_done_at_once() -> None:
    engine = BusyTimes()
    engine.add(0.0, 10.0)
    assert engine.add(4.0, 0.0) == 4.0


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=30))
def test_every_hour_is_given_once_and_none_before_its_time(jobs: list[tuple[int, int]]) -> None:
    """The result is compared with a list of hours, each free or taken."""
    engine, free = BusyTimes(), [True] * 400
    for earliest, duration in jobs:
        hours = [hour for hour in range(earliest, len(free)) if free[hour]][:duration]
        for hour in hours:
            free[hour] = False
        expected = hours[-1] + 1 if hours else earliest
        assert engine.add(float(earliest), float(duration)) == expected
    assert engine.total_ns == sum(duration for _, duration in jobs)
