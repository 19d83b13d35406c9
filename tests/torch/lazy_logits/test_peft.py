# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Adapters of PEFT around a model of ``transformers``, before it is fused and after, and quantized output layers."""

from __future__ import annotations

import copy
import warnings
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nkilib.torch import LogitsComputedWarning, fuse_linear_loss, fused_calls

if find_spec("peft") is None or find_spec("transformers") is None:
    pytest.skip("needs peft and transformers", allow_module_level=True)

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "LoRA in the trunk": {"target_modules": ["q_proj", "down_proj"]},
    "a copy of the head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "LoRA on the head": {"target_modules": ["q_proj", "lm_head"]},
    "LoRA on the head, dropout": {"target_modules": ["lm_head"], "lora_dropout": 0.3},
    "rank-stabilized LoRA": {"target_modules": ["lm_head"], "use_rslora": True, "r": 24},
}


# Of models whose output layer has the weight of the embeddings.
_TIED: dict[str, Any] = {"target_modules": ["q_proj"], "ensure_weight_tying": True}
TIED: dict[str, dict[str, Any]] = {
    "a copy of the head for both": {**_TIED, "modules_to_save": ["lm_head"]},
    "a copy of the embeddings for both": {**_TIED, "modules_to_save": ["embed_tokens"]},
    "a copy of each for both": {**_TIED, "modules_to_save": ["embed_tokens", "lm_head"]},
    "a copy of each": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "LoRA on both": {**_TIED, "target_modules": ["embed_tokens", "lm_head"]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "trained tokens": {**_TIED, "trainable_token_indices": {"embed_tokens": [1, 2, 3]}},
    "DoRA on the head": {"target_modules": ["lm_head"], "use_dora": True},
}
ALL = {**CONFIGURATIONS, **TIED, **OTHERS}


def _adapted(made: nn.Module, name: str) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    adapted = get_peft_model(made, LoraConfig(**{"r": 4, "init_lora_weights": False, **ALL[name]}))
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


def _three_steps(made: Any) -> tuple[list[float], dict[str, Tensor]]:
    """The losses, and the gradients of the last step."""
    optimizer = torch.optim.SGD([item for item in made.parameters() if item.requires_grad], lr=0.01)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for _ in range(3):
        optimizer.zero_grad()
        loss, gradients = _step(made)
        losses.append(loss)
        optimizer.step()
    return losses, gradients


def _tied() -> Any:
    from tests.torch.transformers.models import llama

    return llama(tie_word_embeddings=True)


@pytest.mark.parametrize("name", TIED)
def test_a_head_with_the_weight_of_the_embeddings_trains_without_logits(name: str) -> None:
    from tests.torch.transformers.models import largest_share, pair

    stock, ours = (_adapted(made, name) for made in pair(_tied))
    undo = fuse_linear_loss(ours, on_compute="raise")
    (expected, exact), (losses, gradients) = _three_steps(stock), _three_steps(ours)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert largest_share(gradients, exact) <= 1e-5
    assert fused_calls(ours).fused == {"cross_entropy": 3}
    undo()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in ours.modules())


@pytest.mark.parametrize("is_fused_first", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_an_adapter_that_multiplies_otherwise_computes_logits_and_says_so(name: str, is_fused_first: bool) -> None:
    from tests.torch.transformers.models import pair

    made, other = pair(_tied)
    if is_fused_first:
        fuse_linear_loss(other)
    stock, ours = _adapted(made, name), _adapted(other, name)
    if not is_fused_first:
        fuse_linear_loss(ours)
    with pytest.warns(LogitsComputedWarning, match="needs logits"):
        losses, gradients = _three_steps(ours)
    expected, exact = _three_steps(stock)
    assert losses == expected and all(torch.equal(gradients[key], exact[key]) for key in exact)
    assert fused_calls(ours).computed and not fused_calls(ours).fused


def test_a_copy_that_peft_makes_of_a_fused_tied_head_says_that_it_is_not_fused() -> None:
    from tests.torch.transformers.models import pair

    made, other = pair(_tied)
    fuse_linear_loss(other)
    name = "a copy of the head for both"
    stock, ours = _adapted(made, name), _adapted(other, name)
    with pytest.warns(LogitsComputedWarning, match=r"the output layer \(ModulesToSaveWrapper, which .* another weight"):
        losses, _ = _three_steps(ours)
    assert losses == _three_steps(stock)[0]
    (place,) = fused_calls(ours).computed
    assert place.function.startswith("the output layer")


class _Packed(nn.Linear):
    """A layer with a weight of int8 and a scale, as layers of bitsandbytes have them: it multiplies by another weight
    than its own.
    """

    scale: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False)
        largest = layer.weight.detach().abs().amax(1, keepdim=True)
        self.register_buffer("scale", largest / 127)
        packed = (layer.weight.detach() / self.scale).round().to(torch.int8)
        self.weight = nn.Parameter(packed.flatten()[:, None], requires_grad=False)

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input, self.weight.view(self.out_features, -1) * self.scale)


@pytest.mark.parametrize("adapted", ["LoRA in the trunk", "LoRA on the head", None])
def test_a_quantized_head_computes_logits_and_says_so(adapted: str | None) -> None:
    from tests.torch.transformers.models import llama, pair

    made = pair(llama)
    results = []
    for model in made:
        model.lm_head = _Packed(model.lm_head)
        model.train()
    stock, ours = made if adapted is None else (_adapted(model, adapted) for model in made)
    with pytest.warns(LogitsComputedWarning, match=r"must be a torch.nn.Linear.*_Packed, whose logits are computed"):
        fuse_linear_loss(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LogitsComputedWarning)
        results = [_step(model) for model in (stock, ours)]
    (expected, exact), (loss, gradients) = results
    assert loss == expected and exact and all(torch.equal(gradients[key], exact[key]) for key in exact)
