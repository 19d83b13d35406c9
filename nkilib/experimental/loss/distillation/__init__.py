"""Distillation from logits, to be launched on its own."""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.loss.distillation import kernels
from nkilib.experimental.loss.distillation.host.guarantees import DISTILLATION_BACKWARD, DISTILLATION_FORWARD
from nkilib.experimental.loss.distillation.host.work import backward_work, forward_trips, forward_work

__all__ = ["distillation_backward", "distillation_forward"]

distillation_forward = launchable(kernels.distillation_forward, DISTILLATION_FORWARD, forward_work, forward_trips)
distillation_backward = launchable(kernels.distillation_backward, DISTILLATION_BACKWARD, backward_work)
