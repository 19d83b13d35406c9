# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Distillation from logits, as kernels that are launched on their own."""

from nkilib.experimental.loss.distillation.row import distillation_backward, distillation_forward

__all__ = ["distillation_backward", "distillation_forward"]
