"""Error of similarity: ``margin - x`` rounds once, u / 2 of itself; the rest chooses numbers. Derivatives are exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class HingeEmbeddingTruth:
    """``torch.nn.functional.hinge_embedding_loss(input.double(), target.double(), margin)``.

    Attributes:
        margin: rounded to float32.
    """

    margin: float

    def value(self, tensors: Tensors) -> Exact:
        """x, max(margin - x, 0), or their sum, which is the larger one of x and margin."""
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        hinge = np.maximum(margin - x, 0.0)
        found = np.where(t == -1.0, hinge, np.where(t == 1.0, x, np.maximum(x, margin)))
        return Exact(found, np.where(t == -1.0, 0.5 * UNIT * hinge, 0.0))

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """[t != -1] - [t != 1] [x <= margin]."""
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        slope = (t != -1.0).astype(np.float64) - ((t != 1.0) & (x <= margin))
        return {INPUT: Exact(slope, np.zeros_like(slope))}
