# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every combination of PyTorch's arguments gives PyTorch's losses and gradients, in float64 on the same inputs."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nkilib.torch import linear_cross_entropy
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES, FORMS, POSITIONS, make_problem
from tests.torch.inputs import make_logits, make_probabilities, make_targets, make_weight
from tests.torch.of_pytorch import linear_only
from tests.torch.telling import assert_telling

REDUCTIONS = ["mean", "sum", "none"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradients(dtype: torch.dtype, reduction: str) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True, reduction=reduction)
    problem.check(problem.ours())


@pytest.mark.parametrize(("dtype", "reduction"), [(torch.float32, "sum"), (torch.bfloat16, "mean")])
def test_loss_and_gradients_of_one_launch(dtype: torch.dtype, reduction: str) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True, ignored=-100, reduction=reduction)
    problem.check(problem.ours(memory_limit=2**30))


@settings(deadline=None, max_examples=10, derandomize=True)
@given(
    shape=st.sampled_from([(), (1,), (6,), (2, 3)]),
    features=st.integers(16, 40),
    classes=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    bias=st.booleans(),
    weighted=st.booleans(),
    ignore_index=st.sampled_from([None, -100, 0, 7]),
    reduction=st.sampled_from(REDUCTIONS),
    label_smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    memory_limit=st.sampled_from(FORMS),
)
def test_random_calls(
    shape: tuple[int, ...],
    features: int,
    classes: int,
    ignore_index: int | None,
    memory_limit: int | None,
    **arguments: Any,
) -> None:
    ignored = -100 if ignore_index is None else ignore_index
    problem = make_problem(*shape, features=features, classes=classes, ignored=ignored, **arguments)
    result = problem.ours(ignore_index=ignore_index, memory_limit=memory_limit)
    expected = problem.with_arguments(ignore_index=ignored).exact()
    if expected.loss.isnan().any():  # a mean of nothing
        assert result.loss.isnan().all()
        assert not any(g is not None and g.any() for g in result.gradients.values())
        return
    # Few classes and few positions have results that are their own reverse, or 0.
    torch.testing.assert_close(result.loss.double(), expected.loss, rtol=1e-5, atol=1e-4 * len(problem.linear_weight))
    if problem.target.numel() > 3 and classes > 3:
        problem.check(result, expected)


@pytest.mark.parametrize("memory_limit", FORMS)
def test_leading_dimensions_and_narrow_targets(memory_limit: int | None) -> None:
    problem = make_problem(2, 3, ignored=-100, reduction="sum")
    expected = problem.exact()
    for dtype in (torch.int32, torch.int16, torch.int64):
        narrow = replace(problem, target=problem.target.to(dtype))
        narrow.check(narrow.ours(memory_limit=memory_limit), expected)


def test_reduction_none_keeps_the_positions_apart() -> None:
    problem = make_problem(2, 3, weighted=True, label_smoothing=0.1, ignored=-100, reduction="none")
    result = problem.ours()
    assert result.loss.shape == (2, 3)
    problem.check(result)


def test_operands_that_are_not_contiguous() -> None:
    problem = make_problem(POSITIONS)
    x, w = (tensor.t().contiguous().t().requires_grad_() for tensor in (problem.input, problem.linear_weight))
    assert not (x.is_contiguous() or w.is_contiguous())
    gradients = torch.autograd.grad(linear_cross_entropy(x, w, problem.target), (x, w), problem.upstream)
    for gradient, expected in zip(gradients, problem.ours().gradients.values(), strict=True):
        assert expected is not None and torch.equal(gradient, expected)


@linear_only
@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_no_position_and_nothing_that_counts(reduction: str, memory_limit: int | None) -> None:
    for problem in (make_problem(0), make_problem(4)):
        target = torch.full_like(problem.target, -100)
        x, w = problem.input.requires_grad_(), problem.linear_weight.requires_grad_()
        losses = [
            f(x, w, target, reduction=reduction, **own)
            for f, own in ((linear_cross_entropy, {"memory_limit": memory_limit}), (F.linear_cross_entropy, {}))
        ]
        torch.testing.assert_close(*losses, equal_nan=True)
        gradients = torch.autograd.grad(losses[0], (x, w))
        assert [g.shape for g in gradients] == [x.shape, w.shape] and not any(g.any() for g in gradients)


@pytest.mark.parametrize("memory_limit", FORMS)
def test_a_normalizer_replaces_the_divisor(memory_limit: int | None) -> None:
    problem = make_problem(POSITIONS, ignored=-100, reduction="sum")
    expected = problem.exact()
    mean = make_problem(POSITIONS, ignored=-100, reduction="mean")
    result = mean.ours(normalizer=torch.tensor(7), memory_limit=memory_limit)
    assert_telling(result.loss, expected.loss / 7.0, 0.0, 1e-5)
    for name in ("input", "linear_weight"):
        ours, exact = result.gradients[name], expected.gradients[name]
        assert ours is not None and exact is not None
        assert_telling(ours, exact / 7.0, 0.0, 1e-4)


