# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""A small model with an output layer, stock and fused, and the same function of the logits of both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nkilib.torch import fuse_linear_loss
from tests.torch.inputs import make_logits

BATCH, LENGTH, FEATURES, VOCABULARY = 2, 5, 16, 37
# Functions of logits [BATCH, LENGTH, VOCABULARY].
Use = Callable[[Any], Any]


class Model(nn.Module):
    """A trunk of one layer, and an output layer."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Linear(FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, VOCABULARY, bias=bias)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.trunk(inputs))
        return logits


def model(bias: bool = False, dtype: torch.dtype = torch.float32) -> Model:
    """A model with random parameters, whose logits are as large as those of a model that has learnt."""
    torch.manual_seed(0)
    made = Model(bias)
    with torch.no_grad():
        made.head.weight.mul_(8.0)
    return made.to(dtype).train()


def inputs(dtype: torch.dtype = torch.float32) -> Tensor:
    """Inputs of the model, [BATCH, LENGTH, FEATURES]."""
    return make_logits(BATCH, LENGTH, FEATURES, dtype=dtype, spread=1.0)


@dataclass
class Both:
    """A model as it is, and a fused copy; what is lazy raises where it is computed."""

    stock: Model
    ours: Model

    def results(self, use: Use) -> tuple[Any, Any]:
        """Return what a function gives for the logits of the stock model, and for the lazy ones of the same inputs."""
        batch = inputs(self.stock.head.weight.dtype)
        return use(self.stock(batch)), use(self.ours(batch))


def both(bias: bool = False, dtype: torch.dtype = torch.float32, **options: Any) -> Both:
    """The two models."""
    stock = model(bias, dtype)
    ours = copy.deepcopy(stock)
    fuse_linear_loss(ours, head="head", **{"on_compute": "raise", **options})
    return Both(stock, ours)
