# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reference against float64 autograd of PyTorch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nkilib.experimental.loss.linear.host.reference as reference
from nkilib.experimental.loss.cross_entropy.host.reference import ExtendedLoss
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    linear_backward_reference,
    linear_forward_reference,
)

from ..linear_inputs import FP32, OPTIONS, Array, Sizes, in_layout, problem_of, upstream_of, with_options

SIZES = Sizes(23, 20, 50, FP32)


def _tensor(values: Array) -> Any:
    import torch

    return torch.from_numpy(values.astype(np.float64)).requires_grad_()


def _losses(problem: LinearProblem, z: Any) -> Any:
    import torch
    import torch.nn.functional as F

    options, lse = problem.options, torch.logsumexp(z, dim=1)
    weight = None if options.class_weight is None else torch.from_numpy(options.class_weight).double()
    smoothing = options.label_smoothing
    targets = torch.from_numpy(problem.targets).long()
    loss = F.cross_entropy(z, targets, weight, label_smoothing=smoothing, reduction="none")
    return loss + torch.where(targets != -100, options.lse_square_scale * lse.square(), 0.0), lse


@pytest.mark.parametrize("layout", ["vd", "dv"])
@pytest.mark.parametrize("name", OPTIONS)
def test_losses_and_gradients_are_those_of_autograd(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    import torch.nn.functional as F

    monkeypatch.setattr(reference, "_BLOCK_ELEMENTS", 5 * SIZES.classes)  # several blocks of rows, the last one short
    problem = in_layout(with_options(problem_of("30% ignored", SIZES), name), layout)
    x, w = _tensor(problem.input), _tensor(problem.weight)
    b = _tensor(np.zeros(SIZES.classes) if problem.bias is None else problem.bias)
    z = F.linear(x, w if layout == "vd" else w.t(), b)
    cap = problem.options.logit_softcap
    z = z if cap is None else cap * torch.tanh(z / cap)
    loss, lse = _losses(problem, z)
    result = linear_forward_reference(problem)
    np.testing.assert_allclose(result.loss, loss.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(result.lse, lse.detach().numpy(), rtol=1e-12)

    upstream = upstream_of(problem, result.lse, further=True)
    assert upstream.grad_lse is not None and upstream.grad_logprob is not None
    targets = torch.from_numpy(np.where(problem.targets == -100, 0, problem.targets)).long()
    logprob = torch.where(torch.from_numpy(problem.targets) != -100, z[torch.arange(len(z)), targets] - lse, 0.0)
    total = sum(
        (value * torch.from_numpy(gradient)).sum()
        for value, gradient in ((loss, upstream.grad_loss), (lse, upstream.grad_lse), (logprob, upstream.grad_logprob))
    )
    total.backward()  # type: ignore[union-attr]
    gradients = linear_backward_reference(problem, upstream)
    for gradient, tensor in zip(gradients, (x, w, b), strict=True):
        np.testing.assert_allclose(gradient, tensor.grad.numpy(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("cap", [None, 2.0])
def test_scale_and_temperature_are_those_of_the_logits(cap: float | None) -> None:
    """z = softcap(s y, c) / T, its scores beside torch's, and a gradient."""
    import torch
    import torch.nn.functional as F

    problem = problem_of("masked classes", SIZES)
    problem = replace(problem, logit_scale=0.4, options=ExtendedLoss(logit_softcap=cap, temperature=0.3))
    assert problem.bias is not None
    x = _tensor(problem.input)
    y = 0.4 * F.linear(x, torch.from_numpy(problem.classes_first), torch.from_numpy(problem.bias).double())
    masked = torch.isinf(y)
    z = torch.where(masked, y, y if cap is None else cap * torch.tanh(y / cap)) / 0.3
    loss, lse = _losses(problem, z)
    result = linear_forward_reference(problem)
    np.testing.assert_allclose(result.loss, loss.detach().numpy(), rtol=1e-12, atol=1e-12)
    log_p = F.log_softmax(z, dim=1)
    squares = torch.logsumexp(2.0 * log_p, dim=1).detach().numpy()
    np.testing.assert_allclose(result.log_sum_squares, squares, rtol=1e-12, atol=1e-12)
    means = torch.where(masked, 0.0, z).sum(dim=1) / (~masked).sum(dim=1)
    np.testing.assert_allclose(result.mean_logit, means.detach().numpy(), rtol=1e-12, atol=1e-12)
    upstream = upstream_of(problem, lse.detach().numpy())
    loss.backward(torch.from_numpy(upstream.grad_loss).double())
    gradients = linear_backward_reference(problem, upstream)
    np.testing.assert_allclose(gradients.input, x.grad.numpy(), rtol=1e-10, atol=1e-13)


def test_products_of_a_small_layer_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read-only, and another problem over the same layer has them too; a large layer keeps none."""
    problem = problem_of("masked classes", SIZES)
    weight, rows = problem.classes_first, slice(0, SIZES.positions)
    for name in ("logits_of", "magnitudes_of"):
        product = getattr(problem.layer, name)(slice(None), weight)
        assert getattr(problem.with_targets(problem.targets[::-1]).layer, name)(rows, weight) is product
        with pytest.raises(ValueError, match="read-only"):
            product += 1.0
    monkeypatch.setattr(reference, "_KEPT_ELEMENTS", 0)
    large = replace(problem)
    assert large.logits_of(rows, weight) is not large.logits_of(rows, weight)
    np.testing.assert_array_equal(large.logits_of(rows, weight), problem.logits_of(rows, weight))
