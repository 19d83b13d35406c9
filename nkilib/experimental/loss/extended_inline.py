# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Cross-entropy with the options of training recipes, as plain functions to call from NKI code.

They relate to the kernels of :mod:`nkilib.experimental.loss.extended` as the functions of
:mod:`nkilib.experimental.loss.inline` relate to the plain kernels.
"""

from nkilib.experimental.loss.cross_entropy.kernels import (
    extended_cross_entropy_backward,
    extended_cross_entropy_forward,
)

__all__ = ["extended_cross_entropy_backward", "extended_cross_entropy_forward"]
