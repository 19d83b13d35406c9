# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses as ``compute_loss_func`` of the trainer of ``transformers``, which multiplies what they return in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import linear_cross_entropy, mse_loss
from tests.torch.inputs import make_logits, make_targets
from tests.torch.transformers.models import training_arguments

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
