# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The fixed inputs: the same on every machine."""

from __future__ import annotations

import numpy as np

from nkilib.verify.kernels import inputs


def test_numbers_are_normal_and_stay_the_same() -> None:
    result = inputs.numbers(1, 400, 50)
    assert result.dtype == np.float32
    assert abs(result.mean()) < 0.03 and abs(result.std() - 1) < 0.03
    np.testing.assert_allclose(result[0, :3], [1.40881, -0.7287203, -1.7992525], rtol=1e-5)
    assert (inputs.numbers(1, 50) == result.ravel()[:50]).all()
    assert (inputs.numbers(2, 50) != result.ravel()[:50]).any()


def test_classes_are_in_range_and_spread() -> None:
    result = inputs.targets(1000, 10)
    assert result.dtype == np.int32
    assert sorted(set(result.tolist())) == list(range(10))


def test_probabilities_add_up() -> None:
    np.testing.assert_allclose(inputs.probabilities(7, 30).sum(axis=1), 1, rtol=1e-6)


def test_confident_rows_are_there() -> None:
    """Every seventh row has p close to 1 at its target, where digits of a loss are lost most easily."""
    logits, targets = inputs.logits(15, 100, "float32").astype(float), inputs.targets(15, 100)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    at_target = p[np.arange(15), targets]
    assert (at_target[::7] > 0.999).all() and (at_target[1:7] < 0.999).all()
