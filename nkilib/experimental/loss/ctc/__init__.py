# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Connectionist temporal classification, to be launched on its own."""

from nkilib.experimental.loss.ctc.row import CTC, ctc_loss_backward, ctc_loss_forward

__all__ = ["CTC", "ctc_loss_backward", "ctc_loss_forward"]
