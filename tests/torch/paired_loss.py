"""A loss of ours beside PyTorch's, as a row of the tables that tests of many losses go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nkilib.torch as ours
from tests.torch.opinfo import Budget
from tests.torch.reduced import SUMS

Makes = Callable[[torch.Generator, tuple[int, ...]], Tensor]


def numbers(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    """Normal ones."""
    return torch.randn(shape, generator=generator)


@dataclass(frozen=True)
class PairedLoss:
    """A function of ours and PyTorch's.

    Attributes:
        name: of both.
        module: of both.
        tensors: what makes each of the tensors that every call has, in the order of the arguments.
        differentiated: how many of them, from the first one on, PyTorch gives a gradient of.
        forms: keywords of calls, each another formula; tensors of them are made from generator and shape.
        values, gradients: what may be off from PyTorch in float64, beside the rounding.
    """

    name: str
    module: str
    tensors: Sequence[Makes] = (numbers, numbers)
    differentiated: int = 2
    forms: Sequence[Mapping[str, Any]] = ({},)
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
