"""Losses of the element at a target, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.nll.host.row import NLL

__all__ = ["NLL", "nll_loss_backward", "nll_loss_forward"]

nll_loss_forward = NLL.forward
nll_loss_backward = NLL.backward
