# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The multi-label soft margin loss: :mod:`.formula` has its definition in instructions, :mod:`.kernels` the
kernels.

For host code, :mod:`.host.reference` has the reference and :mod:`.row` the registry entry.
"""

from nkilib.experimental.loss.multilabel_soft_margin.kernels import (
    multilabel_soft_margin_loss_backward,
    multilabel_soft_margin_loss_forward,
)
from nkilib.experimental.loss.multilabel_soft_margin.row import MULTILABEL_SOFT_MARGIN

__all__ = [
    "MULTILABEL_SOFT_MARGIN",
    "multilabel_soft_margin_loss_backward",
    "multilabel_soft_margin_loss_forward",
]
