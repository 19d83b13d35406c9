"""The losses of elements beside PyTorch's: a table that the tests of this folder go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch as ours
from tests.torch.opinfo import Budget

# A sum adds the roundings of its terms.
SUMS: Final = Budget(of_float32=64.0)
# Likewise, of squares and products: those of samples are up to 16 times the largest number.
SUMS_OF_SQUARES: Final = Budget(of_float32=1024.0)

# Likewise, of 102,000 weighted terms: a third of what rounds such a sum once more.
WEIGHTED_SUMS: Final = Budget(of_float32=8192.0)


def numbers(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal ones."""
    return torch.randn(shape, generator=generator)


def positive(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """From 1/8 on."""
    return torch.randn(shape, generator=generator).abs() + 0.125


def signs(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """1 and -1."""
    return torch.randn(shape, generator=generator).sign()


@dataclass(frozen=True)
class Loss:
    """A function of ours and PyTorch's.

    Attributes:
        name: of both.
        module: of both.
        tensors: what makes each of the tensors that every call has, in the order of the arguments.
        differentiated: how many of them, from the first one on, PyTorch gives a gradient of.
        forms: keywords of calls, each another formula; tensors of them are made from generator and shape.
        module_forms: the keywords of the module that are those.
        mixed: PyTorch's type of reduced losses of a bfloat16 and a float32 tensor.
        values, gradients: what may be off from PyTorch in float64, beside the rounding.
    """

    name: str
    module: str
    tensors: Sequence[Callable[[torch.Generator, tuple[int, ...]], Tensor]] = (numbers, numbers)
    differentiated: int = 2
    forms: Sequence[Mapping[str, Any]] = ({},)
    module_forms: Sequence[Mapping[str, Any]] = ({},)
    mixed: torch.dtype = torch.float32
    values: Budget = SUMS
    gradients: Budget = field(default_factory=lambda: Budget(of_type=4.0, of_float32=16.0))

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
    Loss("mse_loss", "MSELoss", forms=({}, {"weight": positive}), values=SUMS_OF_SQUARES),
    Loss("l1_loss", "L1Loss", forms=({}, {"weight": positive}), values=WEIGHTED_SUMS),
    Loss("smooth_l1_loss", "SmoothL1Loss", forms=({}, {"beta": 0.3}), module_forms=({}, {"beta": 0.3})),
    Loss(
        "huber_loss",
        "HuberLoss",
        forms=({"delta": 0.6}, {"weight": positive}),
        module_forms=({}, {"delta": 0.6}),
        values=SUMS_OF_SQUARES,
        mixed=torch.bfloat16,
    ),
    Loss(
        "hinge_embedding_loss",
        "HingeEmbeddingLoss",
        tensors=(numbers, signs),
        differentiated=1,
        mixed=torch.bfloat16,
        forms=({}, {"margin": 0.4}),
        module_forms=({}, {"margin": 0.4}),
    ),
    Loss(
        "margin_ranking_loss",
        "MarginRankingLoss",
        tensors=(numbers, numbers, signs),
        differentiated=3,
        forms=({}, {"margin": 0.4}),
        module_forms=({}, {"margin": 0.4}),
    ),
)
