# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Upstream gradients of losses: one of their sum, or one of each loss."""

from __future__ import annotations

from dataclasses import dataclass

from nkilib.nki import nisa, nl

# The name of a gradient of each loss among the streamed tensors.
UPSTREAM = "grad_loss"


@dataclass(frozen=True)
class Upstream:
    """Gradients of the losses.

    Attributes:
        grad_hbm: float32 [1], of their sum; or one for each loss.
        factor: of the sum; None: one for each loss.
    """

    grad_hbm: nl.NkiTensor
    factor: float | None

    @property
    def is_of_each(self) -> bool:
        """They differ, and are streamed."""
        return self.factor is None

    def with_tensors(self, tensors_hbm: dict[str, nl.NkiTensor], names: tuple[str, ...]) -> dict[str, nl.NkiTensor]:
        """What is streamed: those of the tensors, and the gradients where they differ."""
        streamed = {name: tensors_hbm[name] for name in names}
        return {**streamed, UPSTREAM: self.grad_hbm} if self.is_of_each else streamed

    def scale(self, factor: float) -> nl.NkiTensor:
        """The gradient of each loss times a number, float32 [128, 1]. No value is looked at by the host."""
        scale_sbuf = in_all_partitions(self.grad_hbm)
        of_sum = 1.0 if self.factor is None else self.factor
        nisa.tensor_scalar(dst=scale_sbuf, data=scale_sbuf, op0=nl.multiply, operand0=factor * of_sum)
        return scale_sbuf


def in_all_partitions(number_hbm: nl.NkiTensor) -> nl.NkiTensor:
    """One float32 number in each partition, [128, 1]."""
    partitions = nl.tile_size.pmax
    number_sbuf = nl.ndarray((partitions, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(dst=number_sbuf, src=number_hbm.reshape((1, 1)).broadcast(0, partitions))
    return number_sbuf
