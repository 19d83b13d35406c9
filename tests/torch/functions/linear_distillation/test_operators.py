# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The custom operators: PyTorch's own checks of a registration, derivatives, schemas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch.functions.linear_distillation import operators
from nkilib.torch.functions.linear_distillation.operators import DistillationResults, MixtureSums, ShardResults
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, FEATURES, POSITIONS
from tests.torch.functions.linear_distillation.problem import make_distillation
from tests.torch.inputs import make_logits

ops = torch.ops.nkilib

OPTIONS: dict[str, Any] = {
    **{"beta": 0.5, "temperature": 0.75, "student_logit_scale": 0.5, "teacher_logit_softcap": 5.0},
    "compute_dtype": "bfloat16",
}
SHARD: dict[str, Any] = {"first_class": 2, "num_classes": CLASSES + 9}


def _operands(requires_grad: bool = False) -> tuple[tuple[Tensor, ...], Tensor, tuple[Tensor, ...], Tensor]:
    """Models, labels, biases and weights of positions."""
    problem = make_distillation(POSITIONS, bias=True, weighted=True, ignored=3)
    leaves = [tensor.clone().requires_grad_(requires_grad) for tensor in problem.leaves_of.values()]
    x, w, bias = leaves
    constants = problem.constants
    models = (x, w, constants["teacher_input"], constants["teacher_weight"])
    return models, problem.labels, (bias, constants["teacher_bias"]), constants["row_weight"]


def test_opcheck_of_both_directions() -> None:
    models, labels, biases, weights = _operands(requires_grad=True)
    of_labels = {**OPTIONS, "ignore_index": 3}
    forward = ops.linear_distillation_forward
    wanted = {"with_logprob": True, "memory_limit": 2**20}
    torch.library.opcheck(forward.default, (*models, labels, *biases, weights), {**of_labels, **wanted})
    models, labels, biases, weights = _operands()
    result = DistillationResults(*forward(*models, labels, *biases, weights, **of_labels, **wanted))
    of_loss, of_logprob = make_logits(2, POSITIONS, seed=5)
    inputs = (*models, *result[2:7], of_loss, labels, *biases, weights, of_logprob)
    frozen = {**of_labels, "grad_input_wanted": False}
    torch.library.opcheck(ops.linear_distillation_backward.default, inputs, frozen)
    adding = (*inputs, torch.zeros(CLASSES, FEATURES))
    torch.library.opcheck(ops.linear_distillation_backward_adding.default, adding, of_labels)


def test_opcheck_of_a_shard() -> None:
    models, labels, biases, weights = _operands()
    of_labels = {**OPTIONS, "ignore_index": 3, **SHARD}
    statistics = ops.linear_distillation_shard_statistics
    torch.library.opcheck(statistics.default, (*models, labels, *biases), {**of_labels, "with_target": True})
    own = ShardResults(*statistics(*models, labels, *biases, **of_labels, with_target=True))
    of_classes = own[2:6]
    mixture = ops.linear_distillation_shard_mixture
    torch.library.opcheck(mixture.default, (*models, *of_classes, *biases), OPTIONS)
    moment, of_loss, of_logprob = make_logits(3, POSITIONS, seed=5)
    inputs = (*models, moment, *of_classes, of_loss, labels, *biases, weights, of_logprob)
    torch.library.opcheck(ops.linear_distillation_shard_backward.default, inputs, of_labels)
    adding = (*inputs, torch.zeros(CLASSES, FEATURES))
    torch.library.opcheck(ops.linear_distillation_shard_backward_adding.default, adding, of_labels)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gradcheck_of_the_differentiable_results(beta: float) -> None:
    """A step of 2^-6 in float32: the difference of two results keeps 2^-17 of them, and the curvature costs 2^-12."""
    problem = make_distillation(3, classes=5, bias=True, weighted=True)
    leaves, constants = tuple(problem.leaves().values()), problem.constants

    def forward(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        models = (x, w, constants["teacher_input"], constants["teacher_weight"])
        inputs = (problem.labels, bias, constants["teacher_bias"], constants["row_weight"])
        results = ops.linear_distillation_forward(*models, *inputs, beta=beta, temperature=1.5, with_logprob=True)
        named = DistillationResults(*results)
        return named.divergence, named.logprob

    with pytest.warns(UserWarning, match="not a double precision"):
        assert torch.autograd.gradcheck(forward, leaves, eps=2.0**-6, atol=4e-3, rtol=4e-3, fast_mode=True)


def test_results_have_the_names_of_the_operators() -> None:
    for results, operator in (
        (DistillationResults, operators.FORWARD),
        (ShardResults, operators.SHARD_STATISTICS),
        (MixtureSums, operators.SHARD_MIXTURE),
    ):
        assert results._fields == tuple(output.name for output in operator.outputs)


MODELS = ("Tensor input", "Tensor linear_weight", "Tensor teacher_input", "Tensor teacher_weight")
STATISTICS = tuple(f"Tensor {model}_{name}" for model in ("student", "teacher") for name in ("maximum", "log_sum"))
FURTHER = ("labels", "linear_bias", "teacher_bias", "row_weight", "grad_logprob")
SAVED = ("Tensor moment", *STATISTICS, "Tensor grad_divergence")
WITH_NONE = tuple(f"Tensor? {name}=None" for name in FURTHER)
# At the end, so that graphs that were saved without it stay valid.
LAST = "Tensor? temperatures=None"
ADDING = (*MODELS, *SAVED, *(f"Tensor? {name}" for name in FURTHER), "Tensor(a!) grad_weight_sum", LAST)
SCHEMAS: dict[str, tuple[tuple[str, ...], int]] = {
    "forward": ((*MODELS, *WITH_NONE[:4], "Tensor? grad_weight_sum=None", LAST), 8),
    "backward": ((*MODELS, *SAVED, *WITH_NONE, LAST), 3),
    "backward_adding": (ADDING, 2),
    "shard_statistics": ((*MODELS, *WITH_NONE[:3], LAST), 7),
    "shard_mixture": ((*MODELS, *STATISTICS, *WITH_NONE[1:3], LAST), 4),
    "shard_backward": ((*MODELS, *SAVED, *WITH_NONE, LAST), 3),
    "shard_backward_adding": (ADDING, 2),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_public(name: str) -> None:
    """Saved graphs name them: further options may follow, with defaults, and nothing else may change."""
    schema = str(getattr(ops, f"linear_distillation_{name}").default._schema)
    inputs, returned = schema.removeprefix(f"nkilib::linear_distillation_{name}(").split(") -> ")
    positional, results = SCHEMAS[name]
    assert tuple(inputs.split(", *, ")[0].split(", ")) == positional
    assert returned.count("Tensor") == results
