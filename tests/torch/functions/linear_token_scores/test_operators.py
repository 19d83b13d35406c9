# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The custom operators: PyTorch's own checks of a registration, derivatives, schemas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch.functions.linear_token_scores.operators import ScoreResults, ShardScores
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS, make_problem
from tests.torch.inputs import make_logits, make_targets

ops = torch.ops.nkilib

RECIPE: dict[str, Any] = {"ignore_index": 3, "logit_softcap": 5.0, "temperature": 0.75, "logit_scale": 0.5}
OPTIONS = {**RECIPE, "compute_dtype": "bfloat16"}
EVERY_RESULT = {f"with_{name}": True for name in ("argmax", "entropy", "log_sum_squares", "mean_logit")}


def _operands(requires_grad: bool = False) -> tuple[Any, ...]:
    problem = make_problem(POSITIONS, bias=True, ignored=3)
    x, w = (tensor.requires_grad_(requires_grad) for tensor in (problem.input, problem.linear_weight))
    assert problem.linear_bias is not None
    return x, w, problem.target, problem.linear_bias.requires_grad_(requires_grad)


def test_opcheck_of_both_directions() -> None:
    options = OPTIONS
    forward = ops.linear_token_scores_forward
    torch.library.opcheck(forward.default, _operands(requires_grad=True), {**options, **EVERY_RESULT})
    x, w, target, bias = _operands()
    results = ScoreResults(*forward(x, w, target, bias, **options, **EVERY_RESULT))
    of_logprob, of_lse, of_entropy = make_logits(3, POSITIONS, seed=5)
    inputs = (x, w, target, results.maximum, results.log_sum, of_logprob, of_lse, bias)
    of_entropies = (results.entropy, of_entropy)
    wanted = {"grad_input_wanted": False}
    torch.library.opcheck(ops.linear_token_scores_backward.default, (*inputs, *of_entropies), {**options, **wanted})
    adding = (*inputs, torch.zeros(CLASSES, FEATURES), *of_entropies)
    torch.library.opcheck(ops.linear_token_scores_backward_adding.default, adding, options)


@pytest.mark.parametrize("shape", [(POSITIONS,), (POSITIONS, 3)])
def test_opcheck_of_a_shard(shape: tuple[int, ...]) -> None:
    shard = {"first_class": 2, "num_classes": CLASSES + 9}
    x, w, _, bias = _operands()
    target = make_targets(*shape, classes=CLASSES + 9)
    statistics = ops.linear_token_scores_shard_statistics
    torch.library.opcheck(statistics.default, (x, w, target, bias), {**shard, **EVERY_RESULT})
    assert ShardScores(*statistics(x, w, target, bias, **shard)).target_logit.shape == shape
    maximum, log_sum, of_lse, entropy, of_entropy = make_logits(5, POSITIONS, seed=5)
    inputs = (x, w, target, maximum, log_sum, make_logits(*shape, seed=6), of_lse, bias)
    backward = ops.linear_token_scores_shard_backward
    torch.library.opcheck(backward.default, (*inputs, entropy, of_entropy), shard)
    adding = (*inputs, torch.zeros(CLASSES, FEATURES), entropy, of_entropy)
    torch.library.opcheck(ops.linear_token_scores_shard_backward_adding.default, adding, shard)


@pytest.mark.parametrize("options", [{}, RECIPE])
def test_gradcheck_of_the_differentiable_results(options: dict[str, Any]) -> None:
    """A step of 2^-6 in float32: the difference of two scores keeps 2^-17 of them, and the curvature costs 2^-12."""
    problem = make_problem(3, features=16, classes=5, bias=True)
    leaves = tuple(leaf.detach().requires_grad_() for leaf in problem.leaves().values())

    def forward(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        results = ops.linear_token_scores_forward(x, w, problem.target, bias, **options, with_entropy=True)
        named = ScoreResults(*results)
        return named.logprob, named.lse, named.entropy

    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(forward, leaves, eps=2.0**-6, atol=4e-3, rtol=4e-3, fast_mode=True)


def test_results_have_the_names_of_the_operators() -> None:
    from nkilib.torch.functions.linear_token_scores.operators import FORWARD, SHARD_STATISTICS

    assert ScoreResults._fields == tuple(output.name for output in FORWARD.outputs)
    assert ShardScores._fields == tuple(output.name for output in SHARD_STATISTICS.outputs)


INPUTS = ("Tensor input", "Tensor linear_weight", "Tensor target")
GIVEN = ("Tensor maximum", "Tensor log_sum")
OPTIONAL = ("Tensor? grad_logprob", "Tensor? grad_lse", "Tensor? linear_bias")
TEMPERATURES = "Tensor? temperatures=None"
AT_END = ("Tensor? entropy=None", "Tensor? grad_entropy=None", TEMPERATURES)
SCHEMAS: dict[str, tuple[tuple[str, ...], int]] = {
    "forward": ((*INPUTS, "Tensor? linear_bias=None", "Tensor? grad_weight_sum=None", TEMPERATURES), 8),
    "backward": ((*INPUTS, *GIVEN, *(f"{item}=None" for item in OPTIONAL), *AT_END), 3),
    "backward_adding": ((*INPUTS, *GIVEN, *OPTIONAL, "Tensor(a!) grad_weight_sum", *AT_END), 2),
    "shard_statistics": ((*INPUTS, "Tensor? linear_bias=None", TEMPERATURES), 7),
    "shard_backward": ((*INPUTS, *GIVEN, *(f"{item}=None" for item in OPTIONAL), *AT_END), 3),
    "shard_backward_adding": ((*INPUTS, *GIVEN, *OPTIONAL, "Tensor(a!) grad_weight_sum", *AT_END), 2),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_public(name: str) -> None:
    """Saved graphs name them: further options may follow, with defaults, and nothing else may change."""
    schema = str(getattr(ops, f"linear_token_scores_{name}").default._schema)
    inputs, returned = schema.removeprefix(f"nkilib::linear_token_scores_{name}(").split(") -> ")
    positional, results = SCHEMAS[name]
    assert tuple(inputs.split(", *, ")[0].split(", ")) == positional
    assert returned.count("Tensor") == results
