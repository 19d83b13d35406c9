"""Distillation from logits, to be launched on its own."""

from nkilib.experimental.loss.distillation.host.row import distillation_backward, distillation_forward

__all__ = ["distillation_backward", "distillation_forward"]
