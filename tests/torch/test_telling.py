# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Comparisons that fail say what was compared and by how much it differs."""

from __future__ import annotations

import pytest
import torch

from tests.torch.telling import assert_gradient, assert_loss, assert_telling, assert_within

EXACT = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)


def test_a_result_that_is_right() -> None:
    assert_loss(EXACT.float(), EXACT, 4.0)
    assert_gradient(EXACT.bfloat16(), EXACT, 4.0)
    assert_within(EXACT.float(), EXACT, EXACT * 0.01)


def test_a_value_that_is_off() -> None:
    expected = (
        r"result of the kernels \(actual\) .* reference \(expected\):\n(.*\n)+Greatest absolute difference: 0\.5 "
    )
    with pytest.raises(AssertionError, match=expected):
        assert_loss(EXACT.float() + 0.5, EXACT, 4.0)
    with pytest.raises(AssertionError, match="off by 50 of the bound"):
        assert_within(EXACT.float() + 0.5, EXACT, torch.full_like(EXACT, 0.01))


def test_another_type_or_shape() -> None:
    with pytest.raises(AssertionError, match=r"the loss must be torch\.float32, got torch\.float64"):
        assert_loss(EXACT, EXACT, 4.0)
    with pytest.raises(
        AssertionError, match=r"the result must have the shape of the .* reference, \(3,\), got \(1, 3\)"
    ):
        assert_gradient(EXACT.float()[None], EXACT, 4.0)
    with pytest.raises(AssertionError, match=r"the bound must have the shape of .*, \(3,\), got \(\)"):
        assert_within(EXACT.float(), EXACT, torch.tensor(0.01))


def test_a_tolerance_that_tells_nothing() -> None:
    with pytest.raises(AssertionError, match="the comparison accepts a result that is reversed"):
        assert_telling(EXACT.float(), EXACT, 0.0, 3.5)
