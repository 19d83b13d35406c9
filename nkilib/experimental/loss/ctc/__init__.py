"""Connectionist temporal classification, to be launched on its own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.ctc import kernels
from nkilib.experimental.loss.ctc.host.guarantees import CTC_LOSS_BACKWARD, CTC_LOSS_FORWARD
from nkilib.experimental.loss.ctc.host.work import ctc_loss_backward_work, ctc_loss_forward_work

__all__ = ["ctc_loss_backward", "ctc_loss_forward"]

ctc_loss_forward = launchable(kernels.ctc_loss_forward, CTC_LOSS_FORWARD, ctc_loss_forward_work)
ctc_loss_backward = launchable(kernels.ctc_loss_backward, CTC_LOSS_BACKWARD, ctc_loss_backward_work)
