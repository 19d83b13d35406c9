# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-label margin loss, to be launched on their own."""

from nkilib.experimental.loss.multilabel_margin.row import (
    MULTILABEL_MARGIN,
    multilabel_margin_loss_backward,
    multilabel_margin_loss_forward,
)

__all__ = ["MULTILABEL_MARGIN", "multilabel_margin_loss_backward", "multilabel_margin_loss_forward"]
