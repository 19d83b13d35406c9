# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Softmax, log-softmax and their gradients as plain functions to call from NKI code.

A kernel of yours calls these: the NKI compiler inlines functions, and refuses a call of something that is a kernel
itself (``nki/migration/index.rst``, "Remove nki.jit decorator on sub-kernels"). To launch them on their own, take the
kernels of the same names in :mod:`nkilib.experimental.softmax`.
"""

from nkilib.experimental.softmax.kernels import (
    log_softmax_backward,
    log_softmax_forward,
    softmax_backward,
    softmax_forward,
)

__all__ = ["log_softmax_backward", "log_softmax_forward", "softmax_backward", "softmax_forward"]
