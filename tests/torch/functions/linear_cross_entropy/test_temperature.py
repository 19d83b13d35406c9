# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Temperature and scale of the logits, in every form of the loss, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LinearCrossEntropyLoss, linear_cross_entropy, vocab_parallel_linear_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.formula import formula
from tests.torch.functions.linear_cross_entropy.problem import (
    CLASSES,
    FEATURES,
    FORMS,
    POSITIONS,
    Results,
    make_problem,
)

TEMPERATURE, SCALE = 0.75, 0.625


def exact_results(problem: Any, softcap: float | None) -> Results:
    """The loss of scaled, capped and tempered logits, and its gradients."""
    leaves = problem.leaves(torch.float64)
    logits = SCALE * F.linear(leaves["input"], leaves["linear_weight"], leaves.get("linear_bias"))
    loss = formula(logits, problem.target, softcap, 0.01, temperature=TEMPERATURE)
    loss.backward(problem.upstream.double())
    return Results(loss.detach(), {name: leaf.grad for name, leaf in leaves.items()})


@pytest.mark.parametrize("memory_limit", FORMS)
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loss_and_gradients_are_those_of_float64(
    dtype: torch.dtype, softcap: float | None, memory_limit: int | None
) -> None:
    problem = make_problem(POSITIONS, dtype=dtype, bias=True)
    result = problem.ours(
        temperature=TEMPERATURE,
        logit_scale=SCALE,
        logit_softcap=softcap,
        lse_square_scale=0.01,
        memory_limit=memory_limit,
    )
    problem.check(result, exact_results(problem, softcap))


def test_shards_of_the_vocabulary_have_both() -> None:
    problem = make_problem(POSITIONS, bias=True)
    options = {"temperature": TEMPERATURE, "logit_scale": SCALE, "logit_softcap": 2.5}
    expected, leaves = problem.ours(**options), problem.leaves()
    with two_ranks():
        loss = vocab_parallel_linear_cross_entropy(target=problem.target, **leaves, shard_sizes=[CLASSES, 0], **options)
        loss.backward(problem.upstream)
    torch.testing.assert_close(loss.detach(), expected.loss)
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, expected.gradients[name])


def test_the_module_has_both() -> None:
    problem = make_problem(POSITIONS)
    module = LinearCrossEntropyLoss(FEATURES, CLASSES, temperature=TEMPERATURE, logit_scale=SCALE)
    expected = linear_cross_entropy(
        problem.input, module.linear.weight, problem.target, temperature=TEMPERATURE, logit_scale=SCALE
    )
    assert torch.equal(module(problem.input, problem.target), expected)


@pytest.mark.usefixtures("compile_afresh")
def test_a_graph_takes_another_temperature() -> None:
    """The compiler makes a symbol of the second temperature."""
    problem = make_problem(POSITIONS)
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    for value in (0.5, 0.8):
        inputs: tuple[Tensor, ...] = (problem.input, problem.linear_weight, problem.target)
        expected = linear_cross_entropy(*inputs, temperature=value, logit_scale=value)
        assert torch.equal(compiled(*inputs, temperature=value, logit_scale=value), expected)


@pytest.mark.parametrize("name", ["temperature", "logit_scale"])
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (0.0, ValueError, "must be a number from 1e-06 to 1000000.0, got 0.0; pass 1.0 for none"),
        (-1.0, ValueError, "must be a number from"),
        (float("nan"), ValueError, "must be a number from"),
        (True, TypeError, "must be float, not bool"),
        (torch.tensor(0.5, requires_grad=True), TypeError, r"must be float, not Tensor; pass \w+\.item\(\)"),
    ],
)
def test_what_is_no_temperature_and_no_scale(name: str, value: Any, error: type[Exception], message: str) -> None:
    problem = make_problem(POSITIONS)
    with pytest.raises(error, match=f"linear_cross_entropy: .*{name}'? {message}"):
        linear_cross_entropy(problem.input, problem.linear_weight, problem.target, **{name: value})


def test_pytorchs_own_operators_have_neither() -> None:
    x, w, target = torch.randn(4, 8), torch.randn(5, 8), torch.tensor([1, 2, 0, 2])
    with pytest.raises(NotImplementedError, match="temperature is not supported where there are 8 features"):
        linear_cross_entropy(x, w, target, temperature=0.5)
