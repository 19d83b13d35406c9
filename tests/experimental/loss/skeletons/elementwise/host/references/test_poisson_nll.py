# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Poisson's likelihood: what Stirling's estimate adds to the error, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.core.host.exact import Derived
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.poisson_nll import PoissonReference


def losses(full: bool, log_input: bool, target: list[float]) -> Derived:
    """Derive the losses of inputs of a quarter."""
    tensors = {"input": np.full(len(target), 0.25), "target": np.array(target)}
    return PoissonReference(log_input, full).value(tensors)


@pytest.mark.parametrize("log_input", [False, True])
def test_a_target_of_at_most_one_has_no_estimate(log_input: bool) -> None:
    """Only the sum with 0, which rounds nothing but is counted."""
    target = [0.0, 0.5, 1.0]
    plain, full = losses(False, log_input, target), losses(True, log_input, target)
    np.testing.assert_array_equal(full.value, plain.value)
    np.testing.assert_array_equal(full.largest, plain.largest)
    np.testing.assert_allclose(full.own, plain.own + 0.5 * UNIT * np.abs(plain.value), rtol=1e-14)
    np.testing.assert_array_equal(full.functions["log"], plain.functions.get("log", np.zeros(3)))


@pytest.mark.parametrize("log_input", [False, True])
def test_the_estimate_adds_the_errors_of_its_terms(log_input: bool) -> None:
    """S = (t + 1/2) log t is off by 3 u / 2; c, S + c, the estimate and the loss round once; u S more for u of log."""
    plain, full = losses(False, log_input, [4.0]), losses(True, log_input, [4.0])
    product, constant = 4.5 * np.log(4.0), 0.5 * np.log(2.0 * np.pi)
    estimate = product + constant - 4.0
    assert full.value[0] == pytest.approx(plain.value[0] + estimate, rel=1e-14)
    terms = 3.0 * product + constant + (product + constant) + estimate + abs(full.value[0])
    assert full.own[0] - plain.own[0] == pytest.approx(0.5 * UNIT * terms, rel=1e-12)
    of_log = plain.functions["log"][0] if "log" in plain.functions else 0.0
    assert full.functions["log"][0] - of_log == pytest.approx(UNIT * product, rel=1e-12)
