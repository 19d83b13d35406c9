# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the negative log-likelihood loss, to be launched on their own."""

from nkilib.experimental.loss.nll.row import NLL, nll_loss_backward, nll_loss_forward

__all__ = ["NLL", "nll_loss_backward", "nll_loss_forward"]
