# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax and log-softmax along any axis, and their gradients from the saved output, as kernels to launch.

:mod:`nkilib.experimental.softmax.inline` offers them as functions to call from NKI code.

y = softmax_forward[2](x, axis)
grad_x = softmax_backward[2](grad, y, axis)

Modules: ``kernels``: signatures and checks; ``inline``: the functions for NKI code; ``tensors``: views [O, C, I], modes
and types.
Rows, for the last axis: ``rows`` and ``rows_backward``: the loops; ``row_plan``: pieces, partitions and batches;
``row_schedule``: the order of steps; ``row_statistics``: maxima and sums. ``columns``: the loops for other axes.
Host code: ``tiling`` and ``tiling_choice``: the tiling and its choice; ``guarantees``: guarantees, work, references and
bounds; ``profiling``: launches to profile.
"""

from __future__ import annotations

from nkilib.core.host.launchable import launchable
from nkilib.experimental.softmax import kernels
from nkilib.experimental.softmax.guarantees import (
    LOG_SOFTMAX_BACKWARD,
    LOG_SOFTMAX_FORWARD,
    SOFTMAX_BACKWARD,
    SOFTMAX_FORWARD,
    log_softmax_backward_work,
    softmax_backward_work,
    softmax_forward_work,
)
from nkilib.experimental.softmax.tiling import SoftmaxTiling
from nkilib.experimental.softmax.tiling_choice import choose_softmax_tiling

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
