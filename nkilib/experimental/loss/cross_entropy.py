"""The cross-entropy kernels: the functions of :mod:`nkilib.experimental.loss.inline`, to be launched on their own.

loss, lse = cross_entropy_forward[2](logits, targets, ...)
grad = cross_entropy_backward[2](logits, targets, lse, ...)
"""

from __future__ import annotations

from nkilib.experimental.loss import inline
from nkilib.experimental.loss.work import backward_work, forward_work
from nkilib.nki import nki

# Where nkilib.simulator.profile looks for what a kernel works on; states_work does the same, but needs the simulator.
vars(inline.cross_entropy_forward)["work"] = forward_work
vars(inline.cross_entropy_backward)["work"] = backward_work

cross_entropy_forward = nki.jit(inline.cross_entropy_forward)
cross_entropy_backward = nki.jit(inline.cross_entropy_backward)
