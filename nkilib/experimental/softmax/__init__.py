"""The softmax kernels, to be launched on their own; :mod:`nkilib.experimental.softmax.inline` has the functions.

y = softmax_forward[2](x, axis)
grad_x = softmax_backward[2](grad, y, axis)
"""

from __future__ import annotations

from nkilib.experimental.softmax import kernels
from nkilib.nki import nki

__all__ = ["log_softmax_backward", "log_softmax_forward", "softmax_backward", "softmax_forward"]

softmax_forward = nki.jit(kernels.softmax_forward)
log_softmax_forward = nki.jit(kernels.log_softmax_forward)
softmax_backward = nki.jit(kernels.softmax_backward)
log_softmax_backward = nki.jit(kernels.log_softmax_backward)
