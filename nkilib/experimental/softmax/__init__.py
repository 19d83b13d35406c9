"""Softmax and log-softmax along any axis, and their gradients from the saved output, as kernels to launch.

:mod:`nkilib.experimental.softmax.inline` has them as functions to call from NKI code.

y = softmax_forward[2](x, axis)
grad_x = softmax_backward[2](grad, y, axis)
"""

from __future__ import annotations

from nkilib.experimental.softmax import kernels
from nkilib.experimental.softmax.host.guarantees import (
    LOG_SOFTMAX_BACKWARD,
    LOG_SOFTMAX_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
)
from nkilib.experimental.softmax.host.tiling import choose_softmax_tiling
from nkilib.experimental.softmax.host.work import (
    log_softmax_backward_work,
    softmax_backward_work,
    softmax_forward_work,
)
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.guarantee import states_guarantee
from nkilib.nki import nki
from nkilib.work import states_work

__all__ = [
    "SoftmaxTiling",
    "choose_softmax_tiling",
    "log_softmax_backward",
    "log_softmax_forward",
    "softmax_backward",
    "softmax_forward",
]

softmax_forward = nki.jit(states_guarantee(SOFTMAX_FORWARD)(states_work(softmax_forward_work)(kernels.softmax_forward)))
log_softmax_forward = nki.jit(
    states_guarantee(LOG_SOFTMAX_FORWARD)(states_work(softmax_forward_work)(kernels.log_softmax_forward))
)
softmax_backward = nki.jit(
    states_guarantee(SOFTMAX_BACKWARD)(states_work(softmax_backward_work)(kernels.softmax_backward))
)
log_softmax_backward = nki.jit(
    states_guarantee(LOG_SOFTMAX_BACKWARD)(states_work(log_softmax_backward_work)(kernels.log_softmax_backward))
)
