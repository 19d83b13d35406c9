# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The oracle of the extended kernels against float64 autograd of PyTorch, and both generations of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nkilib.experimental.loss.cross_entropy.host.reference import (
    BackwardInputs,
    ExtendedLoss,
    extended_backward_reference,
    extended_forward_reference,
)
from nkilib.simulator import using

from ..extended_checks import Array, Launch, Upstream, check_backward, check_forward
from ..loss_inputs import BF16, FP32, normal_batch
from ..test_extended_accuracy import OPTIONS, options_of, probabilities, upstream_of, with_ignored

POSITIONS, VOCABULARY = 23, 50


def _torch_loss(z: Any, targets: Array, options: ExtendedLoss) -> Any:
    import torch
    import torch.nn.functional as F

    inputs = torch.from_numpy(targets)
    weight = None if options.class_weight is None else torch.from_numpy(options.class_weight).double()
    return F.cross_entropy(
        z, inputs.long() if inputs.ndim == 1 else inputs.double(), weight, label_smoothing=options.label_smoothing,
        reduction="none",
    )  # fmt: skip


@pytest.mark.parametrize("is_probable", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients_are_those_of_autograd(name: str, is_probable: bool) -> None:
    import torch

    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = probabilities(POSITIONS, VOCABULARY) if is_probable else with_ignored(targets)
    options, upstream = options_of(name, VOCABULARY), upstream_of(POSITIONS, "lse, logprob, entropy")
    x = torch.from_numpy(logits).double().requires_grad_()
    cap = options.logit_softcap
    z = (x if cap is None else cap * torch.tanh(x / cap)) / options.temperature
    lse = torch.logsumexp(z, dim=1)
    valid = torch.from_numpy(options.is_valid(targets))
    loss = _torch_loss(z, targets, options) + torch.where(valid, options.lse_square_scale * lse.square(), 0.0)
    total = (loss * torch.from_numpy(upstream.loss)).sum() + (lse * torch.from_numpy(upstream.lse)).sum()
    if not is_probable:
        index = torch.from_numpy(np.where(targets == -100, 0, targets)).long()
        logprob = torch.where(valid, z[torch.arange(POSITIONS), index] - lse, 0.0)
        total = total + (logprob * torch.from_numpy(upstream.logprob)).sum()
    entropy = lse - (torch.softmax(z, dim=1) * z).sum(dim=1)
    total = total + (entropy * torch.from_numpy(upstream.entropy)).sum()
    total.backward()

    result = extended_forward_reference(logits, targets, FP32, options)
    np.testing.assert_allclose(result.loss, loss.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.lse, lse.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(result.entropy, entropy.detach().numpy(), rtol=1e-12)
    of_logprob = None if is_probable else upstream.logprob
    inputs = BackwardInputs(result.lse, upstream.loss, upstream.lse, of_logprob, result.entropy, upstream.entropy)
    gradient = extended_backward_reference(logits, targets, FP32, options, inputs)
    assert x.grad is not None
    np.testing.assert_allclose(gradient, x.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_the_mean_of_torch_divides_by_the_position_weights() -> None:
    import torch
    import torch.nn.functional as F

    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = with_ignored(targets)
    options = options_of("weights, smoothing", VOCABULARY)
    results = check_forward(logits, targets, options, Launch(FP32))
    assert options.class_weight is not None
    expected = F.cross_entropy(
        torch.from_numpy(logits),
        torch.from_numpy(targets).long(),
        torch.from_numpy(options.class_weight),
        label_smoothing=options.label_smoothing,
    )
    assert results["loss"].sum() / results["position_weight"].sum() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("is_probable", [False, True])
@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
def test_trn3_too(dtype: Any, is_probable: bool) -> None:
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    targets = probabilities(POSITIONS, VOCABULARY) if is_probable else with_ignored(targets)
    options, launch = options_of("everything", VOCABULARY), Launch(dtype, 2, 8, 20)
    with using(target="trn3"):
        lse = check_forward(logits, targets, options, launch, with_argmax=True, with_entropy=True)["lse"]
        upstream = Upstream(np.ones(POSITIONS, np.float32))
        check_backward(logits, targets, lse, upstream, options, launch, inplace=True)


def test_bfloat16_may_be_stored_as_float32() -> None:
    """NKI_PRECISE_FP=0: nothing in the kernels reads the bits of a tile."""
    logits, targets = normal_batch(POSITIONS, VOCABULARY)
    logits = logits.astype(BF16).astype(np.float32)
    options, launch = options_of("everything", VOCABULARY), Launch(FP32, 2, 8, 20)
    with using(precise_fp=False):
        lse = check_forward(logits, with_ignored(targets), options, launch, with_argmax=True)["lse"]
        upstream = Upstream(np.ones(POSITIONS, np.float32))
        check_backward(logits, with_ignored(targets), lse, upstream, options, launch)
