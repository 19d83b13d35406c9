# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along any axis, and their gradients from the saved output, as kernels to launch.

:mod:`nkilib.experimental.softmax.inline` offers them as functions to call from NKI code.

y = softmax_forward[2](x, axis)
grad_x = softmax_backward[2](grad, y, axis)
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
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

__all__ = [
    "SoftmaxTiling",
    "choose_softmax_tiling",
    "log_softmax_backward",
    "log_softmax_forward",
    "softmax_backward",
    "softmax_forward",
]

softmax_forward = launchable(kernels.softmax_forward, SOFTMAX_FORWARD, softmax_forward_work)
log_softmax_forward = launchable(kernels.log_softmax_forward, LOG_SOFTMAX_FORWARD, softmax_forward_work)
softmax_backward = launchable(kernels.softmax_backward, SOFTMAX_BACKWARD, softmax_backward_work)
log_softmax_backward = launchable(kernels.log_softmax_backward, LOG_SOFTMAX_BACKWARD, log_softmax_backward_work)
