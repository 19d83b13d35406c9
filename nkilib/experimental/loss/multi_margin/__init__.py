# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The margin between a target and the other classes, as kernels that are launched on their own."""

from nkilib.experimental.loss.multi_margin.row import (
    MULTI_MARGIN,
    multi_margin_loss_backward,
    multi_margin_loss_forward,
)

__all__ = ["MULTI_MARGIN", "multi_margin_loss_backward", "multi_margin_loss_forward"]
