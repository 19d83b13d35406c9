# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""What the modules of losses have in common: they keep arguments, and hand them to the function."""

from __future__ import annotations

from torch import Tensor, nn


class LossModule(nn.Module):
    """A loss that can be reduced, and whose backward can write over its input.

    Args:
        reduction, inplace: as for the function.
    """

    def __init__(self, reduction: str, inplace: bool) -> None:
        super().__init__()
        self.reduction = reduction
        self.inplace = inplace


class WeightedLossModule(LossModule):
    """One with a weight.

    Args:
        weight: kept as a buffer that moves with the module.
        reduction, inplace: as for the function.
    """

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, reduction: str, inplace: bool) -> None:
        super().__init__(reduction, inplace)
        self.register_buffer("weight", weight)
