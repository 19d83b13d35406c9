"""The extended kernels: the functions of :mod:`nkilib.experimental.loss.extended_inline`, to be launched on their own.

loss, lse, target_logit, position_weight = extended_cross_entropy_forward[2](logits, targets, ...)
grad = extended_cross_entropy_backward[2](logits, targets, lse, grad_loss, ...)
"""

from __future__ import annotations

from nkilib.experimental.loss import extended_inline
from nkilib.experimental.loss.work import extended_backward_work, extended_forward_work
from nkilib.nki import nki

# Where nkilib.simulator.profile looks for what a kernel works on; states_work does the same, but needs the simulator.
vars(extended_inline.extended_cross_entropy_forward)["work"] = extended_forward_work
vars(extended_inline.extended_cross_entropy_backward)["work"] = extended_backward_work

extended_cross_entropy_forward = nki.jit(extended_inline.extended_cross_entropy_forward)
extended_cross_entropy_backward = nki.jit(extended_inline.extended_cross_entropy_backward)
