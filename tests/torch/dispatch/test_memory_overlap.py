# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Tensors that a gradient in place must not write over: leaves of autograd, and memory of other tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from nkilib.torch import (
    cosine_embedding_loss,
    cross_entropy,
    distillation_loss,
    huber_loss,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    token_scores,
    triplet_margin_loss,
    vocab_parallel_cross_entropy,
)
from tests.torch.fake_group import two_ranks

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


def expanded(row: Tensor) -> Tensor:
    """A row of the logits, for all rows."""
    return row.detach().expand(6, 4)


def as_integers(y: Tensor) -> Tensor:
    """The memory of float32 zeros is that of int32 zeros."""
    return y.detach().view(torch.int32)


def of_an_array(y: Tensor) -> Tensor:
    """The same memory, of another storage."""
    return torch.from_numpy(y.detach().numpy())


ONES, CLASS = torch.ones(6), torch.zeros(6, dtype=torch.int64)
# The argument that an error names, by the function and what is special.
OVERLAPPING: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "mse_loss": ("target", lambda y: mse_loss(y[1:], y[:-1].detach(), inplace=True)),
    "mse_loss, of an array": ("target", lambda y: mse_loss(y[1:], of_an_array(y)[:-1], inplace=True)),
    "mse_loss, weight": ("weight", lambda y: mse_loss(y, y * 0.0, "sum", y.detach().view(4, 6).mT, inplace=True)),
    "l1_loss": ("target", lambda y: l1_loss(y, expanded(y[0]), inplace=True)),
    "l1_loss, other row": ("target", lambda y: l1_loss(y, expanded(y[3]), inplace=True)),
    "huber_loss, int32": ("target", lambda y: huber_loss(y, as_integers(y), inplace=True)),
    "triplet_margin_loss": ("positive", lambda y: triplet_margin_loss(y[2:], y[1:-1], y[:-2], inplace=True)),
    "cosine_embedding_loss": ("input2", lambda y: cosine_embedding_loss(y[1:], y[:-1], ONES[1:], inplace=True)),
    "cosine_embedding_loss, vector": (
        "target",
        lambda y: cosine_embedding_loss(y, y * 2.0, y.detach().view(-1)[:6], inplace=True),
    ),
    "multilabel_soft_margin_loss": (
        "weight",
        lambda y: multilabel_soft_margin_loss(y, y * 0.0, y[0].detach(), inplace=True),
    ),
    "multi_margin_loss": ("weight", lambda y: multi_margin_loss(y, CLASS, weight=y[0].detach(), inplace=True)),
    "multi_margin_loss, of a row": (
        "weight",
        lambda y: multi_margin_loss(y[0], CLASS[0], weight=y[0].detach(), inplace=True),
    ),
    "multilabel_margin_loss": ("target", lambda y: multilabel_margin_loss(y, as_integers(y), inplace=True)),
    "nll_loss": ("weight", lambda y: nll_loss(y, CLASS, y.detach().view(-1)[6:10], inplace=True)),
    "nll_loss, indices": ("target", lambda y: nll_loss(y, as_integers(y)[:, 1], inplace=True)),
    "cross_entropy": ("weight", lambda y: cross_entropy(y, CLASS, y[0].detach(), inplace=True)),
    "cross_entropy, indices": ("target", lambda y: cross_entropy(y, as_integers(y)[:, 0], inplace=True)),
    "cross_entropy, probabilities": (
        "target",
        lambda y: cross_entropy(y, y.detach().view(4, 6).mT, inplace=True),
    ),
    "cross_entropy, normalizer": ("normalizer", lambda y: cross_entropy(y, CLASS, normalizer=y[5, 3], inplace=True)),
    "token_scores": ("target", lambda y: token_scores(y, as_integers(y)[:, 0], inplace=True)),
    "distillation_loss": ("teacher_logits", lambda y: distillation_loss(y[1:], y[:-1].detach(), inplace=True)),
    "distillation_loss, labels": (
        "labels",
        lambda y: distillation_loss(y, y.detach() * 1.0, labels=as_integers(y)[:, 2], inplace=True),
    ),
    "vocab_parallel_cross_entropy": (
        "target",
        lambda y: vocab_parallel_cross_entropy(y, as_integers(y)[:, 0], shard_sizes=[4, 0], inplace=True),
    ),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_memory_of_another_tensor_is_not_overwritten(name: str) -> None:
    """A tile of it may be loaded after the gradient of an earlier one is stored."""
    y = torch.zeros(6, 4, requires_grad=True) * 1.0
    argument, call = OVERLAPPING[name]
    function = name.partition(",")[0]
    message = (
        rf"^{function}: inplace=True would write the gradient of \w+ over {argument}, .*pass {argument}\.clone\(\)"
    )
    with two_ranks(), pytest.raises(RuntimeError, match=message):
        call(y)
    assert not y.detach().any()


# Functions that read an element of each tensor before they write that element of the gradient.
ALIGNED: dict[str, Callable[[Tensor, Tensor, bool], Tensor]] = {
    "mse_loss": lambda y, same, inplace: mse_loss(y, same, "sum", same, inplace=inplace),
    "triplet_margin_loss": lambda y, same, inplace: triplet_margin_loss(y, same, same, swap=True, inplace=inplace),
    "cosine_embedding_loss": lambda y, same, inplace: cosine_embedding_loss(y, same, -ONES, inplace=inplace),
    "multilabel_soft_margin_loss": lambda y, same, inplace: multilabel_soft_margin_loss(y, same, same, inplace=inplace),
    "cross_entropy": lambda y, same, inplace: cross_entropy(y, same, label_smoothing=0.1, inplace=inplace),
    "distillation_loss": lambda y, same, inplace: distillation_loss(y, same.detach(), beta=0.5, inplace=inplace),
}


@pytest.mark.parametrize("name", ALIGNED)
@pytest.mark.parametrize("is_constant", [True, False])
def test_the_same_tensor_as_two_arguments_is_overwritten(name: str, is_constant: bool) -> None:
    gradients = []
    for inplace in (False, True):
        x = torch.rand(6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = x * 1.0
        loss = ALIGNED[name](y, y.detach() if is_constant else y, inplace)
        gradients.append(torch.autograd.grad(loss, x)[0])
    assert torch.equal(*gradients)


def test_memory_apart_is_overwritten() -> None:
    """Rows before and behind, in one tensor too."""
    x = torch.randn(6, 4, requires_grad=True)
    calls: list[Callable[[Tensor], Tensor]] = [
        lambda y: mse_loss(y[3:], y[:3], inplace=True),
        lambda y: mse_loss(y[2:4], y[1::3], inplace=True),
        lambda y: mse_loss(y[2], y.detach()[::5].mT[:, 0], inplace=True),
        lambda y: cross_entropy(y[3:], CLASS[:3], y[0].detach(), inplace=True),
    ]
    for call in calls:
        (gradient,) = torch.autograd.grad(call(x * 1.0), x)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("shared", ["input", "linear_weight", "linear_bias"])
def test_the_sum_of_gradients_has_memory_of_its_own(shared: str) -> None:
    summed = torch.zeros(6, 16)
    tensors = {"input": torch.zeros(4, 16), "linear_weight": torch.zeros(6, 16), "linear_bias": torch.zeros(6)}
    shape = tensors[shared].shape
    tensors[shared] = summed.view(-1)[: shape.numel()].view(shape)
    with pytest.raises(ValueError, match=rf"grad_weight_sum must have memory of its own, but shares it with {shared}"):
        linear_cross_entropy(target=CLASS[:4], **tensors, grad_weight_sum=summed)
