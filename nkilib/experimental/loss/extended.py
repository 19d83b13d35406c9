# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The cross-entropy kernels with the options of training recipes, such as label smoothing, z-loss and a softcap.

Launch them on their own::

    loss, lse, target_logit, position_weight = extended_cross_entropy_forward[2](logits, targets, ...)
    grad = extended_cross_entropy_backward[2](logits, targets, lse, grad_loss, ...)

In NKI code, call the functions of the same names in :mod:`nkilib.experimental.loss.extended_inline` instead.
"""

from nkilib.experimental.loss.cross_entropy.registry_entry import (
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)

__all__ = ["extended_cross_entropy_backward", "extended_cross_entropy_forward"]
