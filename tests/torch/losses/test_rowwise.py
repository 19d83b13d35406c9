# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Row-wise losses beside PyTorch: long rows, layouts, rows without elements, and what each of them alone has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import nkilib.torch as ours
from tests.torch.functions.losses import (
    COSINE_EMBEDDING,
    MULTILABEL_SOFT_MARGIN,
    REDUCTIONS,
    ROWWISE,
    TRIPLET_MARGIN,
    Loss,
    forms_of,
)
from tests.torch.opinfo import call_of

every_loss = pytest.mark.parametrize("loss", ROWWISE, ids=lambda loss: loss.name)
every_form = pytest.mark.parametrize(("loss", "form"), forms_of(ROWWISE))


@every_form
def test_long_and_short_rows(loss: Loss, form: Mapping[str, Any]) -> None:
    calls = [
        call_of(*loss.inputs(*shape), reduction=reduction, **loss.keywords(form, *shape))
        for shape, reduction in (((6, 1100), "none"), ((300, 12), "mean"), ((3, 4, 20), "none"))
        if len(shape) <= loss.most_dims
    ]
    loss.checked().check(calls)


@every_loss
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_shapes_types_and_layouts(loss: Loss, reduction: str) -> None:
    inputs, options = loss.inputs(12, 20), {"reduction": reduction, **loss.keywords(loss.forms[-1], 12, 20)}
    first, *others = inputs
    calls = [
        call_of(*(_of_rows(tensor, lambda rows: rows.T.contiguous().T) for tensor in inputs), **options),
        call_of(
            *(_of_rows(tensor, lambda rows: rows[:, ::2]) for tensor in inputs), **loss.keywords({}, 12, 10)
        ),  # gaps
        call_of(first.detach().bfloat16().requires_grad_(), *others, **options),  # mixed types
        call_of(first, others[0][:1], *others[1:], **options),  # broadcast
        call_of(*(argument[0] for argument in inputs), **options),  # one row
    ]
    loss.checked().check([call.fresh(lambda tensor: tensor.detach()) for call in calls])


def _of_rows(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    changed = change(tensor.detach()) if tensor.dim() == 2 else tensor
    return changed.requires_grad_(tensor.requires_grad)


@every_loss
@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_elements(loss: Loss, shape: tuple[int, ...], reduction: str) -> None:
    inputs = [tensor.requires_grad_() if at == 0 else tensor for at, tensor in enumerate(loss.inputs(*shape))]
    result, expected = (f(*inputs, reduction=reduction) for f in (loss.ours, loss.theirs))
    torch.testing.assert_close(result, expected, equal_nan=True)
    (gradient,) = torch.autograd.grad(result.sum(), inputs[0])
    assert gradient.shape == shape


ROWS = TRIPLET_MARGIN.inputs(3, 4)
REFUSED: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "p": (
        lambda f: f.triplet_margin_loss(*TRIPLET_MARGIN.inputs(3, 4), p=0.5),
        NotImplementedError,
        "p must be at least 1",
    ),
    "margin": (
        lambda f: f.triplet_margin_loss(*TRIPLET_MARGIN.inputs(3, 4), margin="1"),
        TypeError,
        "'margin' must be",
    ),
    "swap": (lambda f: f.triplet_margin_loss(*TRIPLET_MARGIN.inputs(3, 4), swap=2.5), TypeError, "'swap' must be bool"),
    "module's margin": (lambda f: f.TripletMarginLoss(margin=0.0), ValueError, "margin must be greater than 0"),
    "2-D target": (
        lambda f: f.cosine_embedding_loss(*COSINE_EMBEDDING.inputs(3, 4)[:2], torch.ones(3, 1)),
        RuntimeError,
        "target must be 0-D or 1-D",
    ),
    "1-D inputs": (
        lambda f: f.cosine_embedding_loss(torch.ones(3), torch.ones(3), torch.ones(3)),
        RuntimeError,
        "a 1-D target goes with 2-D inputs",
    ),
    "row of one element": (
        lambda f: f.cosine_embedding_loss(torch.ones(3, 4), torch.ones(3, 1), torch.ones(3)),
        RuntimeError,
        "must have the same length",
    ),
    "no classes": (
        lambda f: f.multilabel_soft_margin_loss(torch.tensor(1.0), torch.tensor(1.0)),
        IndexError,
        "a dimension of classes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        call(ours)


def test_integers_as_pytorch_takes_them() -> None:
    rows = torch.arange(12).reshape(3, 4)
    calls = [
        (TRIPLET_MARGIN, call_of(rows, rows.flip(0), rows.flip(1), reduction="none")),
        (COSINE_EMBEDDING, call_of(rows, rows.flip(0), torch.tensor([1, -1, 0]), reduction="none")),
        (MULTILABEL_SOFT_MARGIN, call_of(torch.randn(3, 4), rows % 2, reduction="none")),
    ]
    for loss, call in calls:
        loss.checked().check([call])


def test_classes_along_a_dimension_that_is_not_the_last() -> None:
    """PyTorch takes the last dimension of the input, which broadcasting may put elsewhere."""
    x, t = torch.randn(4, requires_grad=True), torch.rand(3, 4)
    calls = [call_of(x, t, reduction=reduction) for reduction in REDUCTIONS]
    calls += [call_of(torch.randn(3, 1), t), call_of(torch.randn(3, 4), t, torch.rand(3, 4))]
    MULTILABEL_SOFT_MARGIN.checked().check([call.fresh() for call in calls])


@pytest.mark.parametrize("shape", [(4,), (1, 4), (3, 1), (3, 4), (1,), (), (2, 1, 4), (2, 3, 4)])
def test_gradients_of_the_weight(shape: tuple[int, ...]) -> None:
    """A weight of every shape that broadcasts has a gradient, beside the others and alone, in the weight's type."""
    x, t, weight = torch.randn(3, 4), torch.rand(3, 4), torch.rand(shape) + 0.125
    calls = [
        call_of(x.requires_grad_(flag), t.requires_grad_(flag), weight.requires_grad_(), reduction=reduction).fresh()
        for reduction in REDUCTIONS
        for flag in (False, True)
    ]
    calls.append(call_of(x.detach(), t.detach(), weight.detach().bfloat16().requires_grad_()))
    MULTILABEL_SOFT_MARGIN.checked().check(calls)


def test_the_gradient_of_weights_of_many_rows() -> None:
    loss, shapes = MULTILABEL_SOFT_MARGIN, [(300, 700), (2000, 5), (2, 3, 40)]
    calls = [
        call_of(*(tensor.detach() for tensor in loss.inputs(*shape)), torch.rand(shape[-1]).requires_grad_())
        for shape in shapes
    ]
    loss.checked().check(calls)


def test_small_losses_are_right() -> None:
    """Losses of logits far from 0 are right, with the labels that the logits say."""
    x = torch.tensor([[-20.0, 20.0], [-60.0, 90.0]], requires_grad=True)
    t = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    expected = F.multilabel_soft_margin_loss(x.detach().double(), t.double(), reduction="none")
    torch.testing.assert_close(
        ours.multilabel_soft_margin_loss(x, t, reduction="none").double(), expected, rtol=1e-6, atol=0.0
    )
