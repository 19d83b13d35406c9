# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Losses of the element at a target, to be launched on their own."""

from nkilib.experimental.loss.nll.row import NLL, nll_loss_backward, nll_loss_forward

__all__ = ["NLL", "nll_loss_backward", "nll_loss_forward"]
