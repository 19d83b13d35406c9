"""Smooth absolute error, with d = x - t, b the width and f the factor, both float32 numbers.

d rounds once, u / 2 of itself. Within b the loss is a square: d costs it u, the rounded scale sqrt(f / (2 b)) at most
another u, the product with it u and the square u / 2. Beyond b the square is the number f b / 2, off by what the scale,
the product and the square cost it; |d| - b is off by u |d| / 2 and rounds once, and so does its product with f, if that
is not 1, and the sum. The scale of Huber's error is sqrt(1 / 2), which costs 0.3 u.

    |d| <= b    |error| <= 3.5 u of the loss, 2.8 u of Huber's
    |d| > b     |error| <= u f (5 b / 4 + |d| / 2 + (|d| - b) / 2 (or |d| - b) + (|d| - b / 2) / 2): 2.5 u of f |d|

Of a derivative f c / b: 2 u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
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

    @property
    def stated(self) -> TermError:
        """Of the smooth or of Huber's error."""
        return term_errors.SMOOTH_L1 if self.factor is None else term_errors.HUBER

    def value(self, tensors: Tensors) -> Derived:
        """f d^2 / (2 b), or f (|d| - b / 2) beyond b."""
        width, factor = self._numbers()
        size = np.abs(tensors[INPUT] - tensors[TARGET])
        is_beyond, beyond = size > width, factor * (size - width)
        found = np.where(is_beyond, factor * (size - 0.5 * width), 0.5 * factor * size**2 / width)
        of_scale = 1.0 if self.factor is None else 0.3
        of_beyond = 0.5 * factor * size + (0.5 if self.factor is None else 1.0) * beyond + 0.5 * found
        own = np.where(is_beyond, (1.5 + of_scale) * 0.5 * factor * width + of_beyond, (2.5 + of_scale) * found)
        return Derived.of_units(found, (np.where(is_beyond, factor * size, 0.0),), own)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """f c / b, and its negative; the number f / b rounds once more than c."""
        width, factor = self._numbers()
        slope = factor * np.clip(tensors[INPUT] - tensors[TARGET], -width, width) / width
        error = UNIT * np.abs(slope)
        return {INPUT: Exact(slope, error), TARGET: Exact(-slope, error)}

    def _numbers(self) -> tuple[float, float]:
        width = float(np.float32(self.width))
        return width, 1.0 if self.factor is None else float(np.float32(self.factor))
