"""Losses of rows, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.rowwise import triplet_kernels
from nkilib.experimental.loss.rowwise.host.guarantees import TRIPLET_BACKWARD, TRIPLET_FORWARD
from nkilib.experimental.loss.rowwise.host.work import (
    triplet_margin_loss_backward_work,
    triplet_margin_loss_forward_work,
)
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["triplet_margin_loss_backward", "triplet_margin_loss_forward"]

triplet_margin_loss_forward = nki.jit(
    states_guarantee(TRIPLET_FORWARD)(
        states_work(triplet_margin_loss_forward_work)(triplet_kernels.triplet_margin_loss_forward)
    )
)
triplet_margin_loss_backward = nki.jit(
    states_guarantee(TRIPLET_BACKWARD)(
        states_work(triplet_margin_loss_backward_work)(triplet_kernels.triplet_margin_loss_backward)
    )
)
