# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses, scores and gradients of ``linear_distillation_loss`` against float64, and against the form from logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LinearDistillationOutputs, distillation_loss, linear_distillation_loss
from tests.torch.functions.linear_cross_entropy.problem import CLASSES, DTYPES, FEATURES
from tests.torch.functions.linear_distillation.problem import (
    TEACHER_FEATURES,
    DistillationProblem,
    make_distillation,
)
from tests.torch.inputs import make_logits

RECIPES: dict[str, dict[str, Any]] = {
    "forward": {},
    "reverse": {"direction": "reverse", "ignored": 3, "bias": True},
    "mixed": {"beta": 0.5, "weighted": True},
    "forward, all options": {
        **{"temperature": 0.75, "temperature_squared": True, "ignored": -100, "bias": True, "weighted": True},
        **{"logit_scale": 0.625, "teacher_logit_scale": 1.5, "logit_softcap": 5.0, "teacher_logit_softcap": 30.0},
    },
    "reverse, capped": {"beta": 1.0, "temperature": 1.5, "logit_softcap": 2.5, "weighted": True, "ignored": -100},
    "mixed, all options": {
        **{"beta": 0.1, "temperature": 2.0, "temperature_squared": True, "ignored": 3, "bias": True},
        **{"logit_scale": 1.5, "teacher_logit_softcap": 4.0},
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_results_and_gradients(dtype: torch.dtype, recipe: str) -> None:
    problem = make_distillation(2, 5, dtype=dtype, **RECIPES[recipe])
    problem.check(*problem.ours())


@pytest.mark.parametrize("upstream", [("loss",), ("logprob",)])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_gradients_of_one_result(upstream: tuple[str, ...], beta: float) -> None:
    problem = make_distillation(6, upstream=upstream, ignored=3, beta=beta)
    problem.check(*problem.ours())


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "teacher_dtype", "compute_dtype"),
    [
        (torch.bfloat16, torch.bfloat16, torch.float32, None),
        (torch.float32, torch.float32, torch.bfloat16, None),
        (torch.bfloat16, torch.float32, torch.float16, None),
        (torch.float32, torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32),
    ],
)
@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_operands_of_any_type(
    dtype: torch.dtype,
    weight_dtype: torch.dtype,
    teacher_dtype: torch.dtype,
    compute_dtype: torch.dtype | None,
    beta: float,
) -> None:
    options = {} if compute_dtype is None else {"compute_dtype": compute_dtype}
    problem = make_distillation(
        6, dtype=dtype, weight_dtype=weight_dtype, teacher_dtype=teacher_dtype, bias=True, beta=beta, **options
    )
    problem.check(*problem.ours())


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"direction": "reverse", "temperature": 2.0, "temperature_squared": True},
    {"beta": 0.5, "temperature": 0.5},
    {"beta": 0.1, "reduction": "batchmean"},
    {"beta": 1.0, "reduction": "sum", "direction": "forward"},
    {"reduction": "none", "direction": "reverse"},
)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("has_labels", [True, False])
def test_the_same_call_means_the_loss_from_logits(form: dict[str, Any], has_labels: bool) -> None:
    problem = make_distillation(2, 3, ignored=-100)
    leaves, constants = problem.leaves(), problem.constants
    labels = problem.labels if has_labels else None
    loss = linear_distillation_loss(**leaves, **constants, labels=labels, **form)
    logits = F.linear(leaves["input"], leaves["linear_weight"])
    expected = distillation_loss(logits, F.linear(*constants.values()), labels=labels, **form)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    results, of_logits = (torch.autograd.grad(item.sum(), list(leaves.values())) for item in (loss, expected))
    assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(results, of_logits, strict=True))
    assert loss.shape == expected.shape and loss.dtype == torch.float32 and results[0].any()


def test_a_mean_divides_by_the_positions_that_count_and_not_by_their_weights() -> None:
    problem = make_distillation(2, 3, ignored=-100, weighted=True)
    item = linear_distillation_loss(**problem.leaves(), **problem.arguments, reduction="none")
    mean = linear_distillation_loss(**problem.leaves(), **problem.arguments)
    torch.testing.assert_close(mean, item.sum() / problem.counts.sum())
    assert (problem.constants["row_weight"] != 1.0).all() and not problem.counts.all()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_ignored_positions_count_for_nothing_but_their_entropy(beta: float) -> None:
    problem = make_distillation(6, beta=beta)
    ignored = torch.full((6,), -100)
    leaves = problem.leaves()
    arguments = {**problem.arguments, "labels": ignored, "outputs": ("entropy", "logprob")}
    outputs = linear_distillation_loss(**leaves, **arguments, reduction="none")
    assert isinstance(outputs, LinearDistillationOutputs)
    assert outputs.logprob is not None and outputs.entropy is not None
    assert torch.equal(outputs.logprob.signbit(), torch.zeros(6, dtype=torch.bool))
    assert not outputs.loss.any() and not outputs.logprob.any() and outputs.entropy.gt(0.0).all()
    nan = torch.full((6,), torch.nan)
    for gradient in torch.autograd.grad((outputs.loss, outputs.logprob), list(leaves.values()), (nan, nan)):
        assert not gradient.any()
    mean = linear_distillation_loss(**leaves, **{**arguments, "outputs": ()})
    assert isinstance(mean, Tensor) and mean.isnan()


