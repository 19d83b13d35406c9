# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Triplet margin loss: :mod:`.formula` in instructions, of distances by :mod:`.norm`, and the :mod:`.kernels`.

For host code :mod:`.host.pairs` says which distances there are, :mod:`.host.truth` what they should give, and
:mod:`.row` what follows.
"""

from nkilib.experimental.loss.triplet_margin.kernels import triplet_margin_loss_backward, triplet_margin_loss_forward
from nkilib.experimental.loss.triplet_margin.row import TRIPLET_MARGIN

__all__ = ["TRIPLET_MARGIN", "triplet_margin_loss_backward", "triplet_margin_loss_forward"]
