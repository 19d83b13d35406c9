# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replays of launches with blocks of rows, some of them of PyTorch's functions, are bitwise identical."""

from __future__ import annotations

import pytest

from tests.simulator.replay.both_ways import both_ways, check_planned
from tests.torch.replay.larger_launches import Larger, large, middle


@pytest.mark.parametrize("case", tuple(middle()), ids=lambda case: case.name)
def test_launches_with_blocks_of_rows(case: Larger) -> None:
    for launch in case.launches():
        check_planned(both_ways(launch.kernel, *launch.args, **launch.kwargs), case.name)


@pytest.mark.sweep
@pytest.mark.parametrize("case", tuple(large()), ids=lambda case: case.name)
def test_launches_of_the_benchmarks(case: Larger) -> None:
    for launch in case.launches():
        check_planned(both_ways(launch.kernel, *launch.args, **launch.kwargs), case.name)
