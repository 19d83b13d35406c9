# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Adapters of PEFT around a model of ``transformers``, before it is fused and after."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn

from nkilib.torch import fuse_linear_loss, fused_calls

if find_spec("peft") is None or find_spec("transformers") is None:
    pytest.skip("needs peft and transformers", allow_module_level=True)

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "LoRA in the trunk": {"target_modules": ["q_proj", "down_proj"]},
    "a copy of the head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "LoRA on the head": {"target_modules": ["q_proj", "lm_head"]},
    "LoRA on the head, dropout": {"target_modules": ["lm_head"], "lora_dropout": 0.3},
    "rank-stabilized LoRA": {"target_modules": ["lm_head"], "use_rslora": True, "r": 24},
}


def _adapted(made: nn.Module, name: str) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    adapted = get_peft_model(made, LoraConfig(**{"r": 4, "init_lora_weights": False, **CONFIGURATIONS[name]}))
    return adapted.train()


def _step(made: Any) -> tuple[float, dict[str, torch.Tensor]]:
    from tests.torch.transformers.models import padded_batch

    torch.manual_seed(4)  # dropout
    loss = made(**padded_batch()).loss
    loss.backward()
    return loss.item(), {name: item.grad for name, item in made.named_parameters() if item.grad is not None}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_adapted_model_is_fused(name: str) -> None:
    from tests.torch.transformers.models import LOSS_BUDGET, largest_share, llama, pair

    stock = _adapted(pair(llama)[0], name)
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours, on_compute="raise")
    (expected, exact), (loss, gradients) = _step(stock), _step(ours)
    assert abs(loss - expected) <= 4 * LOSS_BUDGET
    assert largest_share(gradients, exact) <= 1e-5
    assert fused_calls(ours).fused == {"cross_entropy": 1}
    with ours.disable_adapter():
        assert fused_calls(ours).computed == {} and ours(torch.ones(1, 3, dtype=torch.int64)).logits.shape[1] == 3


@pytest.mark.parametrize("name", ["LoRA in the trunk", "a copy of the head"])
def test_a_fused_model_is_adapted(name: str) -> None:
    from tests.torch.transformers.models import LOSS_BUDGET, largest_share, llama, pair

    made, other = pair(llama)
    fuse_linear_loss(other, on_compute="raise")
    stock, ours = _adapted(made, name), _adapted(other, name)
    (expected, exact), (loss, gradients) = _step(stock), _step(ours)
    assert abs(loss - expected) <= LOSS_BUDGET and largest_share(gradients, exact) <= 1e-5
