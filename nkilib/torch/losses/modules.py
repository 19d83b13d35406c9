# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Base classes of loss modules, which store the options and pass them to the function of the loss: :class:`LossModule`,
and :class:`WeightedLossModule` for a loss with a weight.
"""

from __future__ import annotations

from torch import Tensor, nn


class LossModule(nn.Module):
    """A base class for a loss with a reduction, whose backward can write over its input.

    Args:
        reduction, inplace: see the function of the loss.
    """

    def __init__(self, reduction: str, inplace: bool) -> None:
        super().__init__()
        self.reduction = reduction
        self.inplace = inplace


class WeightedLossModule(LossModule):
    """A base class for a loss with a reduction and a weight.

    Args:
        weight: the weight, kept as a buffer that moves with the module.
        reduction, inplace: see the function of the loss.
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, reduction: str, inplace: bool) -> None:
        super().__init__(reduction, inplace)
        self.register_buffer("weight", weight)
