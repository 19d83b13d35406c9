"""Distillation from logits, to be launched on its own."""

from __future__ import annotations

from nkilib.experimental.loss.distillation import kernels
from nkilib.experimental.loss.distillation.host.guarantees import DISTILLATION_BACKWARD, DISTILLATION_FORWARD
from nkilib.experimental.loss.distillation.host.work import backward_work, forward_trips, forward_work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_trips, states_work

__all__ = ["distillation_backward", "distillation_forward"]

distillation_forward = nki.jit(
    states_guarantee(DISTILLATION_FORWARD)(
        states_trips(forward_trips)(states_work(forward_work)(kernels.distillation_forward))
    )
)
distillation_backward = nki.jit(
    states_guarantee(DISTILLATION_BACKWARD)(states_work(backward_work)(kernels.distillation_backward))
)
