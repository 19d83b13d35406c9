# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bounds of the extended forward: what they say where a term vanishes, and terms worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.host.extended_bounds import extended_forward_bounds
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss

from ..loss_inputs import FP32

U = 2.0**-23
OPTIONS = ExtendedLoss(lse_square_scale=0.25)


def bounds_of(row: list[float], options: ExtendedLoss) -> dict[str, float]:
    """Return the bounds of one position, whose target is the first class."""
    logits, targets = np.array([row], np.float32), np.zeros(1, np.int32)
    results = extended_forward_bounds(logits, targets, FP32, options)
    return {name: float(values[0]) for name, values in results.items()}


@pytest.mark.parametrize("row", [[0.0], [0.0, -200.0]])
def test_a_log_sum_of_zero_has_a_bound_and_its_square_adds_nothing(row: list[float]) -> None:
    """A bound that is NaN refuses every result."""
    results, without = bounds_of(row, OPTIONS), bounds_of(row, replace(OPTIONS, lse_square_scale=0.0))
    assert np.isfinite(list(results.values())).all()
    assert results["loss"] == without["loss"] > 0.0


@pytest.mark.parametrize("logit", [-3.0, 0.5, 40.0])
def test_the_square_of_the_log_sum_adds_its_errors(logit: float) -> None:
    """scale lse^2: of each factor the error of lse, and four roundings of u each."""
    row = [logit, logit]
    lse = logit + np.log(2.0)
    results, without = bounds_of(row, OPTIONS), bounds_of(row, replace(OPTIONS, lse_square_scale=0.0))
    expected = 0.25 * abs(lse) * (2.0 * results["lse"] + 4.0 * U * abs(lse))
    assert results["loss"] - without["loss"] == pytest.approx(expected, rel=1e-6)
