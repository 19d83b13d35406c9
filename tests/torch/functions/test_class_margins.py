# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multi_margin_loss`` and ``multilabel_margin_loss`` beside PyTorch: sizes, what is refused, and derivatives."""

from __future__ import annotations

import pytest
import torch

from nkilib.torch import MultiMarginLoss, multi_margin_loss, multilabel_margin_loss
from tests.torch.functions.losses import MULTI_MARGIN, MULTILABEL_MARGIN, Refused
from tests.torch.opinfo import call_of

labelled = MULTI_MARGIN.inputs


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_sizes_shapes_and_strides(p: int, reduction: str) -> None:
    weight = torch.linspace(0.1, 1.0, 37)
    options = {"p": p, "margin": 0.75, "reduction": reduction}
    x, target = labelled(300, 37)
    turned = x.detach().T.contiguous().T.requires_grad_()
    gaps = x.detach()[:, ::2].requires_grad_()
    calls = [
        call_of(x, target, weight=weight, **options),
        call_of(x, target.to(torch.int16), **options),
        call_of(turned, target, weight=weight.double(), **options),
        call_of(gaps, target % 19, **options),
        call_of(*labelled(2, 5000), **options),
        call_of(*labelled(9), **options),
        call_of(labelled(9)[0], torch.tensor([3]), **options),
        call_of(labelled(1, 9)[0], torch.tensor(3), **options),
        call_of(torch.tensor(2.0, requires_grad=True), torch.tensor(0), **options),
    ]
    MULTI_MARGIN.checked().check(calls)


REFUSED_BY_MULTI_MARGIN: Refused = {
    "reduction": (lambda f: f(*labelled(3, 4), reduction="avg"), "'avg' is not a valid value for reduction"),
    "three dimensions": (lambda f: f(torch.ones(3, 4, 2), torch.zeros(3).long()), "non-empty vector or matrix"),
    "no classes": (lambda f: f(torch.ones(3, 0), torch.zeros(3).long()), "non-empty vector or matrix"),
    "batch": (
        lambda f: f(labelled(3, 4)[0], labelled(4, 4)[1]),
        r"Expected target size \[3\], but got \[4\]",
    ),
    "matrix of targets": (
        lambda f: f(labelled(3, 4)[0], torch.zeros(1, 3).long()),
        "target tensor should be 1-D",
    ),
    "target of floats": (lambda f: f(labelled(3, 4)[0], torch.zeros(3)), "integer type"),
    "out of range": (
        lambda f: f(labelled(3, 4)[0], torch.tensor([0, 4, 1])),
        "out of range: row 1 has class 4",
    ),
    "negative": (
        lambda f: f(labelled(3, 4)[0], torch.tensor([0, 1, -1])),
        "out of range: row 2 has class -1",
    ),
    "p": (lambda f: f(*labelled(3, 4), p=3), "only p == 1 and p == 2 supported"),
    "weight of rows": (
        lambda f: f(*labelled(3, 4), weight=torch.ones(3)),
        "weight tensor should be defined",
    ),
    "matrix of weights": (lambda f: f(*labelled(3, 4), weight=torch.ones(4, 1)), "one-dimensional"),
    "weight that learns": (
        lambda f: f(*labelled(3, 4), weight=torch.ones(4, requires_grad=True)),
        "'weight'",
    ),
    "integers": (lambda f: f(torch.ones(3, 4).long(), torch.zeros(3).long()), "int64"),
    "margin": (lambda f: f(*labelled(3, 4), margin="1"), "margin"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1).long()), "must be Tensor"),
}


@pytest.mark.parametrize("name", REFUSED_BY_MULTI_MARGIN)
def test_multi_margin_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    MULTI_MARGIN.check_refused(REFUSED_BY_MULTI_MARGIN[name])


