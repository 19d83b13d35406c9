# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Small models of ``transformers`` with random parameters, batches for them, and how far their gradients are apart."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from tests.torch.inputs import make_targets
from tests.torch.telling import UNIT

if TYPE_CHECKING:
    from transformers import PreTrainedModel, TrainingArguments

VOCABULARY, BATCH, LENGTH = 301, 3, 12
# A loss is log-sum-exp minus target, each rounded to float32 with 16 u of log V, which is below 6; the stock one too.
LOSS_BUDGET = 2 * 16 * UNIT * 6
# Of a parameter's gradient in float32, as a share of its norm: what rounding moves, as both sides sum in other orders.
GRADIENT_BUDGET = {torch.float32: 16 * UNIT}

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
Make = Callable[[], "PreTrainedModel"]


def llama(**further: Any) -> PreTrainedModel:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**{**_SIZES, **further}))


def qwen2() -> PreTrainedModel:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_SIZES, tie_word_embeddings=True))


def qwen3() -> PreTrainedModel:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**_SIZES, head_dim=8))


def mistral() -> PreTrainedModel:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**_SIZES, sliding_window=8))


def gemma2() -> PreTrainedModel:
    """Return a model with tied embeddings, as it is published, and a cap that bends its logits."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    return Gemma2ForCausalLM(Gemma2Config(**_SIZES, head_dim=8, final_logit_softcapping=0.5))


def pair(make: Make, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The stock model, and another one with the same parameters."""
    torch.manual_seed(0)
    stock = make().to(dtype)
    return stock, copy.deepcopy(stock)


def padded_batch(seed: int = 1) -> dict[str, Tensor]:
    """Tokens, and labels of which two rows end early."""
    ids = make_targets(BATCH, LENGTH, classes=VOCABULARY, seed=seed)
    labels, mask = ids.clone(), torch.ones_like(ids)
    for row, end in ((1, 7), (2, 3)):
        labels[row, end:] = -100
        mask[row, end:] = 0
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


class Windows(torch.utils.data.Dataset):
    """Padded rows of unlike numbers of targets, by turns."""

    def __len__(self) -> int:
        return 2 * BATCH

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: values[row % BATCH] for name, values in padded_batch(seed=1 + row // BATCH).items()}


def training_arguments(directory: object, **further: Any) -> TrainingArguments:
    """Return the arguments of a trainer that takes three steps of three micro-batches."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(directory),
        max_steps=3,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=BATCH,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
        **further,
    )


def gradients_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients of the model's parameters, by name; every parameter has a gradient."""
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.dtype == parameter.dtype
        gradients[name] = parameter.grad
    return gradients


def largest_share(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> float:
    """The largest difference of two gradients of one name, as a share of the expected norm."""
    assert actual.keys() == expected.keys()
    shares = []
    for name, gradient in expected.items():
        exact = gradient.double()
        assert exact.norm() > 0, f"{name} has no gradient to compare"
        shares.append(float((actual[name].double() - exact).norm() / exact.norm()))
    return max(shares)


def difference(actual: torch.nn.Module, expected: torch.nn.Module) -> float:
    """The largest difference of a parameter's gradients, as a share of the expected norm."""
    return largest_share(gradients_of(actual), gradients_of(expected))


def logit_gradient_and_loss(model: PreTrainedModel, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The gradient of the logits of a backward, and the loss; the parameters have their gradients then."""
    outputs = model(**batch)
    outputs.logits.retain_grad()
    outputs.loss.backward()
    return outputs.logits.grad, outputs.loss


def assert_rounded_alike(actual: Tensor, expected: Tensor) -> None:
    """Two roundings to bfloat16 of what differs in float32 by some units: every element is the other's neighbour."""
    off = (actual.double() - expected.double()).abs()
    assert bool((off <= 2.0**-7 * expected.double().abs()).all())


def gradient_budget(stock: PreTrainedModel, batch: Mapping[str, Any]) -> float:
    """Return the error allowed of a parameter's gradient, as a share of its norm; ``stock`` has gradients of the batch.

    In bfloat16 one logit's gradient that is rounded the other way changes roundings of all that follows, so two right
    backwards differ by up to the error of each. That of the stock model is measured: a copy of it in float64 knows the
    exact gradients.
    """
    dtype = next(stock.parameters()).dtype
    if dtype in GRADIENT_BUDGET:
        return GRADIENT_BUDGET[dtype]
    exact = copy.deepcopy(stock).double()
    exact.zero_grad()
    exact(**batch).loss.backward()
    return 2.0 * difference(stock, exact)
