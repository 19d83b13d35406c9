"""The margin between a target and the other classes, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.multi_margin.host.row import MULTI_MARGIN

__all__ = ["MULTI_MARGIN", "multi_margin_loss_backward", "multi_margin_loss_forward"]

multi_margin_loss_forward = MULTI_MARGIN.forward
multi_margin_loss_backward = MULTI_MARGIN.backward
