# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The bounds of docs/reference/softmax.md hold through PyTorch, on rows of several scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nkilib.experimental.softmax.host import bounds
from tests.torch.functions.softmax.of_pytorch import CHECKED, NAMES
from tests.torch.inputs import make_logits

FORWARD: dict[str, Callable[..., Any]] = {"softmax": bounds.softmax_bound, "log_softmax": bounds.log_softmax_bound}
BACKWARD: dict[str, Callable[..., Any]] = {
    "softmax": bounds.softmax_backward_bound,
    "log_softmax": bounds.log_softmax_backward_bound,
}


@pytest.mark.parametrize("spread", [1.0, 30.0, 5000.0])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_results_and_gradients_are_within_the_bounds(name: str, dim: int, spread: float) -> None:
    x = make_logits(130, 140, spread=spread).requires_grad_()
    dy = make_logits(130, 140, seed=1)
    y = CHECKED[name].ours(x, dim)
    (dx,) = torch.autograd.grad(y, x, dy)
    exact = CHECKED[name].theirs(x.detach().double(), dim)
    allowed = FORWARD[name](x.detach().numpy(), dim, np.float32)
    assert np.all((y.detach().double() - exact).abs().numpy() <= allowed)
    upstream, saved = dy.double(), y.detach().double()
    of_saved = {
        "softmax": saved * (upstream - (saved * upstream).sum(dim, keepdim=True)),
        "log_softmax": upstream - saved.exp() * upstream.sum(dim, keepdim=True),
    }[name]
    allowed = BACKWARD[name](dy.numpy(), y.detach().numpy(), dim, np.float32)
    assert np.all((dx.double() - of_saved).abs().numpy() <= allowed)
