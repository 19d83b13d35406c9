# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``multilabel_margin_loss`` beside PyTorch: sizes, what is refused, and its derivative."""

from __future__ import annotations

import pytest
import torch

from nkilib.torch import multilabel_margin_loss
from tests.torch.functions.losses import MULTILABEL_MARGIN, Refused
from tests.torch.opinfo import call_of

inputs = MULTILABEL_MARGIN.inputs


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_sizes_shapes_and_strides(reduction: str) -> None:
    x, target = inputs(140, 37)
    turned, gaps = x.detach().T.contiguous().T.requires_grad_(), x.detach()[:, ::2].requires_grad_()
    whole = torch.arange(9).flip(0)  # no -1 at all
    calls = [
        call_of(x, target, reduction=reduction),
        call_of(turned, target.to(torch.int16), reduction=reduction),
        call_of(gaps, inputs(140, 19)[1], reduction=reduction),
        call_of(inputs(9)[0], whole, reduction=reduction),
        call_of(*inputs(1, 9), reduction=reduction),
        call_of(torch.tensor(2.0, requires_grad=True), torch.tensor(0), reduction=reduction),
        call_of(torch.tensor([2.0], requires_grad=True), torch.tensor(0), reduction=reduction),
    ]
    MULTILABEL_MARGIN.checked().check(calls)


REFUSED: Refused = {
    "reduction": (lambda f: f(*inputs(3, 4), reduction="avg"), "'avg' is not a valid value for reduction"),
    "three dimensions": (lambda f: f(torch.ones(3, 4, 2), torch.zeros(3, 4, 2).long()), "non-empty vector or matrix"),
    "no classes": (lambda f: f(torch.ones(3, 0), torch.zeros(3, 0).long()), "non-empty vector or matrix"),
    "shape": (lambda f: f(inputs(3, 4)[0], inputs(3, 3)[1]), "inconsistent target size"),
    "out of range": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, 4, 1, -1]])), "out of range: row 0 has 4"),
    "behind the end": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, -1, 9, -1]])), "out of range: row 0 has 9"),
    "negative": (lambda f: f(inputs(1, 4)[0], torch.tensor([[0, -2, 1, -1]])), "out of range: row 0 has -2"),
    "target of floats": (lambda f: f(inputs(3, 4)[0], torch.zeros(3, 4)), "integer type"),
    "integers": (lambda f: f(torch.ones(3, 4).long(), inputs(3, 4)[1]), "int64"),
    "no tensor": (lambda f: f([1.0], torch.zeros(1).long()), "must be Tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_as_pytorch_refuses_it(name: str) -> None:
    MULTILABEL_MARGIN.check_refused(REFUSED[name])


@pytest.mark.filterwarnings("ignore:Input #. requires gradient")
def test_gradcheck() -> None:
    """A step of 2^-6 in float32: a difference of two keeps 2^-17 of them. No term is within a step of its edge."""
    x = torch.tensor([[0.0, 0.25, -0.5, 1.5, -2.0], [1.0, 3.0, 0.5, 0.25, 1.75]], requires_grad=True)
    target = torch.tensor([[1, 3, -1, 0, 0], [4, 4, 0, -1, 0]])
    assert torch.autograd.gradcheck(
        lambda x: multilabel_margin_loss(x, target), (x,), eps=2.0**-6, atol=1e-4, rtol=1e-3
    )
