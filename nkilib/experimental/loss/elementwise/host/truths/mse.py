"""Squared error: the difference d rounds once, u / 2 of itself; its square twice that, and u / 2 of its own.

|error| <= 1.5 u d^2        of a derivative 2 d: u |d|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class MseTruth:
    """``torch.nn.functional.mse_loss(input.double(), target.double())``."""

    def value(self, tensors: Tensors) -> Exact:
        """(x - t)^2."""
        square = (tensors[INPUT] - tensors[TARGET]) ** 2
        return Exact(square, 1.5 * UNIT * square)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """2 (x - t), and its negative."""
        slope = 2.0 * (tensors[INPUT] - tensors[TARGET])
        error = 0.5 * UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}
