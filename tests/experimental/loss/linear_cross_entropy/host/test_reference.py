# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reference against float64 autograd of PyTorch, and its bounds: values worked out by hand, kept by plain
arithmetic.

Wrong results do not keep the bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nkilib.experimental.loss.linear.reference as reference
from nkilib.experimental.loss.cross_entropy.bounds import error_over_bound
from nkilib.experimental.loss.cross_entropy.reference import BackwardInputs, ExtendedLoss
from nkilib.experimental.loss.linear.reference import LinearGradients, logit_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.bounds import linear_forward_bounds, linear_gradients_and_bounds
from nkilib.experimental.loss.linear_cross_entropy.host.reference import (
    LinearProblem,
    gradient_of_logits,
    linear_backward_reference,
    linear_forward_reference,
)

from ..linear_inputs import (
    BF16,
    FP16,
    FP32,
    OPTIONS,
    PROBLEMS,
    Array,
    Sizes,
    in_layout,
    problem_of,
    upstream_of,
    with_options,
)

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


def _ratios(linear_gradients: LinearGradients, problem: LinearProblem, upstream: BackwardInputs) -> list[float]:
    exact, bounds = linear_gradients_and_bounds(problem, upstream)
    return [float(error_over_bound(*item).max()) for item in zip(linear_gradients, exact, bounds, strict=True)]


def _rounded(problem: LinearProblem, upstream: BackwardInputs) -> LinearGradients:
    """Compute gradients as a kernel does: G and the results are rounded to the dtype, sums are in float32.

    The gradient of a bias of another type than 16-bit products is a sum of G before it is rounded.
    """
    dtype, weight = problem.input.dtype, problem.classes_first.astype(np.float32)
    exact = gradient_of_logits(problem, upstream, slice(0, len(problem.input)), problem.classes_first)
    power = 2.0 ** np.floor(-np.log2(np.abs(upstream.grad_loss).max(initial=1e-30)) + 8) if dtype == FP16 else 1.0
    g = (exact * power).astype(dtype).astype(np.float32) / np.float32(power)
    has_other_type = problem.bias is not None and problem.bias.dtype != dtype
    of_bias = (exact.astype(np.float32) if has_other_type else g).sum(axis=0)
    return LinearGradients((g @ weight).astype(dtype), (g.T @ problem.input.astype(np.float32)).astype(dtype), of_bias)


def test_a_logit_is_off_by_its_additions() -> None:
    problem = LinearProblem(np.full((1, 256), 2.0, BF16), np.full((3, 256), 0.5, BF16), np.zeros(1, np.int32))
    bounds = logit_bounds(problem.layer, slice(0, 1), problem.classes_first)
    np.testing.assert_allclose(bounds, (2 + 128) * 2.0**-24 * 256.0)


@pytest.mark.parametrize("kind", [name for name in PROBLEMS if name != "all ignored"])
def test_float32_logits_keep_the_bounds_of_the_forward(kind: str) -> None:
    problem = problem_of(kind, Sizes(64, 512, 300))
    z = problem.input.astype(np.float32) @ problem.classes_first.astype(np.float32).T
    z = z if problem.bias is None else z + problem.bias
    exact, bounds = linear_forward_reference(problem), linear_forward_bounds(problem)
    maximum = z.max(axis=1)
    log_sum = np.log(np.exp(z - maximum[:, np.newaxis]).sum(axis=1))
    counts = problem.targets != -100
    at_target = z[np.arange(len(z)), np.where(counts, problem.targets, 0)]
    loss = np.where(counts, log_sum + (maximum - at_target), 0.0).astype(np.float32)
    for name, array in (("loss", loss), ("lse", maximum + log_sum)):
        assert error_over_bound(array, getattr(exact, name), bounds[name]).max() <= 1.0, name
        assert error_over_bound(array * np.float32(1.001), getattr(exact, name), bounds[name]).max() > 1.0, name


@pytest.mark.parametrize("kind", [name for name in PROBLEMS if name != "all ignored"])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
def test_rounded_gradients_keep_the_bounds_and_wrong_ones_do_not(
    dtype: np.dtype[ml_dtypes.bfloat16], kind: str
) -> None:
    problem = problem_of(kind, Sizes(64, 64, 64, dtype))
    lse = linear_forward_reference(problem).lse.astype(np.float32)
    upstream = upstream_of(problem, lse)
    results = _rounded(problem, upstream)
    assert max(_ratios(results, problem, upstream)) <= 1.0
    for wrong in (
        LinearGradients(*(0 * result for result in results)),
        LinearGradients(*(-result for result in results)),
        LinearGradients(results.input.T, results.weight.T, results.bias[::-1]),
    ):
        assert min(_ratios(wrong, problem, upstream)) > 1.0


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_with_options_keep_the_bounds(name: str) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(40, 64, 90)), name)
    lse = linear_forward_reference(problem).lse.astype(np.float32)
    upstream = upstream_of(problem, lse, further=True)
    assert max(_ratios(_rounded(problem, upstream), problem, upstream)) <= 1.0


def test_bfloat16_is_allowed_its_rounding_and_little_more() -> None:
    """The norms are compared: a sum grants every term its rounding, and those of both signs cancel in the sum."""
    problem = problem_of("normal", Sizes(64, 512, 300))
    upstream = upstream_of(problem, linear_forward_reference(problem).lse)
    exact, bounds = linear_gradients_and_bounds(problem, upstream)
    assert np.linalg.norm(bounds.weight) / np.linalg.norm(exact.weight) < 16 * 2.0**-8


@pytest.mark.parametrize("classes", [slice(None), slice(100, 210)], ids=["all", "shard"])
@pytest.mark.parametrize("layout", ["vd", "dv"])
def test_gradients_beside_bounds_are_those_of_the_reference_to_the_bit(layout: str, classes: slice) -> None:
    problem = with_options(problem_of("30% ignored", Sizes(70, 40, 300, BF16), layout=layout), "all")
    upstream = upstream_of(problem, linear_forward_reference(problem).lse.astype(np.float32), further=True)
    exact, bounds = linear_gradients_and_bounds(problem, upstream, classes)
    for value, bound, other in zip(exact, bounds, linear_backward_reference(problem, upstream, classes), strict=True):
        assert value.shape == bound.shape
        np.testing.assert_array_equal(value, other)
