# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Kernels of connectionist temporal classification (CTC) that are launched on their own."""

from nkilib.experimental.loss.ctc.row import CTC, ctc_loss_backward, ctc_loss_forward

__all__ = ["CTC", "ctc_loss_backward", "ctc_loss_forward"]
