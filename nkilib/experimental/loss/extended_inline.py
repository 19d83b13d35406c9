# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy with the options of training recipes, as plain functions to call from NKI code.

To launch one of them on its own, use the kernel of the same name in :mod:`nkilib.experimental.loss.extended`.
"""

from nkilib.experimental.loss.cross_entropy.kernels import (
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)

__all__ = ["extended_cross_entropy_backward", "extended_cross_entropy_forward"]
