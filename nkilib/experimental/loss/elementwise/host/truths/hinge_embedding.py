"""Error of similarity: ``margin - x`` rounds once, u / 2 of itself; the rest chooses numbers. Derivatives are exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class HingeEmbeddingTruth:
    """``torch.nn.functional.hinge_embedding_loss(input.double(), target.double(), margin)``.

    Attributes:
        margin: rounded to float32.
    """

    margin: float
    stated: ClassVar[TermError] = term_errors.HINGE_EMBEDDING

    def value(self, tensors: Tensors) -> Derived:
        """x, max(margin - x, 0), or their sum, which is the larger one of x and margin."""
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        hinge = np.maximum(margin - x, 0.0)
        found = np.where(t == -1.0, hinge, np.where(t == 1.0, x, np.maximum(x, margin)))
        return Derived.of_units(found, (), np.where(t == -1.0, 0.5 * hinge, 0.0))

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """[t != -1] - [t != 1] [x <= margin]."""
        x, t, margin = tensors[INPUT], tensors[TARGET], float(np.float32(self.margin))
        slope = (t != -1.0).astype(np.float64) - ((t != 1.0) & (x <= margin))
        return {INPUT: Exact(slope, np.zeros_like(slope))}
