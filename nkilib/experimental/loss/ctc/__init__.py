"""Connectionist temporal classification, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.ctc.host.row import CTC

__all__ = ["CTC", "ctc_loss_backward", "ctc_loss_forward"]

ctc_loss_forward = CTC.forward
ctc_loss_backward = CTC.backward
