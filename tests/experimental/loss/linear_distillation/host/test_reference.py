# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The float64 reference gives what PyTorch's autograd gives in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nkilib.experimental.loss.linear_distillation.host.reference import (
    ModelProblem,
    PairProblem,
    PairUpstream,
    mixture_reference,
    pair_backward_reference,
    pair_forward_reference,
)

from ..pair_inputs import pair_of

if TYPE_CHECKING:
    import torch

BETAS = (0.0, 1e-3, 0.3, 1.0 - 1e-3, 1.0)


def _z(model: ModelProblem, arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    import torch
    import torch.nn.functional as F

    z = model.logit_scale * F.linear(arguments["input"], arguments["weight"], arguments["bias"])
    if model.logit_softcap is not None:
        z = model.logit_softcap * torch.tanh(z / model.logit_softcap)
    return z / float(model.temperature)


def _tensors(model: ModelProblem) -> dict[str, torch.Tensor]:
    import torch

    arguments = {"input": model.input, "weight": model.classes_first, "bias": np.zeros(model.vocab_size)}
    if model.bias is not None:
        arguments["bias"] = model.bias
    return {name: torch.tensor(argument.astype(np.float64), requires_grad=True) for name, argument in arguments.items()}


def _by_torch(problem: PairProblem) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    import torch
    import torch.nn.functional as F

    student = _tensors(problem.student)
    log_q = F.log_softmax(_z(problem.student, student), -1)
    log_p = F.log_softmax(_z(problem.teacher, _tensors(problem.teacher)), -1).detach()
    beta = problem.beta

    def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
        return F.kl_div(log_b, log_a, reduction="none", log_target=True).sum(-1)

    if beta in (0.0, 1.0):
        divergence = kl(log_p, log_q) if beta == 0.0 else kl(log_q, log_p)
    else:
        mixture = torch.log(beta * log_p.exp() + (1.0 - beta) * log_q.exp())
        divergence = beta * kl(log_p, mixture) + (1.0 - beta) * kl(log_q, mixture)
    labels = torch.tensor(problem.local_labels)
    logprob = torch.where(labels >= 0, log_q[torch.arange(len(labels)), labels], 0.0)
    results = {
        "divergence": divergence * torch.tensor(problem.weights),
        "logprob": logprob,
        "entropy": -(log_q.exp() * log_q).sum(-1),
    }
    return results, student


def _problem(beta: float, **options: Any) -> PairProblem:
    return pair_of(beta=beta, with_bias=True, temperature=1.7, logit_scale=0.8, logit_softcap=4.0, **options)


@pytest.mark.parametrize("beta", BETAS)
def test_results_and_gradients_are_those_of_autograd(beta: float) -> None:
    import torch

    problem = _problem(beta)
    expected, student = _by_torch(problem)
    result = pair_forward_reference(problem)
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(result, name), value.detach().numpy(), rtol=1e-9, atol=1e-12)
    rng = np.random.default_rng(5)
    of_divergence, of_logprob = rng.standard_normal((2, problem.num_positions))
    total = (expected["divergence"] * torch.tensor(of_divergence)).sum()
    total = total + (expected["logprob"] * torch.tensor(of_logprob)).sum()
    gradients = torch.autograd.grad(total, list(student.values()))
    upstream = PairUpstream.of_results(result, of_divergence, of_logprob)
    for ours, theirs in zip(pair_backward_reference(problem, upstream), gradients, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-8, atol=1e-11)


def _shard(problem: PairProblem, classes: slice) -> PairProblem:
    student, teacher = (
        replace(model, weight=model.weight[classes], bias=None if model.bias is None else model.bias[classes])
        for model in (problem.student, problem.teacher)
    )
    return replace(problem, student=student, teacher=teacher, first_class=classes.start)


@pytest.mark.parametrize("beta", (0.0, 1.0))
def test_divergences_of_shards_combine_by_the_chain_rule(beta: float) -> None:
    problem = _problem(beta)
    whole, total = pair_forward_reference(problem), 0.0
    for classes in (slice(0, 30), slice(30, 96)):
        part = pair_forward_reference(_shard(problem, classes))
        log_q, log_p = part.student_lse - whole.student_lse, part.teacher_lse - whole.teacher_lse
        share, distance = (np.exp(log_p), log_p - log_q) if beta == 0.0 else (np.exp(log_q), log_q - log_p)
        total = total + share * (part.divergence + problem.weights * distance)
    np.testing.assert_allclose(total, whole.divergence, rtol=1e-9, atol=1e-12)


def test_gradients_and_mixture_sums_of_shards_add_up() -> None:
    problem = _problem(0.3)
    whole = pair_forward_reference(problem)
    upstream = PairUpstream.of_results(whole, np.ones(problem.num_positions), np.ones(problem.num_positions))
    exact, cuts = pair_backward_reference(problem, upstream), (slice(0, 30), slice(30, 96))
    parts = [pair_backward_reference(problem, upstream, classes) for classes in cuts]
    np.testing.assert_allclose(parts[0].input + parts[1].input, exact.input, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.concatenate([part.weight for part in parts]), exact.weight, rtol=1e-12)
    sums = [mixture_reference(_shard(problem, classes), whole) for classes in cuts]
    totals = [sum(item) for item in zip(*sums, strict=True)]
    np.testing.assert_allclose(totals[0], whole.moment, rtol=1e-9)
    divergence = problem.weights * (0.3 * totals[1] + 0.7 * totals[0])
    np.testing.assert_allclose(divergence, whole.divergence, rtol=1e-9)
    np.testing.assert_allclose(totals[2:], 1.0, rtol=1e-12)


def test_masked_classes() -> None:
    """A class masked in both models adds nothing; in one, it makes the divergence infinite where its formula does."""
    bias = np.zeros(96, np.float32)
    bias[[5, 50]] = -np.inf
    nothing = np.zeros(96, np.float32)
    for beta in BETAS:
        problem = pair_of(beta=beta)
        results = {}
        for name, of_student, of_teacher in (
            ("both", bias, bias),
            ("student", bias, nothing),
            ("teacher", nothing, bias),
        ):
            masked = replace(
                problem,
                student=replace(problem.student, bias=of_student),
                teacher=replace(problem.teacher, bias=of_teacher),
            )
            results[name] = pair_forward_reference(masked).divergence[masked.counts]
        kept = np.flatnonzero(np.isfinite(bias))
        left = replace(
            problem,
            student=replace(problem.student, weight=problem.student.weight[kept]),
            teacher=replace(problem.teacher, weight=problem.teacher.weight[kept]),
        )
        np.testing.assert_allclose(results["both"], pair_forward_reference(left).divergence[left.counts], rtol=1e-9)
        assert np.isposinf(results["student"]).all() == (beta == 0.0)
        assert np.isposinf(results["teacher"]).all() == (beta == 1.0)
        assert np.isfinite(results["student"]).all() == (beta != 0.0)
        assert np.isfinite(results["teacher"]).all() == (beta != 1.0)
