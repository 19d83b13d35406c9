# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Functions that choose the tiling of a launch of the kernels. For host code; arithmetic only."""

from nkilib.experimental.loss.cross_entropy.tiling import CORES, POSITIONS_PER_BATCH, Tiling, choose_tiling
from nkilib.experimental.loss.linear.launch import LinearTiling
from nkilib.experimental.loss.linear_cross_entropy.host.tiling import choose_linear_tiling
from nkilib.experimental.loss.skeletons.elementwise.tiling import ElementwiseTiling, choose_elementwise_tiling
from nkilib.experimental.loss.skeletons.rowwise.tiling import RowwiseTiling, choose_rowwise_tiling

__all__ = [
    "CORES",
    "POSITIONS_PER_BATCH",
    "ElementwiseTiling",
    "LinearTiling",
    "RowwiseTiling",
    "Tiling",
    "choose_elementwise_tiling",
    "choose_linear_tiling",
    "choose_rowwise_tiling",
    "choose_tiling",
]
