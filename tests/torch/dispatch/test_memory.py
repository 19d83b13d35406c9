# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Backwards that write over what the forward saved: there is one, under saved-tensor hooks too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, save_on_cpu, saved_tensors_hooks

import nkilib.torch as ours
from nkilib.torch.torchtitan import LinearCrossEntropyLoss, cross_entropy_loss
from nkilib.torch.transformers import causal_lm_loss
from tests.torch.fake_group import two_ranks
from tests.torch.inputs import make_logits, make_targets

POSITIONS, FEATURES, CLASSES = 4, 16, 11
TARGET: Final = make_targets(POSITIONS, classes=CLASSES)
Loss = Callable[[Tensor, Tensor], Tensor]
HOOKS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "no hooks": nullcontext,
    "save_on_cpu": save_on_cpu,
    "identity": lambda: saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    "allow_mutation": allow_mutation_on_saved_tensors,
    "copies": lambda: saved_tensors_hooks(torch.clone, torch.clone),
}


@pytest.fixture(scope="module", autouse=True)
def _two_ranks() -> Iterator[None]:
    with two_ranks():
        yield


def of_titan(hidden: Tensor, weight: Tensor) -> Tensor:
    """TorchTitan's linear loss."""
    head = torch.nn.Linear(FEATURES, CLASSES, bias=False)
    loss = LinearCrossEntropyLoss(memory_limit=2**30)
    loss.set_lm_head(head)
    del head._parameters["weight"]
    head.weight = weight  # type: ignore[assignment]
    return loss(hidden, TARGET)[0]


def of_logits(loss: Callable[[Tensor], Tensor]) -> Loss:
    """A loss of the results of an output layer."""
    return lambda hidden, weight: loss(hidden @ weight.mT)


ZEROS: Final = torch.zeros(POSITIONS, CLASSES)
ONES: Final = torch.ones(POSITIONS)
LIMIT: Final = {"memory_limit": 2**30}
WHOLE: Final = {"shard_sizes": [CLASSES, 0]}
LOSSES: Final[dict[str, Loss]] = {
    "linear_cross_entropy": lambda x, w: ours.linear_cross_entropy(x, w, TARGET, **LIMIT),
    "LinearCrossEntropyLoss of TorchTitan": of_titan,
    "cross_entropy": of_logits(lambda z: ours.cross_entropy(z, TARGET, inplace=True)),
    "CrossEntropyLoss": of_logits(lambda z: ours.CrossEntropyLoss(inplace=True)(z, TARGET)),
    "cross_entropy_loss of TorchTitan": of_logits(lambda z: cross_entropy_loss(z, TARGET, inplace=True)),
    "causal_lm_loss": of_logits(lambda z: causal_lm_loss(z[None], TARGET[None], CLASSES, inplace=True)),
    "token_scores": of_logits(lambda z: ours.token_scores(z, TARGET, inplace=True).logprob.sum()),
    "vocab_parallel_cross_entropy": of_logits(
        lambda z: ours.vocab_parallel_cross_entropy(z, TARGET, **WHOLE, inplace=True)
    ),
    "distillation_loss": of_logits(lambda z: ours.distillation_loss(z, ZEROS, inplace=True)),
    "mse_loss": of_logits(lambda z: ours.mse_loss(z, ZEROS, inplace=True)),
    "cosine_embedding_loss": of_logits(lambda z: ours.cosine_embedding_loss(z, ZEROS + 1.0, ONES, inplace=True)),
    "multi_margin_loss": of_logits(lambda z: ours.multi_margin_loss(z, TARGET, inplace=True)),
    "nll_loss": of_logits(lambda z: ours.nll_loss(z, TARGET, inplace=True)),
}
SPENT: Final = (
    r"^nkilib::.*modified by an inplace operation: a backward has written gradients over it; compute the loss"
)


def make_leaves() -> tuple[Tensor, Tensor]:
    """Hidden states and a weight."""
    hidden, weight = make_logits(POSITIONS, FEATURES, spread=1.0), make_logits(CLASSES, FEATURES, seed=1, spread=0.3)
    return hidden.requires_grad_(), weight.requires_grad_()


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("name", LOSSES)
def test_a_second_backward_raises_and_leaves_the_first_gradients(name: str, hooks: str) -> None:
    leaves = make_leaves()
    with HOOKS[hooks]():
        loss = 3.0 * LOSSES[name](*leaves)
        (first,) = torch.autograd.grad(loss, leaves[0], retain_graph=True)
        before = first.clone()
        for others in (leaves[1:], leaves[:1], leaves):  # whichever gradients it is asked for
            with pytest.raises(RuntimeError, match=SPENT):
                torch.autograd.grad(loss, others, retain_graph=True)
    assert torch.equal(first, before) and first.isfinite().all() and bool(first.any())


@pytest.mark.parametrize("name", ["linear_cross_entropy", "cross_entropy", "vocab_parallel_cross_entropy"])
def test_a_graph_of_the_gradient_is_refused_and_spends_nothing(name: str) -> None:
    leaves = make_leaves()
    loss = LOSSES[name](*leaves)
    with pytest.raises(NotImplementedError, match="the gradient has no derivative here"):
        torch.autograd.grad(loss, leaves, create_graph=True)
    gradients = torch.autograd.grad(loss, leaves)
    for actual, expected in zip(gradients, exact(leaves), strict=True):
        torch.testing.assert_close(actual, expected)


def exact(leaves: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """PyTorch's gradients of the mean cross-entropy."""
    hidden, weight = leaves
    return torch.autograd.grad(F.cross_entropy(hidden @ weight.mT, TARGET), leaves)


def test_a_backward_that_needs_no_gradient_of_the_logits_spends_nothing() -> None:
    logits, soft = (make_logits(POSITIONS, CLASSES, seed=seed).requires_grad_(seed == 1) for seed in (0, 1))
    before = logits.clone()
    loss = ours.cross_entropy(logits, soft, inplace=True)
    first, second = (torch.autograd.grad(loss, soft, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second) and torch.equal(logits, before)


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("name", ["cross_entropy", "vocab_parallel_cross_entropy", "mse_loss"])
def test_two_losses_of_the_same_logits_do_not_write_over_each_other_unnoticed(name: str, hooks: str) -> None:
    functions = {
        "cross_entropy": lambda z: ours.cross_entropy(z, TARGET, inplace=True),
        "vocab_parallel_cross_entropy": lambda z: ours.vocab_parallel_cross_entropy(z, TARGET, **WHOLE, inplace=True),
        "mse_loss": lambda z: ours.mse_loss(z, ZEROS, inplace=True),
    }
    leaf = make_logits(POSITIONS, CLASSES).requires_grad_()
    with HOOKS[hooks]():
        logits = leaf * 1.0
        losses = [functions[name](logits) for _ in range(2)]
        (first,) = torch.autograd.grad(losses[0], leaf, retain_graph=True)
        before = first.clone()
        if hooks == "copies":
            assert torch.equal(torch.autograd.grad(losses[1], leaf)[0], before)
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(losses[1], leaf)
    assert torch.equal(first, before)


@pytest.mark.usefixtures("compile_afresh")
def test_a_second_backward_of_a_graph_is_right() -> None:
    """A graph multiplies the gradients out of place."""
    leaves = make_leaves()
    compiled = torch.compile(LOSSES["linear_cross_entropy"], fullgraph=True, backend="aot_eager")
    loss = 3.0 * compiled(*leaves)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    before = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(loss, leaves)
    for gradients in zip(first, before, second, strict=True):
        assert torch.equal(*gradients[:2]) and torch.equal(*gradients[1:])
