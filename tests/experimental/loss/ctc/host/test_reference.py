"""The truth of CTC is PyTorch's in float64: losses, and the gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from nkilib.experimental.loss.ctc.host.reference import (
    ctc_loss_gradient_reference,
    ctc_loss_reference,
    reduced,
    reduction_factors,
)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_losses_and_gradients(reduction: str) -> None:
    generator = torch.Generator().manual_seed(3)
    log_probs = torch.randn(15, 4, 5, generator=generator, dtype=torch.float64).log_softmax(2).requires_grad_()
    targets = torch.tensor([[1, 1, 2, 3], [4, 3, 4, 3], [2, 2, 2, 2], [1, 2, 3, 4]])
    lengths = torch.tensor([15, 12, 5, 9]), torch.tensor([4, 3, 4, 0])  # the third has too few steps
    expected = F.ctc_loss(log_probs, targets, *lengths, reduction=reduction, zero_infinity=True)
    upstream = torch.linspace(-1.0, 2.0, expected.numel(), dtype=torch.float64).reshape(expected.shape)
    expected.backward(upstream)
    given, of_targets = log_probs.detach().numpy(), lengths[1].numpy()
    found = ctc_loss_reference(given, targets.numpy(), lengths[0].numpy(), of_targets)
    assert np.isinf(found.losses).tolist() == [False, False, True, False]
    losses = reduced(found.losses, of_targets, reduction, zero_infinity=True)
    np.testing.assert_allclose(losses, expected.detach().numpy().reshape(-1), rtol=1e-12)
    factors = reduction_factors(of_targets, reduction) * upstream.numpy().reshape(-1)
    gradient = ctc_loss_gradient_reference(given, found, lengths[0].numpy(), factors, zero_infinity=True)
    np.testing.assert_allclose(gradient, log_probs.grad, atol=1e-12)
