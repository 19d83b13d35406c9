"""What the kernels should give, in float64 from the very inputs that they get: numpy only."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]


class NllLosses(NamedTuple):
    """Of every position, in the shape of the targets; 0 at ignored ones.

    Attributes:
        losses: ``-w[t] * x[t]``.
        weights: ``w[t]``.
    """

    losses: Float64Array
    weights: Float64Array

    def reduced(self, reduction: str) -> Float64Array:
        """As ``F.nll_loss`` reduces them."""
        with np.errstate(all="ignore"):
            if reduction == "none":
                return self.losses
            total = self.losses.sum()
            return np.asarray(total if reduction == "sum" else total / self.weights.sum())


def nll_loss_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], class_weight: npt.NDArray[Any] | None, ignore_index: int
) -> NllLosses:
    """Losses and weights of every position.

    PyTorch equivalent: ``F.nll_loss(input.double(), targets, class_weight, ignore_index=ignore_index,
    reduction="none")``.
    """
    counts = targets != ignore_index
    classes = np.where(counts, targets, 0)
    values = np.take_along_axis(input.astype(np.float64), np.expand_dims(classes, 1), 1).squeeze(1)
    weight = np.ones(input.shape[1]) if class_weight is None else class_weight.astype(np.float64)
    with np.errstate(all="ignore"):
        losses = np.where(counts, -weight[classes] * values, 0.0)
    return NllLosses(losses, np.where(counts, weight[classes], 0.0))


def nll_loss_gradient_reference(
    input: npt.NDArray[Any], targets: npt.NDArray[Any], weights: Float64Array, upstream: npt.NDArray[Any]
) -> Float64Array:
    """The gradient: ``-weights * upstream`` at the targets, which weigh 0 where they are ignored, and 0 elsewhere."""
    gradient = np.zeros(input.shape)
    with np.errstate(all="ignore"):
        values = np.where(weights == 0.0, 0.0, -weights * upstream)
    classes = np.where(weights == 0.0, 0, targets)
    np.put_along_axis(gradient, np.expand_dims(classes, 1), np.expand_dims(values, 1), 1)
    return gradient
