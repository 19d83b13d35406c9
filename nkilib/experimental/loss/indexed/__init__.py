"""Losses of the element at a target, to be launched on their own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.indexed import kernels
from nkilib.experimental.loss.indexed.host.guarantees import NLL_LOSS_BACKWARD, NLL_LOSS_FORWARD
from nkilib.experimental.loss.indexed.host.work import nll_loss_backward_work, nll_loss_forward_work

__all__ = ["nll_loss_backward", "nll_loss_forward"]

nll_loss_forward = launchable(kernels.nll_loss_forward, NLL_LOSS_FORWARD, nll_loss_forward_work)
nll_loss_backward = launchable(kernels.nll_loss_backward, NLL_LOSS_BACKWARD, nll_loss_backward_work)
