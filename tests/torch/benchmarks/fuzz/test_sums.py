# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bound on a float32 sum holds in any order, and is reached up to a few units by the worst one."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fuzz.families.common import sum_error, summed

_NUMBERS = 20_000


def _one_by_one(values: np.ndarray) -> float:
    return float(np.cumsum(values, dtype=np.float32)[-1])


@pytest.mark.parametrize("order", ["as they are", "falling", "rising"])
def test_the_bound_holds_in_any_order(order: str) -> None:
    values = np.random.default_rng(3).random(_NUMBERS).astype(np.float32)
    ordered = {"as they are": values, "falling": np.sort(values)[::-1], "rising": np.sort(values)}[order]
    exact, error = summed(ordered.astype(np.float64), np.zeros(_NUMBERS))
    assert exact == pytest.approx(values.astype(np.float64).sum())
    assert abs(_one_by_one(ordered) - exact) <= error


def test_a_sum_one_by_one_may_come_near_the_bound() -> None:
    """Each addition of slightly more than half a unit of the sum rounds up by nearly half of a unit."""
    small = np.float32(2.0**-24 * (1.0 + 2.0**-20))
    values = np.concatenate([[np.float32(1.0)], np.full(1000, small)]).astype(np.float32)
    exact, error = summed(values.astype(np.float64), np.zeros(len(values)))
    off = abs(_one_by_one(values) - exact)
    assert 0.9 * error <= off <= error


def test_one_number_is_no_sum() -> None:
    assert sum_error(1) == sum_error(0) == 0.0 < sum_error(2)
