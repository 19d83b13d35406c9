# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Replays of kernels of every family are bitwise identical, on recorded and on other data."""

from __future__ import annotations

import functools
from collections import defaultdict
from contextlib import nullcontext
from typing import Final

import numpy as np
import pytest

from benchmarks.fuzz.kernels.checking import lowered_limits
from nkilib.experimental.loss import cross_entropy_forward
from nkilib.nki import nl
from tests.neuron.launches import PLAIN_FORWARD, TILING, Launch, launches
from tests.simulator.replay.both_ways import Report, both_ways, check_planned, compare

# Launches of each kernel that every run of the tests makes both ways, of those that tests/neuron makes on devices.
SAMPLED: Final = 2


@functools.cache
def _all() -> dict[str, Launch]:
    return launches()


def _sample() -> list[str]:
    """Some of each kernel: of different types and numbers of cores, spread over the options."""
    by_kernel: dict[str, list[str]] = defaultdict(list)
    for name, launch in _all().items():
        by_kernel[launch.kernel.__name__].append(name)
    chosen = []
    for number, names in enumerate(by_kernel.values()):
        step = max(1, len(names) // SAMPLED)
        # An odd distance, so that both numbers of cores come up.
        chosen += names[number % max(1, step) :: step | 1][:SAMPLED]
    return chosen


def _run(name: str, is_lowered: bool) -> Report:
    launch = _all()[name]
    with lowered_limits() if is_lowered else nullcontext():
        return both_ways(launch.kernel[launch.cores], **launch.arguments)


def test_the_sample_has_every_kernel_on_both_numbers_of_cores_in_both_types() -> None:
    sampled = _sample()
    assert {_all()[name].kernel.__name__ for name in sampled} == {item.kernel.__name__ for item in _all().values()}
    for part in (", bfloat16", ", float32", "1 core", "2 core"):
        assert sum(part in name for name in sampled) > len(sampled) // 4


def test_a_sample_of_all_launches_with_every_pass() -> None:
    """Every tile counts as large."""
    for name in _sample():
        check_planned(_run(name, is_lowered=True), name)


def test_a_launch_that_recomputes_rows() -> None:
    """It gathers what it kept for some of its rows, from a tensor that has room for more."""
    name = "shift, recomputed rows"
    arguments = {**TILING, "dtype": nl.float32, **PLAIN_FORWARD[name]}
    arguments["targets_hbm"] = np.zeros(len(arguments["logits_hbm"]), np.int32)
    check_planned(compare(cross_entropy_forward[1], (), arguments, data=("permuted data",)).check(), name)


@pytest.mark.sweep
@pytest.mark.parametrize("is_lowered", [False, True], ids=["as they are", "every tile large"])
@pytest.mark.parametrize("part", range(20))
def test_all_launches(part: int, is_lowered: bool) -> None:
    for name in sorted(_all())[part::20]:
        check_planned(_run(name, is_lowered), name)
