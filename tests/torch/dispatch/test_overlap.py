# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors that a gradient in place must not write over: leaves of autograd, and parts of other tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nkilib.torch import cosine_embedding_loss, cross_entropy, mse_loss, nll_loss, triplet_margin_loss

LEAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "a leaf": lambda flat: flat.clone().requires_grad_(),
    "a view of plain memory": lambda flat: flat[2:].requires_grad_(),
    "a view of such a view": lambda flat: flat[2:].requires_grad_().view(2, 2).view(-1),
    "a view of a leaf": lambda flat: flat.clone().requires_grad_().view(3, 2),
}


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_is_not_overwritten(leaf: str) -> None:
    flat = torch.arange(6.0)
    x = LEAVES[leaf](flat)
    with pytest.raises(RuntimeError, match=r"mse_loss: inplace=True would overwrite a leaf that requires grad"):
        mse_loss(x, torch.zeros_like(x), inplace=True)
    assert torch.equal(flat, torch.arange(6.0))


def test_a_view_of_a_result_is_overwritten() -> None:
    x = torch.randn(6, 4, requires_grad=True)
    mse_loss((x * 1.0).view(-1), torch.zeros(24), "sum", inplace=True).backward()
    torch.testing.assert_close(x.grad, 2.0 * x.detach())


OVERLAPPING: dict[str, Callable[[Tensor], Tensor]] = {
    "mse_loss": lambda y: mse_loss(y[1:], y[:-1].detach(), inplace=True),
    "triplet_margin_loss": lambda y: triplet_margin_loss(y[2:], y[1:-1], y[:-2], inplace=True),
    "cosine_embedding_loss": lambda y: cosine_embedding_loss(y[1:], y[:-1], torch.ones(5), inplace=True),
    "nll_loss": lambda y: nll_loss(y[1:], torch.zeros(5, dtype=torch.int64), y.detach().view(-1)[6:10], inplace=True),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_a_part_of_another_tensor_is_not_overwritten(name: str) -> None:
    """A tile of it may be loaded after the gradient of an earlier one is stored."""
    y = torch.randn(6, 4, requires_grad=True) * 1.0
    with pytest.raises(RuntimeError, match=rf"{name}: inplace=True would write the gradient of .*\.clone\(\)"):
        OVERLAPPING[name](y)


def test_the_same_memory_and_memory_apart_are_overwritten() -> None:
    x = torch.randn(6, 4, requires_grad=True)
    target = torch.zeros(3, dtype=torch.int64)
    for function in (lambda y: mse_loss(y, y.detach(), inplace=True), lambda y: mse_loss(y[3:], y[:3], inplace=True)):
        function(x * 1.0).backward()
    cross_entropy((x * 1.0)[3:], target, inplace=True).backward()
    assert x.grad is not None and x.grad.isfinite().all()
