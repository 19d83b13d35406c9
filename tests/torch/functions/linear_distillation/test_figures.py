# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of divergences and gradients beside those of PyTorch's own operators on float32 logits, and of near models."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import LinearDistillationOutputs, linear_distillation_loss
from nkilib.torch.functions.linear_distillation import parts
from nkilib.torch.functions.vocab_parallel.shards import VocabularyShards
from tests.torch.fake_group import two_ranks

POSITIONS, FEATURES, TEACHER_FEATURES, CLASSES = 128, 256, 384, 4096


class Operands(NamedTuple):
    """Hidden states and weights of both models."""

    input: Tensor
    linear_weight: Tensor
    teacher_input: Tensor
    teacher_weight: Tensor

    def logits(self) -> tuple[Tensor, Tensor]:
        """Return the logits of student and teacher."""
        return F.linear(*self[:2]), F.linear(*self[2:])


def _operands() -> Operands:
    """Logits of spread 2 and 2.5."""
    generator = torch.Generator().manual_seed(0)

    def weight(features: int, spread: float) -> Tensor:
        return spread / features**0.5 * torch.randn(CLASSES, features, generator=generator)

    tensors = (
        torch.randn(POSITIONS, FEATURES, generator=generator),
        weight(FEATURES, 2.0),
        torch.randn(POSITIONS, TEACHER_FEATURES, generator=generator),
        weight(TEACHER_FEATURES, 2.5),
    )
    return Operands(*(tensor.bfloat16() for tensor in tensors))


def _divergence(student: Tensor, teacher: Tensor, beta: float) -> Tensor:
    log_q, log_p = student.log_softmax(-1), teacher.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    if beta in (0.0, 1.0):
        return (p * (log_p - log_q) if beta == 0.0 else q * (log_q - log_p)).sum(-1)
    log_m = (beta * p + (1.0 - beta) * q).log()
    return (beta * p * (log_p - log_m) + (1.0 - beta) * q * (log_q - log_m)).sum(-1)


def _in_norm(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm() / exact.norm()).item()


def _worst_row(result: Tensor, exact: Tensor) -> float:
    return ((result.double() - exact).norm(dim=1) / exact.norm(dim=1)).max().item()


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_errors_are_less_than_those_of_float32_logits(beta: float) -> None:
    operands = _operands()
    leaves = [operand.clone().requires_grad_() for operand in operands[:2]]
    outputs = linear_distillation_loss(*leaves, *operands[2:], beta=beta, reduction="none", outputs=("entropy",))
    assert isinstance(outputs, LinearDistillationOutputs) and outputs.entropy is not None
    results = torch.autograd.grad(outputs.loss.mean(), leaves)

    exact = Operands(*(operand.double().requires_grad_(at < 2) for at, operand in enumerate(operands)))
    student, teacher = exact.logits()
    values = _divergence(student, teacher, beta)
    of_exact = torch.autograd.grad(values.mean(), exact[:2], retain_graph=True)
    theirs = Operands(*(operand.clone().requires_grad_(at < 2) for at, operand in enumerate(operands)))
    their_values = _divergence(*(logits.float() for logits in theirs.logits()), beta)
    of_theirs = torch.autograd.grad(their_values.mean(), theirs[:2])

    log_q = student.detach().log_softmax(-1)
    off, theirs_off = (_in_norm(tensor.detach(), values.detach()) for tensor in (outputs.loss, their_values))
    assert off < 2e-7 < 1e-3 * theirs_off
    assert _in_norm(outputs.entropy, -(log_q.exp() * log_q).sum(-1)) < 1e-7
    for mine, other, expected in zip(results, of_theirs, of_exact, strict=True):
        assert _in_norm(mine, expected) < min(2.36e-3, 0.5 * _in_norm(other, expected))
        assert _worst_row(mine, expected) < min(4.6e-3, 0.5 * _worst_row(other, expected))


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_small_divergence_of_near_models(beta: float, is_sharded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean of 2e-4 nats, 5e-5 of Jensen-Shannon; of a rank of two that has all classes, too."""
    x, w, *_ = _operands()
    noise = torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
    near = (w.float() * (1.0 + 0.01 * noise)).bfloat16()
    exact = _divergence(F.linear(x.double(), w.double()), F.linear(x.double(), near.double()), beta)
    if not is_sharded:
        loss = linear_distillation_loss(x, w, x, near, beta=beta, reduction="none")
    else:
        monkeypatch.setattr(parts, "shards_of_ranks", lambda *_: VocabularyShards((CLASSES, 0), 0))
        with two_ranks():
            loss = linear_distillation_loss(x, w, x, near, None, dist.group.WORLD, beta=beta, reduction="none")
    assert (loss >= 0.0).all() and (loss - exact).abs().max() < 4e-7
    assert (loss.double().mean() / exact.mean() - 1.0).abs() < 1e-4
