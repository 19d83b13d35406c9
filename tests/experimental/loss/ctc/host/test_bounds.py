"""The bounds of CTC: their values at points that can be worked out by hand."""

from __future__ import annotations

import numpy as np

from nkilib.experimental.loss.ctc.host.bounds import ctc_loss_bound
from nkilib.experimental.loss.ctc.host.reference import CtcLosses

U = 2.0**-23


def test_every_step_and_the_end_cost_two_units_of_the_logarithm() -> None:
    """A step for each time, one sum more at the end; logarithms are as large as the loss and 20."""
    found = CtcLosses(np.array([5.0, np.inf, 0.0]), np.zeros((7, 3, 2)))
    bound = ctc_loss_bound(found, np.array([7, 7, 1]), np.array([2, 2, 1]), "none", np.float32)
    rounded = 0.5 * U * 5.0 + 2.0**-126
    expected = [2.0 * U * 8 * 25.0 + rounded, 2.0**-126, 2.0 * U * 2 * 20.0 + 2.0**-126]
    np.testing.assert_allclose(bound, expected, rtol=1e-12)


def test_a_sum_adds_the_errors_of_its_losses_and_of_its_additions() -> None:
    found = CtcLosses(np.array([5.0, 3.0]), np.zeros((7, 2, 2)))
    bound = ctc_loss_bound(found, np.array([7, 4]), np.array([2, 1]), "sum")
    additions = 32 * (1 + 2) + 4  # two losses, then 128 partitions, 32 numbers at a time
    expected = 2.0 * U * (8 * 25.0 + 5 * 23.0) + additions * 0.5 * U * 8.0
    np.testing.assert_allclose(bound, [expected], rtol=1e-9)
