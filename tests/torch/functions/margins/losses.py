"""The losses of margins between classes beside PyTorch's, as a table: what holds for both is tested once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nkilib.torch import MultiLabelMarginLoss, MultiMarginLoss, multi_margin_loss, multilabel_margin_loss


@dataclass(frozen=True)
class Loss:
    """A loss.

    Attributes:
        name: of the functions.
        module: of the classes.
        ours, our_module: of this library.
        pytorch, their_module: PyTorch's.
        inputs: scores that require grad, and targets, for a shape.
    """

    name: str
    module: str
    ours: Callable[..., Tensor]
    our_module: type[nn.Module]
    pytorch: Callable[..., Tensor]
    their_module: type[nn.Module]
    inputs: Callable[..., tuple[Tensor, Tensor]]

    def theirs(self, input: Tensor, target: Tensor, *args: Any, **keywords: Any) -> Tensor:
        """PyTorch's, which takes float32 and float64 alone on a CPU, int64 targets, and weights of the same type."""
        computed = input.double() if input.dtype == torch.float64 else input.float()
        if keywords.get("weight") is not None:
            keywords["weight"] = keywords["weight"].to(computed.dtype)
        loss = self.pytorch(computed, target.long(), *args, **keywords)
        return loss.to(input.dtype) if keywords.get("reduction") == "none" else loss


def one_target(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores [N, C] or [C], and a class for each row."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    return x.requires_grad_(), torch.randint(shape[-1], shape[:-1], generator=generator)


def lists_of_targets(*shape: int) -> tuple[Tensor, Tensor]:
    """Scores [N, C] or [C], and lists of up to six classes."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(shape, generator=generator)
    target = torch.randint(shape[-1], shape, generator=generator)
    rows = target.view(-1, shape[-1])
    for row in range(len(rows)):
        rows[row, row % min(7, shape[-1])] = -1
    return x.requires_grad_(), target


MULTI_MARGIN = Loss(
    "multi_margin_loss",
    "MultiMarginLoss",
    multi_margin_loss,
    MultiMarginLoss,
    F.multi_margin_loss,
    nn.MultiMarginLoss,
    one_target,
)
MULTILABEL_MARGIN = Loss(
    "multilabel_margin_loss",
    "MultiLabelMarginLoss",
    multilabel_margin_loss,
    MultiLabelMarginLoss,
    F.multilabel_margin_loss,
    nn.MultiLabelMarginLoss,
    lists_of_targets,
)
LOSSES = (MULTI_MARGIN, MULTILABEL_MARGIN)
