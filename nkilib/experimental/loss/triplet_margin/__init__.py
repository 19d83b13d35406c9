# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The triplet margin loss: :mod:`.formula` has its definition in instructions, :mod:`.norm` the distances of
rows.

:mod:`.kernels` has the kernels. For host code, :mod:`.host.pairs` lists the distances,
:mod:`.host.reference` has the reference and :mod:`.row` the registry entry.
"""

from nkilib.experimental.loss.triplet_margin.kernels import triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.triplet_margin.row import TRIPLET_MARGIN

__all__ = ["TRIPLET_MARGIN", "triplet_margin_loss_backward", "triplet_margin_loss_forward"]
