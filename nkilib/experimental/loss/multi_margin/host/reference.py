"""What the kernels should give, in float64 from the very inputs that they get: numpy only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Float64Array: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MultiMarginTruth:
    """Of every row, in float64.

    Attributes:
        hinges: relu(x_j - x_t + margin), [N, C], 0 at the target.
        weights: w[t] / C, [N].
        targets: [N].
        p: 1 or 2.
    """

    hinges: Float64Array
    weights: Float64Array
    targets: npt.NDArray[Any]
    p: int

    @classmethod
    def of(
        cls,
        input: npt.NDArray[Any],
        targets: npt.NDArray[Any],
        class_weight: npt.NDArray[Any] | None = None,
        p: int = 1,
        margin: float = 1.0,
    ) -> MultiMarginTruth:
        """From the arguments of ``torch.nn.functional.multi_margin_loss``, but for a target that is int32."""
        x = input.astype(np.float64)
        rows, classes = x.shape
        with np.errstate(all="ignore"):
            hinges = np.maximum(x - x[np.arange(rows), targets][:, None] + margin, 0.0)
        hinges[np.arange(rows), targets] = 0.0
        weight = np.ones(classes) if class_weight is None else class_weight.astype(np.float64)
        return cls(hinges, weight[targets] / classes, targets, p)

    def losses(self) -> Float64Array:
        """[N]: ``F.multi_margin_loss(input, target, p, margin, weight, reduction="none")``."""
        losses: Float64Array = self.weights * (self.hinges**self.p).sum(axis=1)
        return losses

    def gradient(self, upstream: npt.NDArray[Any]) -> Float64Array:
        """[N, C], of the losses times ``upstream``, [N] or one number."""
        slopes = (self.hinges > 0).astype(np.float64) if self.p == 1 else 2.0 * self.hinges
        gradient = np.asarray(slopes * (self.weights * upstream.astype(np.float64))[:, None])
        gradient[np.arange(len(gradient)), self.targets] = -gradient.sum(axis=1)
        return gradient


def reduction_factor(rows: int, reduction: str) -> float:
    """What the sum of the losses is multiplied by."""
    return 1.0 / rows if reduction == "mean" else 1.0
