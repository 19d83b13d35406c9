# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The margin between ranks: the derivative where the loss begins."""

from __future__ import annotations

import numpy as np

from nkilib.experimental.loss.margin_ranking import MarginRankingReference


def test_a_loss_of_exactly_nothing_has_the_derivative_of_those_above() -> None:
    """PyTorch has it too, where t (x1 - x2) is the margin."""
    tensors = {"input1": np.array([1.0, 2.0]), "input2": np.array([0.5, 0.5]), "target": np.array([1.0, 1.0])}
    derivatives = MarginRankingReference(0.5).derivative(tensors)
    np.testing.assert_array_equal(derivatives["input1"].value, [-1.0, 0.0])
    np.testing.assert_array_equal(derivatives["input2"].value, [1.0, 0.0])
    np.testing.assert_array_equal(derivatives["target"].value, [-0.5, 0.0])
