"""Distillation from logits, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.distillation.host.row import BACKWARD, FORWARD

__all__ = ["distillation_backward", "distillation_forward"]

distillation_forward = FORWARD
distillation_backward = BACKWARD
