"""Losses of the element at a target, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.indexed import kernels
from nkilib.experimental.loss.indexed.host.guarantees import NLL_LOSS_BACKWARD, NLL_LOSS_FORWARD
from nkilib.experimental.loss.indexed.host.work import nll_loss_backward_work, nll_loss_forward_work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["nll_loss_backward", "nll_loss_forward"]

nll_loss_forward = nki.jit(
    states_guarantee(NLL_LOSS_FORWARD)(states_work(nll_loss_forward_work)(kernels.nll_loss_forward))
)
nll_loss_backward = nki.jit(
    states_guarantee(NLL_LOSS_BACKWARD)(states_work(nll_loss_backward_work)(kernels.nll_loss_backward))
)
