# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``inplace=True``: the gradient over the logits, and everything that must not go wrong with that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nkilib.torch import cross_entropy
from tests.torch.inputs import CLASSES, DTYPES, POSITIONS, exact, make_logits, make_targets
from tests.torch.telling import assert_gradient, assert_loss


def _layer(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A leaf, and logits that are an operation's result: only such can be overwritten."""
    leaf = make_logits(POSITIONS, CLASSES, dtype=dtype).requires_grad_()
    return leaf, leaf.clone()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_and_gradient_are_pytorchs(dtype: torch.dtype, reduction: str) -> None:
    leaf, logits = _layer(dtype)
    target = make_targets(POSITIONS, ignored=-100)
    loss = cross_entropy(logits, target, reduction=reduction, inplace=True)
    upstream = make_logits(POSITIONS, seed=9) if reduction == "none" else None
    expected, expected_gradient = exact(leaf, target, upstream, reduction=reduction)
    assert_loss(loss.detach(), expected, 20.0 * POSITIONS)
    loss.backward(upstream)
    assert leaf.grad is not None
    assert_gradient(leaf.grad, expected_gradient, 10.0)


def test_the_gradient_has_the_memory_of_the_logits() -> None:
    leaf, logits = _layer()
    seen: list[Tensor] = []
    logits.register_hook(seen.append)
    cross_entropy(logits, make_targets(POSITIONS), inplace=True).backward()
    assert seen[0].data_ptr() == logits.data_ptr()
    assert torch.equal(logits, leaf.grad)  # type: ignore[arg-type]


def test_a_later_use_of_the_logits_in_a_backward_raises() -> None:
    _, logits = _layer()
    other = logits.square().sum()  # saves the logits; older than the loss, so its backward runs after the loss's
    loss = cross_entropy(logits, make_targets(POSITIONS), inplace=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (other + loss).backward()


def test_logits_changed_before_the_backward_raise() -> None:
    _, logits = _layer()
    loss = cross_entropy(logits, make_targets(POSITIONS), inplace=True)
    with torch.no_grad():
        logits.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_leaf_is_refused() -> None:
    leaf = make_logits(POSITIONS, CLASSES).requires_grad_()
    for logits in (leaf, leaf.view(2, 3, CLASSES), leaf[1:]):
        with pytest.raises(RuntimeError, match="would overwrite a leaf that requires grad"):
            cross_entropy(logits, make_targets(*logits.shape[:-1]), inplace=True, class_dim=-1)


def test_a_second_derivative_raises() -> None:
    leaf, logits = _layer()
    loss = cross_entropy(logits, make_targets(POSITIONS), inplace=True)
    with pytest.raises(NotImplementedError, match=r"use torch\.nn\.functional\.cross_entropy"):
        torch.autograd.grad(loss, leaf, create_graph=True)


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.usefixtures("compile_afresh")
def test_torch_compile_is_refused_with_the_reason(fullgraph: bool) -> None:
    """Where the graph may break too: what is left out of it would run, and nobody would know."""
    leaf, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS)

    def loss_of(x: Tensor) -> Tensor:
        return cross_entropy(x.clone(), target, inplace=True)

    compiled = torch.compile(loss_of, fullgraph=fullgraph, backend="aot_eager")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="trace a backward that overwrites what the forward saved"):
            compiled(leaf)
    assert_gradient(torch.autograd.grad(loss_of(leaf), leaf)[0], exact(leaf, target)[1], 1.0)


def test_logits_that_would_be_copied_are_refused() -> None:
    leaf = make_logits(2, CLASSES, 3).requires_grad_()
    with pytest.raises(ValueError, match=r"keep the classes last and pass class_dim=-1"):
        cross_entropy(leaf.clone(), make_targets(2, 3), inplace=True)


def test_sliced_logits_are_refused_with_the_advice_to_shift_the_targets() -> None:
    """One sequence is contiguous without its last position, two are not: the rows have a gap."""
    for batch in (1, 2):
        leaf = make_logits(batch, 4, CLASSES).requires_grad_()
        sliced, target = (leaf * 1.0)[:, :-1], make_targets(batch, 3)
        if batch == 1:
            cross_entropy(sliced, target, inplace=True, class_dim=-1)
        else:
            with pytest.raises(ValueError, match=r"requires contiguous logits.* shift or mask the targets instead of"):
                cross_entropy(sliced, target, inplace=True, class_dim=-1)


def test_logits_of_three_dimensions_with_the_classes_last() -> None:
    leaf, target = make_logits(2, 3, CLASSES).requires_grad_(), make_targets(2, 3)
    logits = leaf.clone()
    cross_entropy(logits, target, inplace=True, class_dim=-1).backward()
    assert leaf.grad is not None
    assert torch.equal(logits, leaf.grad)
    assert_gradient(leaf.grad.flatten(0, 1), exact(leaf.flatten(0, 1), target.flatten())[1], 1.0)


def test_without_a_backward_nothing_is_overwritten() -> None:
    leaf, logits = _layer()
    cross_entropy(logits, make_targets(POSITIONS), inplace=True)
    with torch.no_grad():
        cross_entropy(leaf.detach(), make_targets(POSITIONS), inplace=True)
    assert torch.equal(leaf, logits)


def test_a_bad_target_leaves_the_logits_alone() -> None:
    leaf, logits = _layer()
    with pytest.raises(IndexError, match="Target 11 is out of bounds"):
        cross_entropy(logits, torch.full((POSITIONS,), CLASSES), inplace=True)
    assert torch.equal(leaf, logits)
