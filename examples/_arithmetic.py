# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""Loss and gradient of a batch, from the kernels on two simulated cores or from numpy in float64."""

from __future__ import annotations

import numpy as np

from nkilib.experimental.loss import cross_entropy_backward, cross_entropy_forward
from nkilib.nki import nl

CORES = 2


class KernelArithmetic:
    """The kernels in float32 on two simulated cores, the gradient written over the logits.

    Args:
        vocabulary_size: V; caps the chunk.
        positions_per_batch: rows that a core works on together.
        chunk_size: columns of a tile, at most V. The default cuts a vocabulary of a few thousand words into several
            chunks, the last of them ragged.
    """

    dtype = np.float32

    def __init__(self, vocabulary_size: int, positions_per_batch: int = 128, chunk_size: int = 2048) -> None:
        self.positions_per_batch = positions_per_batch
        self.chunk_size = min(chunk_size, vocabulary_size)

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Loss of each row: logits [B, V] float32, targets [B] int32 -> [B] float32."""
        return self._forward(logits, targets)[0]

    def losses_and_gradient(self, logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Loss of each row [B] and gradient of their mean [B, V]; the gradient is ``logits``, written over."""
        losses, lse = self._forward(logits, targets)
        gradient = cross_entropy_backward[CORES](
            logits,
            targets,
            lse,
            reduction="mean",
            positions_per_batch=self.positions_per_batch,
            chunk_size=self.chunk_size,
            dtype=nl.float32,
            inplace=True,
        )
        return losses, gradient

    def _forward(self, logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return cross_entropy_forward[CORES](
            logits,
            targets,
            positions_per_batch=self.positions_per_batch,
            chunk_size=self.chunk_size,
            dtype=nl.float32,
        )


class Float64Arithmetic:
    """The textbook formulas in float64, over whole rows at once. Shapes as in :class:`KernelArithmetic`."""

    dtype = np.float64

    def losses(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        shifted, log_sum = self._shifted_and_log_sum(logits)
        return log_sum - shifted[np.arange(len(targets)), targets]

    def losses_and_gradient(self, logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shifted, log_sum = self._shifted_and_log_sum(logits)
        at_target = (np.arange(len(targets)), targets)
        losses = log_sum - shifted[at_target]
        shifted -= log_sum[:, None]
        gradient = np.exp(shifted, out=shifted)
        gradient[at_target] -= 1.0
        gradient /= len(targets)
        return losses, gradient

    @staticmethod
    def _shifted_and_log_sum(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x - m, where m is the row's maximum, and log of the sum of exp(x - m)."""
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted, np.log(np.exp(shifted).sum(axis=1))
