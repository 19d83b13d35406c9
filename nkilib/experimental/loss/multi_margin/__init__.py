"""The margin between a target and the other classes, to be launched on its own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.multi_margin import kernels
from nkilib.experimental.loss.multi_margin.host.guarantees import (
    MULTI_MARGIN_LOSS_BACKWARD,
    MULTI_MARGIN_LOSS_FORWARD,
)
from nkilib.experimental.loss.multi_margin.host.work import backward_work, forward_work

__all__ = ["multi_margin_loss_backward", "multi_margin_loss_forward"]

multi_margin_loss_forward = launchable(kernels.multi_margin_loss_forward, MULTI_MARGIN_LOSS_FORWARD, forward_work)
multi_margin_loss_backward = launchable(kernels.multi_margin_loss_backward, MULTI_MARGIN_LOSS_BACKWARD, backward_work)
