# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The figures of docs/explanation/linear_cross_entropy_figures.md beside PyTorch's logits, on smaller inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nkilib.torch import linear_cross_entropy
from tests.torch.functions.linear_cross_entropy.problem import FORMS

POSITIONS, FEATURES, CLASSES = 256, 256, 2048
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Errors(NamedTuple):
    """Relative ones: of the loss, of the gradients in norm, and of the worst row of the weight's."""

    loss: float
    input: float
    weight: float
    worst_row: float


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(POSITIONS, FEATURES, generator=generator)
    w = 2.0 / FEATURES**0.5 * torch.randn(CLASSES, FEATURES, generator=generator)
    target = torch.randint(CLASSES, (POSITIONS,), generator=generator)
    target[::10] = -100
    return x.bfloat16(), w.bfloat16(), target


def results(loss: Loss, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    x, w, target = inputs()
    x, w = x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_()
    value = loss(x, w, target)
    of_x, of_w = torch.autograd.grad(value, (x, w))
    return value.detach().double(), of_x.double(), of_w.double()


def of_logits(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    logits = F.linear(x, w)
    return F.cross_entropy(logits if x.dtype == torch.float64 else logits.float(), target)


def errors(loss: Loss) -> Errors:
    exact, result = results(of_logits, torch.float64), results(loss)
    relative = [((a - e).norm() / e.norm()).item() for a, e in zip(result, exact, strict=True)]
    rows = (result[2] - exact[2]).norm(dim=1) / exact[2].norm(dim=1)
    return Errors(*relative, rows.max().item())


@pytest.mark.parametrize("memory_limit", FORMS)
def test_errors_are_at_most_those_of_logits_in_float32(memory_limit: int | None) -> None:
    ours = errors(lambda *operands: linear_cross_entropy(*operands, memory_limit=memory_limit))
    theirs = errors(of_logits)
    assert ours.loss < 1e-6
    assert ours.input <= theirs.input and ours.weight <= theirs.weight
    assert ours.worst_row < 5e-3 < theirs.worst_row
