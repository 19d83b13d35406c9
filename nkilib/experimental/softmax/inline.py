# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax, log-softmax and their gradients as plain functions to call from NKI code.

Call these functions from your own kernel: the NKI compiler inlines functions, and rejects a call of a function that
is a kernel itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch one of them on
its own, use the kernel of the same name in :mod:`nkilib.experimental.softmax`.
"""

from nkilib.experimental.softmax.kernels import (
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)

__all__ = ["log_softmax_backward", "log_softmax_forward", "softmax_backward", "softmax_forward"]
