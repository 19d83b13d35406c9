# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cross-entropy kernels, for direct launches.

Example::

    loss, lse = cross_entropy_forward[2](logits, targets, ...)
    grad = cross_entropy_backward[2](logits, targets, lse, ...)

:mod:`nkilib.experimental.loss.inline` has the same functions, to be called from other kernels.
"""

from nkilib.experimental.loss.cross_entropy.row import (
    CROSS_ENTROPY,
    cross_entropy_backward,
    cross_entropy_forward,
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)

__all__ = [
    "CROSS_ENTROPY",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "extended_cross_entropy_backward",
    "extended_cross_entropy_forward",
]
