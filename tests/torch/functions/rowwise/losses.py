"""The losses of rows beside PyTorch's: a table that the tests of this folder go through."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from tests.torch.opinfo import Budget
from tests.torch.paired_loss import PairedLoss, numbers


def labels(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """In (0, 1)."""
    return torch.rand(shape, generator=generator)


def signs(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1 and -1 for each row."""
    return torch.randn(shape[:-1], generator=generator).sign()


def class_weights(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Positive."""
    return torch.rand(shape[-1:], generator=generator) + 0.125


@dataclass(frozen=True)
class Loss(PairedLoss):
    """Of rows.

    Attributes:
        most_dims: of the first tensor.
        has_module_info: whether ``ModuleInfo`` lists the module.
    """

    most_dims: int = 3
    has_module_info: bool = True
    gradients: Budget = field(default_factory=lambda: Budget(of_type=4.0, of_float32=64.0))


LOSSES: Final = (
    Loss(
        "triplet_margin_loss",
        "TripletMarginLoss",
        (numbers, numbers, numbers),
        3,
        ({}, {"swap": True, "margin": 2.5}, {"p": 1, "eps": 0.125}, {"p": float("inf"), "swap": True}, {"p": 3.5}),
        has_module_info=False,
        values=Budget(of_float32=2048.0),  # of p = 1: a sum of 1100 numbers
    ),
    Loss(
        "cosine_embedding_loss",
        "CosineEmbeddingLoss",
        (numbers, numbers, signs),
        2,
        ({}, {"margin": -0.25}),
        most_dims=2,
    ),
    Loss(
        "multilabel_soft_margin_loss",
        "MultiLabelSoftMarginLoss",
        (numbers, labels),
        2,
        ({}, {"weight": class_weights}),
    ),
)
