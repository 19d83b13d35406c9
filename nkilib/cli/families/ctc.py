"""Connectionist temporal classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .loss import LossKernels, TensorSize

SEQUENCES, LABELS = 32, 64


@dataclass(frozen=True)
class CtcKernels(LossKernels):
    """Of a batch of sequences, which have as many steps as there are positions."""

    NAMES: ClassVar[tuple[str, ...]] = ("ctc_loss",)
    OPTIONS: ClassVar[tuple[str, ...]] = ("sequences", "labels")
    WHICH: ClassVar[str] = "with --family ctc_loss"
    ALWAYS: ClassVar[tuple[str, ...]] = ("targets",)

    def size_of(self, tensor: str, arguments: dict[str, Any]) -> TensorSize:
        """Log-probabilities, labels, lengths, and what the forward keeps for the backward."""
        steps, classes = self.shape
        if tensor == "log_probs":
            return TensorSize((steps, self._sequences, classes), self.dtype)
        if tensor == "targets":
            return TensorSize((self._sequences, self._labels), "int32")
        if tensor == "alpha":
            return TensorSize((steps, self._sequences, 2 * self._labels + 1), "float32")
        return TensorSize((self._sequences,), "float32" if tensor == "nll" else "int32")

    @property
    def _sequences(self) -> int:
        return int(self.options.sequences or SEQUENCES)

    @property
    def _labels(self) -> int:
        return int(self.options.labels or LABELS)
