# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of connectionist temporal classification (CTC), to be launched on their own."""

from nkilib.experimental.loss.ctc.row import CTC, ctc_loss_backward, ctc_loss_forward

__all__ = ["CTC", "ctc_loss_backward", "ctc_loss_forward"]
