"""Connectionist temporal classification, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.ctc import kernels
from nkilib.experimental.loss.ctc.host.guarantees import CTC_LOSS_BACKWARD, CTC_LOSS_FORWARD
from nkilib.experimental.loss.ctc.host.work import ctc_loss_backward_work, ctc_loss_forward_work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["ctc_loss_backward", "ctc_loss_forward"]

ctc_loss_forward = nki.jit(
    states_guarantee(CTC_LOSS_FORWARD)(states_work(ctc_loss_forward_work)(kernels.ctc_loss_forward))
)
ctc_loss_backward = nki.jit(
    states_guarantee(CTC_LOSS_BACKWARD)(states_work(ctc_loss_backward_work)(kernels.ctc_loss_backward))
)
