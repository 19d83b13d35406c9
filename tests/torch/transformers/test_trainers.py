# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The trainer of ``transformers`` with losses as its ``compute_loss_func``, which multiplies what they return in place,
and with ``fuse_linear_loss``, in training and in evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import LazyLogits, fuse_linear_loss, linear_cross_entropy, mse_loss
from tests.torch.inputs import make_logits, make_targets
from tests.torch.transformers.models import (
    GRADIENT_BUDGET,
    VOCABULARY,
    Windows,
    llama,
    padded_batch,
    pair,
    training_arguments,
)

FEATURES, CLASSES, EXAMPLES = 16, 11, 6


class Model(nn.Module):
    """Hidden states, and the results of an output layer; a loss gets the weight of that too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:  # labels: for the trainer
        hidden = self.hidden(inputs)
        return {"hidden": hidden, "weight": self.head.weight, "logits": self.head(hidden)}


class Examples(torch.utils.data.Dataset):
    """Inputs and labels, numbers or classes."""

    def __init__(self, labels: Tensor) -> None:
        self.inputs, self.labels = make_logits(EXAMPLES, FEATURES), labels

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[row], "labels": self.labels[row]}


Loss = Callable[..., Tensor]
# The labels, and a function of ours and of PyTorch with the arguments of the trainer.
LOSSES: dict[str, tuple[Tensor, Loss, Loss]] = {
    "mse_loss": (
        make_logits(EXAMPLES, CLASSES, seed=2),
        lambda outputs, labels, **_: mse_loss(outputs["logits"], labels),
        lambda outputs, labels, **_: F.mse_loss(outputs["logits"], labels),
    ),
    "linear_cross_entropy": (
        make_targets(EXAMPLES, classes=CLASSES),
        lambda outputs, labels, **_: linear_cross_entropy(
            outputs["hidden"], outputs["weight"], labels, memory_limit=2**30
        ),
        lambda outputs, labels, **_: F.cross_entropy(outputs["logits"], labels),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_trainer_takes_a_loss(name: str, tmp_path: Path) -> None:
    from transformers import Trainer

    labels, *functions = LOSSES[name]
    trained: list[Any] = []
    for function in functions:
        arguments = training_arguments(tmp_path)
        trainer = Trainer(Model(), arguments, train_dataset=Examples(labels), compute_loss_func=function)
        trainer.train()
        trained.append([parameter.detach() for parameter in trainer.model.parameters()])
    for start, actual, expected in zip(Model().parameters(), *trained, strict=True):
        assert not torch.equal(start, expected)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


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
    assert isinstance(output.logits, LazyLogits)
    output.loss.backward()
    stock(**padded_batch()).loss.backward()
    actual, exact = (item.model.layers[0].self_attn.q_proj.weight.grad for item in (ours, stock))
    assert exact.norm() > 0 and ours.lm_head.weight.grad is None
    assert (actual - exact).norm() <= GRADIENT_BUDGET[exact.dtype] * exact.norm()
