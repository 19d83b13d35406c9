# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The upstream gradients of the losses of positions: one for each loss, or one for the sum or mean of all
losses.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.core.losses.upstream import in_all_partitions
from nkilib.core.rows.tiles import product
from nkilib.experimental.loss.skeletons.indexed.positions import PositionBatch
from nkilib.nki import nisa, nl


@dataclass(frozen=True)
class Upstream:
    """The upstream gradients of the losses.

    Attributes:
        grad_hbm: the upstream gradient of each loss, [N, D]; or that of their sum or mean, float32 [1].
        total_weight_hbm: float32 [1], by which the gradient of a mean is divided; None if it is not divided.
        is_each: whether there is a gradient for each loss.
    """

    grad_hbm: nl.NkiTensor
    total_weight_hbm: nl.NkiTensor | None
    is_each: bool

    def uniform(self) -> nl.NkiTensor | None:
        """Return the gradient that all losses share, float32 [128, 1]; None if each loss has its own. The host reads
        no value.
        """
        if self.is_each:
            return None
        scale_sbuf = in_all_partitions(self.grad_hbm)
        if self.total_weight_hbm is None:
            return scale_sbuf
        weight_sbuf = in_all_partitions(self.total_weight_hbm)
        nisa.reciprocal(dst=weight_sbuf, data=weight_sbuf)
        return product(scale_sbuf, weight_sbuf)

    def of_batch(self, batch: PositionBatch, uniform_sbuf: nl.NkiTensor | None) -> nl.NkiTensor:
        """Return the upstream gradients of the losses of a batch, [positions, 1].

        Args:
            batch: the positions.
            uniform_sbuf: the result of :meth:`uniform`.
        """
        if uniform_sbuf is not None:
            return uniform_sbuf[0 : batch.positions, :]
        grad_sbuf = nl.ndarray((batch.positions, 1), dtype=self.grad_hbm.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=grad_sbuf, src=batch.of(self.grad_hbm))
        return grad_sbuf
