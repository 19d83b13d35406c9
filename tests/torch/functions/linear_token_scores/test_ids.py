# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Several target ids of a position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import linear_token_scores
from tests.torch.formula import capped, entropy_of
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, make_problem
from tests.torch.inputs import make_logits, make_targets
from tests.torch.telling import assert_telling

POSITIONS = (2, 5)


def _upstream(ids: int) -> tuple[Tensor, ...]:
    return make_logits(*POSITIONS, ids, seed=7), make_logits(*POSITIONS, seed=8), make_logits(*POSITIONS, seed=9)


def _targets(ids: int) -> Tensor:
    """Some equal within a position, some ignored."""
    target = make_targets(*POSITIONS, ids)
    target[0, 1] = -100
    target[1, 2, 0] = -100
    target[1, 3] = 4
    return target


@pytest.mark.parametrize("ids", [1, 3, CLASSES])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.75, "logit_scale": 0.5, "logit_softcap": 4.0}])
def test_scores_and_gradients_are_those_of_float64(options: dict[str, Any], ids: int) -> None:
    problem, target = make_problem(*POSITIONS, bias=True), _targets(ids)
    leaves, exact = problem.leaves(), problem.leaves(torch.float64)
    scores = linear_token_scores(target=target, **leaves, outputs=("entropy", "lse"), **options)
    y = F.linear(exact["input"], exact["linear_weight"], exact["linear_bias"])
    z = capped(options.get("logit_scale", 1.0) * y, options.get("logit_softcap"), options.get("temperature", 1.0))
    chosen = z.log_softmax(-1).gather(-1, target.clamp(min=0))
    expected = torch.where(target == -100, 0.0, chosen), entropy_of(z), z.logsumexp(-1)
    results = scores.logprob, scores.entropy, scores.lse
    for actual, value in zip(results, expected, strict=True):
        assert actual is not None
        assert_telling(actual.detach(), value.detach(), 0.0, 2e-5)
    assert not scores.logprob[target == -100].signbit().any()
    of_logprob, *others = upstream = _upstream(ids)
    unseen = torch.where(target == -100, torch.nan, of_logprob)
    gradients = torch.autograd.grad(results, list(leaves.values()), (unseen, *others))  # type: ignore[arg-type]
    exact_gradients = torch.autograd.grad(expected, list(exact.values()), [gradient.double() for gradient in upstream])
    for actual, value in zip(gradients, exact_gradients, strict=True):
        assert_telling(actual, value, 0.0, 2e-5 * max(1.0, value.abs().max().item()))


def test_each_id_has_the_log_probability_that_it_has_alone() -> None:
    problem, target = make_problem(*POSITIONS), _targets(3)
    together = linear_token_scores(problem.input, problem.linear_weight, target).logprob
    for column in range(3):
        alone = linear_token_scores(problem.input, problem.linear_weight, target[..., column]).logprob
        torch.testing.assert_close(together[..., column], alone)


@pytest.mark.usefixtures("compile_afresh")
def test_a_full_graph_and_a_sum_of_the_gradient_of_the_weight() -> None:
    problem, target = make_problem(*POSITIONS), _targets(3)

    def total_of(x: Tensor, w: Tensor, summed: Tensor) -> Tensor:
        scores = linear_token_scores(x, w, target, grad_weight_sum=summed)
        return scores.logprob.square().sum()

    results = []
    for function in (total_of, torch.compile(total_of, backend="aot_eager", fullgraph=True)):
        (x, w), summed = problem.leaves().values(), torch.zeros_like(problem.linear_weight)
        total = function(x, w, summed)
        total.backward()
        assert w.grad is None and summed.any()
        results.append((total, x.grad, summed))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