def test_softcap_and_z_loss() -> None:
    problem = make_problem(POSITIONS, bias=True, ignored=-100)
    leaves = problem.leaves(torch.float64)
    z = 1.5 * torch.tanh(F.linear(**_named(leaves)) / 1.5)
    counts = (problem.target != -100).double()
    terms = F.cross_entropy(z, problem.target, reduction="none") + 0.1 * counts * z.logsumexp(1).square()
    exact = terms.sum() / counts.sum()
    gradients = torch.autograd.grad(exact, list(leaves.values()))
    for memory_limit in FORMS:
        ours = problem.leaves()
        loss = linear_cross_entropy(
            target=problem.target, **ours, logit_softcap=1.5, lse_square_scale=0.1, memory_limit=memory_limit
        )
        assert_telling(loss.detach(), exact.detach(), 0.0, 1e-5)
        for actual, expected in zip(torch.autograd.grad(loss, list(ours.values())), gradients, strict=True):
            assert_telling(actual, expected, 0.0, 1e-4)


def _named(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"input": leaves["input"], "weight": leaves["linear_weight"], "bias": leaves["linear_bias"]}


def test_outputs_and_their_derivatives() -> None:
    problem = make_problem(2, 3, bias=True, ignored=-100, weighted=True)
    leaves, exact = problem.leaves(), problem.leaves(torch.float64)
    outputs = linear_cross_entropy(
        target=problem.target, **leaves, weight=problem.arguments["weight"], lse_square_scale=0.1, return_outputs=True
    )
    z = F.linear(**_named(exact))
    counts = problem.target != -100
    lse, p = z.logsumexp(-1), z.softmax(-1)
    picked = z.gather(-1, problem.target.clamp(min=0)[..., None])[..., 0]
    logprob = torch.where(counts, picked - lse, 0.0)
    entropy = lse - (p * z).sum(-1)
    assert outputs.logprob is not None
    assert_telling(outputs.lse.detach(), lse.detach(), 0.0, 1e-5)
    assert_telling(outputs.logprob.detach(), logprob.detach(), 0.0, 1e-5)
    assert_telling(outputs.entropy.detach(), entropy.detach(), 0.0, 1e-5)
    assert torch.equal(outputs.argmax, z.argmax(-1))
    upstream = make_logits(3, 2, 3, seed=4)
    of_ours, of_theirs = (outputs.lse, outputs.logprob, outputs.entropy), (lse, logprob, entropy)
    ours = sum((values * gradient).sum() for values, gradient in zip(of_ours, upstream, strict=True))
    theirs = sum((values * gradient.double()).sum() for values, gradient in zip(of_theirs, upstream, strict=True))
    for actual, expected in zip(
        torch.autograd.grad(ours, list(leaves.values())),
        torch.autograd.grad(theirs, list(exact.values())),
        strict=True,
    ):
        assert_telling(actual, expected, 0.0, 1e-4)


@linear_only
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_class_probabilities_go_to_pytorch_with_a_warning(reduction: str) -> None:
    x, w = make_logits(2, 3, FEATURES), make_logits(CLASSES, FEATURES, seed=1)
    target = make_probabilities(2, 3, CLASSES, class_dim=-1)
    with pytest.warns(UserWarning, match="linear_cross_entropy: target has class probabilities; computed by linear"):
        loss = linear_cross_entropy(x, w, target, reduction=reduction, label_smoothing=0.1)
    flat = (x.flatten(0, 1), w, target.flatten(0, 1))
    expected = F.linear_cross_entropy(*flat, reduction=reduction, label_smoothing=0.1)
    assert torch.equal(loss, expected.reshape(loss.shape))
    assert loss.shape == ((2, 3) if reduction == "none" else ())


@linear_only
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_several_dimensions_go_to_pytorch_with_a_warning(reduction: str, soft: bool) -> None:
    x, w, b = make_logits(4, FEATURES), make_logits(CLASSES, 3, 2, FEATURES, seed=1), make_logits(CLASSES, 3, 2, seed=2)
    target = make_probabilities(4, CLASSES, 3, 2) if soft else make_targets(4, 3, 2, ignored=-100)
    arguments: dict[str, Any] = {"linear_bias": b, "weight": make_weight(), "reduction": reduction}
    with pytest.warns(UserWarning, match="linear_weight has 4 dimensions; computed by linear and cross_entropy"):
        loss = linear_cross_entropy(x, w, target if soft else target.int(), **arguments)
    assert torch.equal(loss, F.linear_cross_entropy(x, w, target, **arguments))


@linear_only
@pytest.mark.parametrize(("features", "classes"), [(8, CLASSES), (0, CLASSES), (FEATURES, 0)])
def test_sizes_that_no_kernel_takes_go_to_pytorch_with_a_warning(features: int, classes: int) -> None:
    x, w, target = make_logits(3, features), make_logits(classes, features, seed=1), torch.full((3,), -100)
    with pytest.warns(UserWarning, match="the kernels take"):
        loss = linear_cross_entropy(x, w, target, reduction="sum")
    assert torch.equal(loss, F.linear_cross_entropy(x, w, target, reduction="sum"))


@linear_only
def test_options_of_pytorch_have_no_effect() -> None:
    problem = make_problem(POSITIONS)
    options = torch.nn.LinearCrossEntropyOptions()
    assert torch.equal(problem.ours(options=options).loss, problem.ours().loss)


@linear_only
def test_the_signature_begins_with_that_of_pytorch() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (linear_cross_entropy, F.linear_cross_entropy))
    shared = [(entry.name, entry.kind, entry.default) for entry in ours.values()][: len(theirs)]
    assert shared == [(entry.name, entry.kind, entry.default) for entry in theirs.values()]
    assert all(item.kind is item.KEYWORD_ONLY for item in list(ours.values())[3:])
