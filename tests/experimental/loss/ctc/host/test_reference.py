# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reference of CTC is PyTorch's in float64: losses, and the gradient.

The bounds of CTC: their values at points that can be worked out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest

from nkilib.experimental.loss.ctc.host.reference import (
    CtcLosses,
    ctc_loss_bound,
    ctc_loss_gradient_reference,
    ctc_loss_reference,
    reduced,
    reduction_factors,
)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_and_gradients(reduction: str) -> None:
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(3)
    log_probs = torch.randn(15, 4, 5, generator=generator, dtype=torch.float64).log_softmax(2).requires_grad_()
    targets = torch.tensor([[1, 1, 2, 3], [4, 3, 4, 3], [2, 2, 2, 2], [1, 2, 3, 4]])
    lengths = torch.tensor([15, 12, 5, 9]), torch.tensor([4, 3, 4, 0])  # the third has too few steps
    expected = F.ctc_loss(log_probs, targets, *lengths, reduction=reduction, zero_infinity=True)
    upstream = torch.linspace(-1.0, 2.0, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    expected.backward(upstream)
    inputs, of_targets = log_probs.detach().numpy(), lengths[1].numpy()
    result = ctc_loss_reference(inputs, targets.numpy(), lengths[0].numpy(), of_targets)
    assert np.isinf(result.losses).tolist() == [False, False, True, False]
    losses = reduced(result.losses, of_targets, reduction, zero_infinity=True)
    np.testing.assert_allclose(losses, expected.detach().numpy().reshape(-1), rtol=1e-12)
    factors = reduction_factors(of_targets, reduction) * upstream.numpy().reshape(-1)
    gradient = ctc_loss_gradient_reference(inputs, result, lengths[0].numpy(), factors, zero_infinity=True)
    np.testing.assert_allclose(gradient, log_probs.grad, atol=1e-12)


U = 2.0**-23


def test_every_step_and_the_end_cost_two_units_of_the_logarithm() -> None:
    """A step for each time, one sum more at the end; logarithms are as large as the loss and 20."""
    result = CtcLosses(np.array([5.0, np.inf, 0.0]), np.zeros((7, 3, 2)))
    bound = ctc_loss_bound(result, np.array([7, 7, 1]), np.array([2, 2, 1]), "none", np.float32)
    rounded = 0.5 * U * 5.0 + 2.0**-126
    expected = [2.0 * U * 8 * 25.0 + rounded, 2.0**-126, 2.0 * U * 2 * 20.0 + 2.0**-126]
    np.testing.assert_allclose(bound, expected, rtol=1e-12)


def test_a_sum_adds_the_errors_of_its_losses_and_of_its_additions() -> None:
    result = CtcLosses(np.array([5.0, 3.0]), np.zeros((7, 2, 2)))
    bound = ctc_loss_bound(result, np.array([7, 4]), np.array([2, 1]), "sum")
    additions = 32 * (1 + 2) + 4  # two losses, then 128 partitions, 32 numbers at a time
    expected = 2.0 * U * (8 * 25.0 + 5 * 23.0) + additions * 0.5 * U * 8.0
    np.testing.assert_allclose(bound, [expected], rtol=1e-9)