@pytest.mark.parametrize("names", [(), ("entropy",), ("logprob",), ("logprob", "entropy")])
def test_what_is_returned(names: tuple[str, ...]) -> None:
    problem = make_distillation(2, 3)
    result = linear_distillation_loss(**problem.leaves(), **problem.arguments, outputs=iter(names))
    if not names:
        assert isinstance(result, Tensor) and result.shape == ()
        return
    assert isinstance(result, LinearDistillationOutputs) and result.loss.requires_grad
    for name in ("entropy", "logprob"):
        values = getattr(result, name)
        assert (values is not None) == (name in names)
        assert values is None or (values.shape == (2, 3) and values.requires_grad == (name == "logprob"))


@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.5, 1.0 - 1e-3, 1.0])
@pytest.mark.parametrize("temperature", [0.1, 1.0, 20.0])
def test_a_teacher_that_is_the_student(beta: float, temperature: float) -> None:
    problem = make_distillation(6, upstream=("loss",), beta=beta, temperature=temperature)
    student = problem.leaves_of
    constants = {"teacher_input": student["input"], "teacher_weight": student["linear_weight"]}
    leaves = problem.leaves()
    loss = linear_distillation_loss(**leaves, **constants, **problem.options, reduction="none")
    assert (loss >= 0.0).all() and (loss <= 1e-6).all()
    for gradient in torch.autograd.grad(loss.sum(), list(leaves.values())):
        assert gradient.abs().max() <= 2e-5 / temperature


MASKS: dict[str, tuple[bool, bool]] = {"both": (True, True), "teacher": (False, True), "student": (True, False)}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_masked_class(beta: float, mask: str) -> None:
    """Infinite where the formula is: in one model alone, for the divergence whose weights the other has."""
    problem = make_distillation(6, bias=True, beta=beta, upstream=("loss",))
    in_student, in_teacher = MASKS[mask]
    for is_masked, bias in (
        (in_student, problem.leaves_of["linear_bias"]),
        (in_teacher, problem.constants["teacher_bias"]),
    ):
        if is_masked:
            bias[[1, 7]] = -torch.inf
    problem.labels[:] = 2
    is_infinite = mask == {0.0: "student", 1.0: "teacher"}.get(beta)
    if is_infinite:
        _check_infinite(problem)
        return
    outputs, gradients = problem.ours()
    problem.check(outputs, gradients)
    if in_student:
        assert gradients["linear_bias"][[1, 7]].eq(0.0).all()


def _check_infinite(problem: DistillationProblem) -> None:
    """The gradient of KL(P || Q) is that of its formula; positions that are ignored have none."""
    leaves = problem.leaves()
    loss = linear_distillation_loss(**leaves, **problem.arguments, reduction="none")
    assert loss.isposinf().all()
    if problem.beta == 0.0:
        q, p = (
            F.linear(item[f"{model}input"], item[weight], item[bias]).softmax(-1)
            for item, model, weight, bias in (
                (problem.leaves_of, "", "linear_weight", "linear_bias"),
                (problem.constants, "teacher_", "teacher_weight", "teacher_bias"),
            )
        )
        of_logits = q - p
        expected = (of_logits @ leaves["linear_weight"], of_logits.t() @ leaves["input"], of_logits.sum(0))
        results = torch.autograd.grad(loss.sum(), list(leaves.values()))
        for gradient, of_formula in zip(results, expected, strict=True):
            torch.testing.assert_close(gradient, of_formula, rtol=1e-4, atol=1e-5)
    arguments = {**problem.arguments, "labels": torch.full_like(problem.labels, -100)}
    ignored = linear_distillation_loss(**leaves, **arguments, reduction="sum")
    assert ignored == 0.0
    assert not any(item.any() for item in torch.autograd.grad(ignored, list(leaves.values())))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0)])
def test_few_positions_and_none(shape: tuple[int, ...]) -> None:
    x, tx = make_logits(*shape, FEATURES), make_logits(*shape, TEACHER_FEATURES, seed=1)
    w = make_logits(CLASSES, FEATURES, seed=2).requires_grad_()
    tw = make_logits(CLASSES, TEACHER_FEATURES, seed=3)
    outputs = linear_distillation_loss(x, w, tx, tw, reduction="none", outputs=("entropy",))
    assert isinstance(outputs, LinearDistillationOutputs) and outputs.entropy is not None
    assert outputs.loss.shape == shape == outputs.entropy.shape
    (gradient,) = torch.autograd.grad(outputs.loss.sum(), w)
    assert gradient.shape == w.shape and gradient.any() == bool(x.numel())
    assert linear_distillation_loss(x, w, tx, tw, reduction="batchmean").shape == ()
