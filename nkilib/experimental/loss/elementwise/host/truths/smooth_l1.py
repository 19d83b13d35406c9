"""Smooth absolute error, with d = x - t, b the width and f the factor, both float32 numbers.

d rounds once, u / 2 of itself. Within b the loss is its square: d costs it u, the scale sqrt(f / (2 b)) another u, the
product with it u and the square u / 2, which is 3.5 u of at most f b / 2. Beyond b the square is a constant, off by at
most 2.5 u of f b / 2; |d| - b is off by u |d| / 2 and rounds once, and so does its product with f, if that is not 1,
and the sum. The scale of Huber's error is sqrt(1 / 2), which costs 0.3 u, not 1:

|error| <= 2 u f max(|d|, b) for f = 1, and 2.25 u of it for Huber's error     of a derivative f c / b: 2 u
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class SmoothL1Truth:
    """``torch.nn.functional.smooth_l1_loss(input.double(), target.double(), beta=width)``, times the factor.

    Attributes:
        width: up to which an error is squared.
        factor: of the losses; None: 1. The width for ``huber_loss``.
    """

    width: float
    factor: float | None = None

    def value(self, tensors: Tensors) -> Exact:
        """f d^2 / (2 b), or f (|d| - b / 2) beyond b."""
        width, factor = self._numbers()
        size = np.abs(tensors[INPUT] - tensors[TARGET])
        found = factor * np.where(size > width, size - 0.5 * width, 0.5 * size**2 / width)
        units = np.where(size > width, 2.0 if self.factor is None else 2.25, 3.5 * np.minimum(size / width, 1.0) / 2.0)
        return Exact(found, units * UNIT * factor * size)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """f c / b, and its negative; the number f / b rounds once more than c."""
        width, factor = self._numbers()
        slope = factor * np.clip(tensors[INPUT] - tensors[TARGET], -width, width) / width
        error = UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}

    def _numbers(self) -> tuple[float, float]:
        width = float(np.float32(self.width))
        return width, 1.0 if self.factor is None else float(np.float32(self.factor))
