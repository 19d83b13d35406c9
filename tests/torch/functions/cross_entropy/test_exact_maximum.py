# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``exact_maximum`` comes from every public function to the kernel, and either form is the loss of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from nkilib.torch import CrossEntropyLoss, cross_entropy, token_scores, vocab_parallel_cross_entropy
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import CLASSES, POSITIONS, gradient_of, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss

X, T = make_logits(POSITIONS, CLASSES), make_targets(POSITIONS)


def _of_a_shard(**options: Any) -> Tensor:
    with two_ranks():
        return vocab_parallel_cross_entropy(X, T, dist.group.WORLD, **options)


@pytest.mark.parametrize("exact_maximum", [True, False, None])
def test_either_form_is_the_loss_of_pytorch(exact_maximum: bool | None) -> None:
    leaf = X.clone().requires_grad_()
    x = X.double().requires_grad_()
    loss = cross_entropy(leaf, T, reduction="sum", temperature=0.7, exact_maximum=exact_maximum)
    exact = F.cross_entropy(x / 0.7, T, reduction="sum")
    assert_loss(loss.detach(), exact.detach(), 20.0 * POSITIONS)
    assert_gradient(gradient_of(loss, leaf), gradient_of(exact, x), 10.0)


def test_which_maximum_the_forward_returns() -> None:
    """The shift of a row of several chunks does not see the values at the row's end."""
    logits = torch.full((2, 80_000), -20.0)
    logits[:, :2], logits[:, -1] = 0.0, 3.0
    maxima = {
        form: torch.ops.nkilib.cross_entropy_forward(logits, torch.tensor([0, 1]), None, exact_maximum=form)[4].tolist()
        for form in (True, False)
    }
    assert maxima == {True: [3.0, 3.0], False: [0.0, 0.0]}


REFUSED: dict[str, Callable[..., Any]] = {
    "cross_entropy": lambda **options: cross_entropy(X, T, **options),
    "CrossEntropyLoss": lambda **options: CrossEntropyLoss(**options)(X, T),
    "vocab_parallel_cross_entropy": _of_a_shard,
    "token_scores": lambda **options: token_scores(X, T, **options),
}


@pytest.mark.parametrize("function", REFUSED)
def test_a_form_that_there_is_not_is_refused_by_the_kernel(function: str) -> None:
    with pytest.raises(AssertionError, match="exact_maximum must be True or None with logit_softcap, got False"):
        REFUSED[function](logit_softcap=3.0, exact_maximum=False)
    with pytest.raises(TypeError, match="argument 'exact_maximum' must be bool, not str"):
        REFUSED[function](exact_maximum="yes")
