# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``torch.nn.functional.linear_cross_entropy`` replaced by an assignment: what PyTorch builds on it follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import nkilib.torch
from tests.torch.inputs import CLASSES, gradient_of, make_logits, make_targets
from tests.torch.of_pytorch import linear_only

pytestmark = linear_only

POSITIONS, FEATURES = 6, 16


@pytest.mark.parametrize("options", [{}, {"bias": True, "reduction": "none"}, {"ignore_index": 3, "reduction": "sum"}])
def test_the_module_of_pytorch_calls_what_is_assigned(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = torch.nn.LinearCrossEntropyLoss(FEATURES, CLASSES, **options, dtype=torch.bfloat16)
    x = make_logits(POSITIONS, FEATURES, spread=1.0).bfloat16().requires_grad_()
    target = make_targets(POSITIONS)
    assert module(x, target).dtype == torch.bfloat16
    monkeypatch.setattr(torch.nn.functional, "linear_cross_entropy", nkilib.torch.linear_cross_entropy)
    loss = module(x, target)
    assert loss.dtype == torch.float32  # which PyTorch's is not

    def ours() -> Tensor:
        keywords = {name: value for name, value in options.items() if name != "bias"}
        return nkilib.torch.linear_cross_entropy(
            x, module.linear.weight, target, linear_bias=module.linear.bias, **keywords
        )

    assert torch.equal(loss, ours())
    upstream = torch.ones_like(loss)
    assert torch.equal(gradient_of(loss, x, upstream), gradient_of(ours(), x, upstream))
