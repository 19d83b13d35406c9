# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Every score and gradient of ``linear_token_scores`` against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import linear_token_scores
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES
from tests.torch.functions.linear_token_scores.problem import EVERY, make_scores
from tests.torch.inputs import make_logits, make_targets

RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tempered, scaled": {"temperature": 0.75, "logit_scale": 0.625, "bias": True, "ignored": 3},
    "capped": {"logit_softcap": 2.5, "temperature": 1.5, "ignored": -100, "bias": True},
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_and_gradients(dtype: torch.dtype, recipe: str) -> None:
    problem = make_scores(2, 5, dtype=dtype, **RECIPES[recipe])
    problem.check(*problem.ours())


@pytest.mark.parametrize("upstream", [("logprob",), ("entropy",), ("lse",), ("logprob", "entropy"), ("entropy", "lse")])
def test_gradients_of_some_scores(upstream: tuple[str, ...]) -> None:
    problem = make_scores(6, upstream=upstream, ignored=3)
    problem.check(*problem.ours())


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "compute_dtype"),
    [
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float32, torch.bfloat16, torch.float16),
    ],
)
def test_operands_of_any_type(dtype: torch.dtype, weight_dtype: torch.dtype, compute_dtype: torch.dtype) -> None:
    problem = make_scores(6, dtype=dtype, weight_dtype=weight_dtype, bias=True, compute_dtype=compute_dtype)
    problem.check(*problem.ours())


def test_ignored_positions_have_scores_and_their_gradients() -> None:
    """And a log-probability of positive 0, whose upstream gradient is not looked at."""
    for dtype in DTYPES:
        leaves = make_scores(6, dtype=dtype).operands.leaves()
        scores = linear_token_scores(target=torch.full((6,), -100), **leaves, outputs=EVERY)
        assert torch.equal(scores.logprob.signbit(), torch.zeros(6, dtype=torch.bool))
        assert scores.logprob.eq(0.0).all()
        assert scores.entropy is not None and scores.entropy.gt(0.0).all()
        nan, one = torch.full((6,), torch.nan), torch.ones(6)
        results = torch.autograd.grad((scores.logprob, scores.entropy), list(leaves.values()), (nan, one))
        again = linear_token_scores(target=make_targets(6), **leaves).entropy
        assert again is not None
        assert all(
            torch.equal(*pair)
            for pair in zip(results, torch.autograd.grad(again.sum(), list(leaves.values())), strict=True)
        )


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_masked_class_adds_nothing(softcap: float | None) -> None:
    problem = make_scores(6, bias=True, logit_softcap=softcap)
    bias = problem.operands.linear_bias
    assert bias is not None
    bias[[1, 7]] = -torch.inf
    problem.operands.target[:] = 2
    scores, gradients = problem.ours()
    problem.check(scores, gradients)
    assert gradients["linear_bias"][[1, 7]].eq(0.0).all()


def test_the_first_of_equal_logits() -> None:
    w = make_logits(CLASSES, FEATURES, seed=1).round()
    w[5:9] = w[2]
    scores = linear_token_scores(w[[2, 3, 8]], w, make_targets(3), outputs=["argmax"])
    assert scores.argmax is not None and scores.argmax.tolist() == (w[[2, 3, 8]] @ w.t()).argmax(-1).tolist()
    assert scores.argmax[0] == 2


@pytest.mark.parametrize("names", [(), ("lse",), ("mean_logit", "argmax"), EVERY])
def test_what_is_not_asked_for_is_none(names: tuple[str, ...]) -> None:
    operands = make_scores(2, 3).operands
    every = linear_token_scores(operands.input, operands.linear_weight, operands.target, outputs=EVERY)
    some = linear_token_scores(operands.input, operands.linear_weight, operands.target, outputs=iter(names))
    for name, values in every._asdict().items():
        result = getattr(some, name)
        if name == "logprob" or name in names:
            assert values.shape == (2, 3) and torch.equal(result, values)
        else:
            assert result is None


def test_what_has_a_derivative() -> None:
    problem = make_scores(6)
    scores, _ = problem.ours()
    differentiable = {name for name, values in scores._asdict().items() if values.requires_grad}
    assert differentiable == {"logprob", "entropy", "lse"}


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)])
def test_few_positions_and_none(shape: tuple[int, ...]) -> None:
    x, w = make_logits(*shape, FEATURES), make_logits(CLASSES, FEATURES, seed=1).requires_grad_()
    target = make_targets(*shape)
    scores = linear_token_scores(x, w, target, outputs=EVERY)
    assert all(isinstance(values, Tensor) and values.shape == shape for values in scores)
    (gradient,) = torch.autograd.grad(scores.logprob.sum(), w)
    assert gradient.shape == w.shape and gradient.any() == bool(target.numel())
