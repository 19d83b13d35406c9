# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-class margin loss, to be launched on their own."""

from nkilib.experimental.loss.multi_margin.row import (
    MULTI_MARGIN,
    multi_margin_loss_backward,
    multi_margin_loss_forward,
)

__all__ = ["MULTI_MARGIN", "multi_margin_loss_backward", "multi_margin_loss_forward"]
