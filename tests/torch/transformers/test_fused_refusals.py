# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The refusals of ``fuse_linear_loss``, and the object that stands in the place of logits."""

from __future__ import annotations

import copy
import functools
import pickle
from types import MethodType

import pytest
import torch
from torch import nn

from nkilib.torch.transformers import NoLogits, causal_lm_loss, fuse_linear_loss
from tests.torch.fake_group import two_ranks
from tests.torch.transformers.models import llama, padded_batch, qwen2


class _Adapted(nn.Module):
    """A module in the place of a layer, like LoRA's."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight


def test_models_that_it_does_not_know() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaForCausalLM

    class _Own(LlamaForCausalLM):
        def forward(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            return super().forward(*args, **kwargs)

    with pytest.raises(TypeError, match=r"argument 'model' must be torch.nn.Module, not str"):
        fuse_linear_loss("llama")  # type: ignore[arg-type]
    other = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(TypeError, match=r"one of Gemma2.*Qwen3ForCausalLM .*got GPT2LMHeadModel; .*causal_lm_loss"):
        fuse_linear_loss(other)
    with pytest.raises(TypeError, match="forward of LlamaForCausalLM, got _Own with one of its own"):
        fuse_linear_loss(_Own(llama().config))
    with pytest.raises(ValueError, match="must hold one causal language model, got 2 in ModuleList"):
        fuse_linear_loss(nn.ModuleList([llama(), llama()]))


def test_output_layers_that_are_more_than_a_product() -> None:
    before, after = llama(), llama().train()
    before.lm_head = _Adapted(before.lm_head)
    with pytest.raises(TypeError, match=r"lm_head must be a torch.nn.Linear.*got .*_Adapted; .*PEFT"):
        fuse_linear_loss(before)
    fuse_linear_loss(after)
    handle = after.lm_head.register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match="lm_head must have no hooks"):
        after(**padded_batch())
    handle.remove()
    after.lm_head = _Adapted(after.lm_head)
    with pytest.raises(TypeError, match=r"lm_head must be a torch.nn.Linear"):
        after(**padded_batch())
    rows = llama()
    rows.config.vocab_size += 1
    with pytest.raises(ValueError, match=r"as many rows as config.vocab_size, 302, got 301"):
        fuse_linear_loss(rows)


@pytest.mark.parametrize("is_fused_first", [True, False])
def test_a_tied_head_that_fully_shard_got_without_the_embedding(is_fused_first: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    both = r"both in one group, and got lm_head without the embedding; .*fully_shard\(\[model.model.embed_tokens"
    with two_ranks():
        model = qwen2().train()
        if is_fused_first:
            fuse_linear_loss(model)
        fully_shard(model.lm_head)
        with pytest.raises(ValueError, match=both):
            model(**padded_batch()) if is_fused_first else fuse_linear_loss(model)


def test_a_hook_of_others_on_a_head_that_is_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    with two_ranks():
        model = llama()
        fully_shard(model.lm_head)
        fuse_linear_loss(model)()
        model.lm_head.register_forward_pre_hook(lambda *given: None)
        with pytest.raises(ValueError, match="lm_head must have no hooks but those of fully_shard"):
            fuse_linear_loss(model)


def test_losses_and_forwards_of_others() -> None:
    model = llama()
    model.loss_function = functools.partial(causal_lm_loss, label_smoothing=0.1)
    with pytest.raises(ValueError, match="loss_function must be that of transformers, or causal_lm_loss"):
        fuse_linear_loss(model)
    model.loss_function = causal_lm_loss
    model.forward = MethodType(lambda self, **inputs: None, model)
    with pytest.raises(ValueError, match=r"model.forward must be that of its class"):
        fuse_linear_loss(model)
    del model.forward
    fuse_linear_loss(model)


def test_no_logits_refuses_every_use_and_says_what_to_do() -> None:
    logits = NoLogits()
    uses = [
        lambda: logits.argmax(-1),
        lambda: logits[:, -1],
        lambda: logits / 2,
        lambda: torch.argmax(logits),
        lambda: torch.ones(2) * logits,
    ]
    for use in uses:
        with pytest.raises((AttributeError, RuntimeError), match="skip_logits=False"):
            use()
    output = llama().train()
    fuse_linear_loss(output)
    result = output(**padded_batch()).logits
    assert copy.deepcopy(result) is result and pickle.loads(pickle.dumps(result)) is result
    assert not hasattr(result, "shape") and "without logits" in repr(result)