def test_what_pytorch_takes_and_ours_refuses() -> None:
    with pytest.raises(ValueError, match="margin must be finite"):
        multi_margin_loss(*labelled(3, 4), margin=float("inf"))
    for weight, p in ((None, 3), (torch.ones(4, 1), 1)):  # PyTorch's module refuses both too
        with pytest.raises(ValueError, match=r"only p == 1|one-dimensional"):
            MultiMarginLoss(p, weight=weight)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_gradcheck(p: int) -> None:
    """A step of 2^-6 in float32: a difference of two keeps 2^-17 of them, of a square its step cancels. No hinge is
    within a step of its edge.
    """
    x = torch.tensor([[0.0, 0.25, -0.5, 1.5, -2.0], [1.0, 3.0, 0.5, 0.25, 1.75]], requires_grad=True)
    target = torch.tensor([1, 4])
    assert torch.autograd.gradcheck(
        lambda x: multi_margin_loss(x, target, p, 0.6), (x,), eps=2.0**-6, atol=1e-4, rtol=1e-3
    )


label_lists = MULTILABEL_MARGIN.inputs


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_multilabel_margin_sizes_shapes_and_strides(reduction: str) -> None:
    x, target = label_lists(140, 37)
    turned, gaps = x.detach().T.contiguous().T.requires_grad_(), x.detach()[:, ::2].requires_grad_()
    whole = torch.arange(9).flip(0)  # no -1 at all
    calls = [
        call_of(x, target, reduction=reduction),
        call_of(turned, target.to(torch.int16), reduction=reduction),
        call_of(gaps, label_lists(140, 19)[1], reduction=reduction),
        call_of(label_lists(9)[0], whole, reduction=reduction),
        call_of(*label_lists(1, 9), reduction=reduction),
        call_of(torch.tensor(2.0, requires_grad=True), torch.tensor(0), reduction=reduction),
        call_of(torch.tensor([2.0], requires_grad=True), torch.tensor(0), reduction=reduction),
    ]
    MULTILABEL_MARGIN.checked().check(calls)


REFUSED_BY_MULTILABEL_MARGIN: Refused = {
    "reduction": (lambda f: f(*label_lists(3, 4), reduction="avg"), "'avg' is not a valid value for reduction"),
    "three dimensions": (lambda f: f(torch.ones(3, 4, 2), torch.zeros(3, 4, 2).long()), "non-empty vector or matrix"),
    "no classes": (lambda f: f(torch.ones(3, 0), torch.zeros(3, 0).long()), "non-empty vector or matrix"),
    "shape": (lambda f: f(label_lists(3, 4)[0], label_lists(3, 3)[1]), "inconsistent target size"),
    "out of range": (
        lambda f: f(label_lists(1, 4)[0], torch.tensor([[0, 4, 1, -1]])),
        "out of range: row 0 has 4",
    ),
    "behind the end": (
        lambda f: f(label_lists(1, 4)[0], torch.tensor([[0, -1, 9, -1]])),
        "out of range: row 0 has 9",
    ),
    "negative": (lambda f: f(label_lists(1, 4)[0], torch.tensor([[0, -2, 1, -1]])), "out of range: row 0 has -2"),
    "target of floats": (lambda f: f(label_lists(3, 4)[0], torch.zeros(3, 4)), "integer type"),
    "integers": (lambda f: f(torch.ones(3, 4).long(), label_lists(3, 4)[1]), "int64"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1).long()), "must be Tensor"),
}


@pytest.mark.parametrize("name", REFUSED_BY_MULTILABEL_MARGIN)
def test_multilabel_margin_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    MULTILABEL_MARGIN.check_refused(REFUSED_BY_MULTILABEL_MARGIN[name])


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_multilabel_margin_gradcheck() -> None:
    """A step of 2^-6 in float32: a difference of two keeps 2^-17 of them. No term is within a step of its edge."""
    x = torch.tensor([[0.0, 0.25, -0.5, 1.5, -2.0], [1.0, 3.0, 0.5, 0.25, 1.75]], requires_grad=True)
    target = torch.tensor([[1, 3, -1, 0, 0], [4, 4, 0, -1, 0]])
    assert torch.autograd.gradcheck(
        lambda x: multilabel_margin_loss(x, target), (x,), eps=2.0**-6, atol=1e-4, rtol=1e-3
    )
