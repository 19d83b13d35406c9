"""Losses of elements, on one skeleton, to be launched on their own."""

from __future__ import annotations

from nkilib.experimental.loss.elementwise import kernels
from nkilib.experimental.loss.elementwise.host.guarantees import KL_DIV_BACKWARD, KL_DIV_FORWARD
from nkilib.experimental.loss.elementwise.host.work import kl_div_backward_work, kl_div_forward_work
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = ["kl_div_backward", "kl_div_forward"]

kl_div_forward = nki.jit(states_guarantee(KL_DIV_FORWARD)(states_work(kl_div_forward_work)(kernels.kl_div_forward)))
kl_div_backward = nki.jit(states_guarantee(KL_DIV_BACKWARD)(states_work(kl_div_backward_work)(kernels.kl_div_backward)))
