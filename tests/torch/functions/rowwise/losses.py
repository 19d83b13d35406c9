"""The losses of rows beside PyTorch's: a table that the tests of this folder go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch as ours
from tests.torch.opinfo import Budget

Makes = Callable[[torch.Generator, tuple[int, ...]], Tensor]


def numbers(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal ones."""
    return torch.randn(shape, generator=generator)


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
class Loss:
    """A function of ours and PyTorch's.

    Attributes:
        name: of both.
        module: of both.
        tensors: what makes each of the tensors that every call has, in the order of the arguments.
        differentiated: how many of them, from the first one on, PyTorch gives a gradient of.
        forms: keywords of calls, each another formula; tensors of them are made from generator and shape.
        most_dims: of the first tensor.
        values, gradients: what may be off from PyTorch in float64, beside the rounding.
        has_module_info: whether ``ModuleInfo`` lists the module.
    """

    name: str
    module: str
    tensors: Sequence[Makes]
    differentiated: int
    forms: Sequence[Mapping[str, Any]]
    most_dims: int = 3
    has_module_info: bool = True
    values: Budget = field(default_factory=lambda: Budget(of_float32=64.0))
    gradients: Budget = field(default_factory=lambda: Budget(of_type=4.0, of_float32=64.0))

    @property
    def ours(self) -> Callable[..., Tensor]:
        """The function of :mod:`nkilib.torch`."""
        return getattr(ours, self.name)  # type: ignore[no-any-return]

    @property
    def theirs(self) -> Callable[..., Tensor]:
        """That of ``torch.nn.functional``."""
        return getattr(F, self.name)  # type: ignore[no-any-return]

    @property
    def our_module(self) -> type[nn.Module]:
        """That of :mod:`nkilib.torch`."""
        return getattr(ours, self.module)  # type: ignore[no-any-return]

    @property
    def their_module(self) -> type[nn.Module]:
        """That of ``torch.nn``."""
        return getattr(nn, self.module)  # type: ignore[no-any-return]

    def inputs(self, *shape: int) -> list[Tensor]:
        """The tensors of a call, which require grad where there is a gradient."""
        generator = torch.Generator().manual_seed(sum(shape))
        found = [make(generator, shape) for make in self.tensors]
        return [each.requires_grad_(at < self.differentiated) for at, each in enumerate(found)]

    def keywords(self, form: Mapping[str, Any], *shape: int) -> dict[str, Any]:
        """Those of a form, with its tensors."""
        generator = torch.Generator().manual_seed(7)
        return {name: value(generator, shape) if callable(value) else value for name, value in form.items()}


LOSSES: Final = (
    Loss(
        "triplet_margin_loss",
        "TripletMarginLoss",
        (numbers, numbers, numbers),
        3,
        ({}, {"swap": True, "margin": 2.5}, {"p": 1, "eps": 0.125}, {"p": float("inf"), "swap": True}),
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
