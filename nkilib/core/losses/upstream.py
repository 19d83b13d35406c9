# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Upstream gradients of losses: one for their sum, or one for each loss."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.nki import nisa, nl

# The name of a gradient of each loss among the streamed tensors.
UPSTREAM = "grad_loss"


@dataclass(frozen=True)
class Upstream:
    """The upstream gradients of a launch.

    Attributes:
        grad_hbm: the gradient of the sum, float32 [1]; or one gradient for each loss.
        factor: the factor by which the reduction multiplies the sum of the losses, such as that of a mean; None: there
            is one gradient for each loss.
    """

    grad_hbm: nl.NkiTensor
    factor: float | None

    @property
    def is_of_each(self) -> bool:
        """Whether each loss has its own gradient, so that the gradients are streamed."""
        return self.factor is None

    def with_tensors(self, tensors_hbm: dict[str, nl.NkiTensor], names: tuple[str, ...]) -> dict[str, nl.NkiTensor]:
        """Return the tensors that are streamed: the named ones, and the gradients where there is one for each loss."""
        streamed = {name: tensors_hbm[name] for name in names}
        return {**streamed, UPSTREAM: self.grad_hbm} if self.is_of_each else streamed

    def scale(self, factor: float) -> nl.NkiTensor:
        """Return the gradient that each loss gets from their sum, times ``factor``: float32 [128, 1], all equal.

        The host reads no values.
        """
        scale_sbuf = in_all_partitions(self.grad_hbm)
        of_sum = 1.0 if self.factor is None else self.factor
        nisa.tensor_scalar(dst=scale_sbuf, data=scale_sbuf, op0=nl.multiply, operand0=factor * of_sum)
        return scale_sbuf


def in_all_partitions(number_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """Load one float32 number into each partition: [128, 1]."""
    partitions = nl.tile_size.pmax
    number_sbuf = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number_sbuf, src=number_hbm.reshape((1, 1)).broadcast(0, partitions))
    return number_sbuf
