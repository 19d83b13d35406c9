"""The cross-entropy kernels, to be launched on their own; :mod:`nkilib.experimental.loss.inline` has the functions.

loss, lse = cross_entropy_forward[2](logits, targets, ...)
grad = cross_entropy_backward[2](logits, targets, lse, ...)
"""

from __future__ import annotations

from nkilib.experimental.loss.cross_entropy import extended_kernels, kernels
from nkilib.experimental.loss.cross_entropy.host.work import (
    backward_work,
    extended_backward_work,
    extended_forward_work,
    forward_work,
)
from nkilib.nki import nki

__all__ = [
    "cross_entropy_backward",
    "cross_entropy_forward",
    "extended_cross_entropy_backward",
    "extended_cross_entropy_forward",
]

# Where nkilib.simulator.profile looks for what a kernel works on; states_work does the same, but needs the simulator.
vars(kernels.cross_entropy_forward)["work"] = forward_work
vars(kernels.cross_entropy_backward)["work"] = backward_work
vars(extended_kernels.extended_cross_entropy_forward)["work"] = extended_forward_work
vars(extended_kernels.extended_cross_entropy_backward)["work"] = extended_backward_work

cross_entropy_forward = nki.jit(kernels.cross_entropy_forward)
cross_entropy_backward = nki.jit(kernels.cross_entropy_backward)
extended_cross_entropy_forward = nki.jit(extended_kernels.extended_cross_entropy_forward)
extended_cross_entropy_backward = nki.jit(extended_kernels.extended_cross_entropy_backward)
