# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Errors of scores and gradients beside PyTorch's operators, as in docs/explanation/linear_cross_entropy.md."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import linear_token_scores

POSITIONS, FEATURES, CLASSES = 256, 512, 4096


class Errors(NamedTuple):
    """Errors in norm, and the worst: of scores the largest absolute one, of gradients the worst row's relative one."""

    logprob: tuple[float, float]
    entropy: tuple[float, float]
    grad_input: tuple[float, float]
    grad_weight: tuple[float, float]


def _inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Logits of spread 2.5, targets of all classes alike, and upstream gradients."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POSITIONS, FEATURES, generator=generator).to(dtype)
    w = (2.5 / FEATURES**0.5 * torch.randn(CLASSES, FEATURES, generator=generator)).to(dtype)
    target = torch.randint(CLASSES, (POSITIONS,), generator=generator)
    of_logprob, of_entropy = torch.randn(2, POSITIONS, generator=generator)
    return x.requires_grad_(), w.requires_grad_(), target, of_logprob, 0.1 * of_entropy


def _by_logits(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    log_p = logits.log_softmax(-1)
    return log_p.gather(-1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def _errors(results: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> Errors:
    off = [actual.double() - expected for actual, expected in zip(results, exact, strict=True)]
    in_norm = [(item.norm() / expected.norm()).item() for item, expected in zip(off, exact, strict=True)]
    worst = [item.abs().max().item() for item in off[:2]]
    for element, expected in zip(off[2:], exact[2:], strict=True):
        worst.append((element.norm(dim=1) / expected.norm(dim=1)).max().item())
    return Errors(*zip(in_norm, worst, strict=True))


def _ours(dtype: torch.dtype, compute_dtype: torch.dtype) -> tuple[Errors, Errors]:
    """Errors of ours, and of PyTorch with float32 logits of rounded operands."""
    x, w, target, *upstream = _inputs(dtype)
    scores = linear_token_scores(x, w, target, compute_dtype=compute_dtype)
    assert scores.entropy is not None
    values = scores.logprob, scores.entropy
    result = (*(value.detach() for value in values), *torch.autograd.grad(values, (x, w), upstream))
    leaves = [array.detach().to(compute_dtype).double().requires_grad_() for array in (x, w)]
    exact_values = _by_logits(F.linear(*leaves), target)
    exact = (
        *(value.detach() for value in exact_values),
        *torch.autograd.grad(exact_values, leaves, [gradient.double() for gradient in upstream]),
    )
    rounded = [array.detach().to(compute_dtype).requires_grad_() for array in (x, w)]
    their_values = _by_logits(F.linear(*rounded).float(), target)
    theirs = (*(value.detach() for value in their_values), *torch.autograd.grad(their_values, rounded, upstream))
    return _errors(result, exact), _errors(theirs, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_errors_of_scores_are_less_than_those_of_float32_logits(dtype: torch.dtype) -> None:
    """Products are bfloat16; gradients of float32 tensors are not rounded after them."""
    ours, theirs = _ours(dtype, torch.bfloat16)
    assert ours.logprob[0] < 1.5e-7 and ours.logprob[1] < 5e-6
    assert ours.entropy[0] < 6e-7 and ours.entropy[1] < 1e-5
    assert theirs.logprob[0] > 1e-4 and theirs.entropy[0] > 1e-4
    in_norm, worst_row = (2.35e-3, 4.5e-3) if dtype == torch.bfloat16 else (1.8e-3, 4.3e-3)
    for mine, other in ((ours.grad_input, theirs.grad_input), (ours.grad_weight, theirs.grad_weight)):
        assert mine[0] < min(in_norm, 1.01 * other[0]) and mine[1] < min(worst_row, 1.1 * other[1])
