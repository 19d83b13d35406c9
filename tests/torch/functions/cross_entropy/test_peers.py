# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Statements of docs/evidence/peers.md about PyTorch's own losses; a release that changes one changes the page."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.torch.inputs import CLASSES, POSITIONS, exact, make_logits, make_targets
from tests.torch.of_pytorch import linear_only
from tests.torch.telling import assert_gradient

chunks_probabilities = Version(torch.__version__) >= Version("2.14")


def chunked(input: Tensor, weight: Tensor, target: Tensor, retain: bool = False, **arguments: Any) -> Tensor:
    """``F.linear_cross_entropy`` that never has the logits of more than 2 positions in memory."""
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2, chunking_method=None, allow_retain_graph=retain)
    return F.linear_cross_entropy(input, weight, target, options=options, **arguments)


def layer(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    hidden = make_logits(POSITIONS, 8, dtype=dtype).requires_grad_()
    return hidden, make_logits(CLASSES, 8, dtype=dtype, seed=5, spread=0.3).requires_grad_()


def test_the_loss_of_bfloat16_logits_is_bfloat16_but_under_autocast_float32() -> None:
    x, target = make_logits(POSITIONS, CLASSES, dtype=torch.bfloat16), make_targets(POSITIONS)
    assert F.cross_entropy(x, target).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.cross_entropy(x, target).dtype == torch.float32


def test_a_second_backward_is_the_first() -> None:
    x, target = make_logits(POSITIONS, CLASSES).requires_grad_(), make_targets(POSITIONS)
    loss = F.cross_entropy(x, target)
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert_gradient(second, exact(x, target)[1], 1.0)


def test_a_class_out_of_range_raises_on_the_cpu() -> None:
    with pytest.raises(IndexError, match="Target 11 is out of bounds"):
        F.cross_entropy(make_logits(POSITIONS, CLASSES), torch.full((POSITIONS,), CLASSES))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_value_is_looked_at(reduction: str) -> None:
    """Fake tensors have no values: .item() and a shape that depends on one raise."""
    with FakeTensorMode():
        x = torch.empty(POSITIONS, CLASSES, requires_grad=True)
        F.cross_entropy(x, torch.empty(POSITIONS, dtype=torch.int64), reduction=reduction).sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


@linear_only
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_chunked_gradients_are_those_of_any_upstream_gradient(reduction: str) -> None:
    (hidden, weight), target = layer(), make_targets(POSITIONS, ignored=-100)
    loss = chunked(hidden, weight, target, reduction=reduction)
    upstream = make_logits(*loss.shape, seed=9)
    gradients = torch.autograd.grad(loss, (hidden, weight), upstream)
    of_logits = exact(hidden.double() @ weight.double().t(), target, upstream, reduction=reduction)[1]
    scale = POSITIONS * 10.0 * upstream.abs().max().item()  # a sum over classes or positions of products below 10
    assert_gradient(gradients[0], of_logits @ weight.detach().double(), scale)
    assert_gradient(gradients[1], of_logits.t() @ hidden.detach().double(), scale)


@linear_only
def test_a_second_backward_of_chunks_raises_unless_the_graph_is_retained_or_nothing_is_reduced() -> None:
    (hidden, weight), target = layer(), make_targets(POSITIONS)

    def gradients(loss: Tensor) -> list[Tensor]:
        upstream = torch.arange(1.0, POSITIONS + 1) if loss.dim() else None
        return [torch.autograd.grad(loss, weight, upstream, retain_graph=True)[0] for _ in range(2)]

    for reduction in ("mean", "sum"):
        with pytest.raises(RuntimeError, match="backward called twice"):
            gradients(chunked(hidden, weight, target, reduction=reduction))
        first, second = gradients(chunked(hidden, weight, target, retain=True, reduction=reduction))
        assert first.any() and torch.equal(first, second)
    first, second = gradients(chunked(hidden, weight, target, reduction="none"))
    assert first.any() and torch.equal(first, second)


@linear_only
def test_of_chunks_with_all_positions_ignored_the_gradient_is_nan_too() -> None:
    hidden, weight = layer()
    loss = chunked(hidden, weight, torch.full((POSITIONS,), -100))
    loss.backward()
    assert hidden.grad is not None and weight.grad is not None
    assert loss.isnan() and hidden.grad.isnan().all() and weight.grad.isnan().all()


@linear_only
def test_the_loss_of_chunks_has_the_type_of_the_input_also_under_autocast() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        (hidden, weight), target = layer(dtype), make_targets(POSITIONS)
        assert chunked(hidden, weight, target).dtype == dtype
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert chunked(hidden, weight, target).dtype == dtype


@linear_only
def test_chunks_raise_for_a_class_out_of_range_on_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="index 11 is out of bounds"):
        chunked(*layer(), torch.full((POSITIONS,), CLASSES))


@linear_only
@pytest.mark.parametrize("soft", [False, True])
def test_label_smoothing_and_class_probabilities_are_not_chunked(soft: bool) -> None:
    """Probabilities are from 2.14 on."""
    target = make_logits(POSITIONS, CLASSES).softmax(1) if soft else make_targets(POSITIONS)
    are_chunked = soft and chunks_probabilities
    with nullcontext() if are_chunked else pytest.warns(UserWarning, match="options.* ignored"):
        chunked(*layer(), target, label_smoothing=0.0 if soft else 0.1)
