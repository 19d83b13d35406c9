# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses that read the element at a target, as kernels that are launched on their own."""

from nkilib.experimental.loss.nll.row import NLL, nll_loss_backward, nll_loss_forward

__all__ = ["NLL", "nll_loss_backward", "nll_loss_forward"]
