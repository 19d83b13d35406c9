# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bounds of the margin of a target: their values at points that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss.multi_margin.host.reference import MultiMarginReference, hinge_errors, loss_bounds

U = 2.0**-23
MARGIN = 1.0
SCORES = np.array([[2.0, 3.0, -5.0]], np.float32)  # the first one is the target: hinges 2 and 0


@pytest.mark.parametrize("p", [1, 2])
def test_the_bound_of_a_loss(p: int) -> None:
    """A hinge h may be off by u (|m| + (|x_t| + h) / 2), its square by twice h times that and u / 2 of the square."""
    reference = MultiMarginReference.of(SCORES, np.zeros(1, np.int32), p=p, margin=MARGIN)
    of_hinges = 0.5 * U * (2.0 * MARGIN + 2.0 + np.array([0.0, 2.0, 0.0]))
    np.testing.assert_allclose(hinge_errors(SCORES, reference, MARGIN)[0], of_hinges, rtol=1e-12)
    of_terms = of_hinges
    if p == 2:
        of_terms = 2.0 * reference.hinges[0] * of_hinges + of_hinges**2 + 0.5 * U * reference.hinges[0] ** 2
    additions = 3 + 1 + 2  # of the row, of its chunks, and of the target's own term
    total = of_terms.sum() + 0.5 * U * additions * (2.0**p + MARGIN**p)
    expected = total / 3.0 + 2.0 * U * 2.0**p / 3.0
    np.testing.assert_allclose(loss_bounds(SCORES, reference, MARGIN), [expected], rtol=1e-12)
