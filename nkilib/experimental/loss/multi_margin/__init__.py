# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The kernels of the multi-class margin loss, to be launched on their own.

- ``kernels``: the kernels as plain functions; ``registry_entry``: guarantees, work and float64 reference;
- ``launch``: a launch and its checks; on chip, the terms of rows and their thresholds.
"""

from nkilib.experimental.loss.multi_margin.registry_entry import (
    MULTI_MARGIN,
    multi_margin_loss_backward,
    multi_margin_loss_forward,
)

__all__ = ["MULTI_MARGIN", "multi_margin_loss_backward", "multi_margin_loss_forward"]
