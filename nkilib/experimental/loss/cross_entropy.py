"""The cross-entropy kernels: the functions of :mod:`nkilib.experimental.loss.inline`, to be launched on their own.

loss, lse = cross_entropy_forward[2](logits, targets, ...)
grad = cross_entropy_backward[2](logits, targets, lse, ...)
"""

from __future__ import annotations

from nkilib.experimental.loss import inline
from nkilib.nki import nki

cross_entropy_forward = nki.jit(inline.cross_entropy_forward)
cross_entropy_backward = nki.jit(inline.cross_entropy_backward)
