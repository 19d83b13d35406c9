# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""``fuse_linear_loss`` under the trainer of ``transformers``, in training and in evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from nkilib.torch.transformers import NoLogits, fuse_linear_loss
from tests.torch.transformers.models import (
    GRADIENT_BUDGET,
    VOCABULARY,
    Windows,
    llama,
    padded_batch,
    pair,
    training_arguments,
)


def test_the_trainer_accumulates_evaluates_and_predicts_as_with_the_stock_model(tmp_path: Path) -> None:
    from transformers import Trainer

    stock, ours = pair(llama)
    fuse_linear_loss(ours)
    histories, evaluations = [], []
    for model in (stock, ours):
        trainer = Trainer(model, training_arguments(tmp_path), train_dataset=Windows(), eval_dataset=Windows())
        trainer.train()
        histories.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        evaluations.append(trainer.evaluate()["eval_loss"])
        assert trainer.predict(Windows()).predictions.shape[-1] == VOCABULARY
    assert len(histories[0]) == 3 and histories[0][-1] < histories[0][0]
    # What the trainer logs is rounded to four digits after the point.
    assert histories[1] == pytest.approx(histories[0], abs=1.1e-4)
    assert evaluations[1] == pytest.approx(evaluations[0], abs=1.1e-4)
    for theirs, parameter in zip(stock.parameters(), ours.parameters(), strict=True):
        assert (parameter - theirs).norm() <= 1e-4 * theirs.norm()


class _Wrapper(nn.Module):
    """A wrapper like the one that PEFT puts around a model: it calls the model's ``forward`` itself."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model.forward(**inputs)


@pytest.mark.parametrize("is_wrapped_first", [True, False])
def test_a_wrapped_model_with_frozen_parameters(is_wrapped_first: bool) -> None:
    stock, ours = pair(llama)
    for model in (stock, ours):
        model.train().requires_grad_(False)
        model.model.layers[0].self_attn.q_proj.weight.requires_grad_()
    wrapper = _Wrapper(ours)
    fuse_linear_loss(wrapper if is_wrapped_first else ours)
    output = wrapper(**padded_batch())
    assert isinstance(output.logits, NoLogits)
    output.loss.backward()
    stock(**padded_batch()).loss.backward()
    actual, exact = (item.model.layers[0].self_attn.q_proj.weight.grad for item in (ours, stock))
    assert exact.norm() > 0 and ours.lm_head.weight.grad is None
    assert (actual - exact).norm() <= GRADIENT_BUDGET[exact.dtype] * exact.norm()
