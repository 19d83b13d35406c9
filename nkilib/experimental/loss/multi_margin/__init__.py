"""The margin between a target and the other classes, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.multi_margin import kernels
from nkilib.experimental.loss.multi_margin.host.guarantees import (
    MULTI_MARGIN_LOSS_BACKWARD,
    MULTI_MARGIN_LOSS_FORWARD,
)
from nkilib.experimental.loss.multi_margin.host.work import backward_work, forward_work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["multi_margin_loss_backward", "multi_margin_loss_forward"]

multi_margin_loss_forward = nki.jit(
    states_guarantee(MULTI_MARGIN_LOSS_FORWARD)(states_work(forward_work)(kernels.multi_margin_loss_forward))
)
multi_margin_loss_backward = nki.jit(
    states_guarantee(MULTI_MARGIN_LOSS_BACKWARD)(states_work(backward_work)(kernels.multi_margin_loss_backward))
)
