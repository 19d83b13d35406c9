"""The normal distribution's likelihood, with v = max(var, eps), s = 1 / sqrt(v), which is 4 u off, and q = (x - t) s.

x - t and its product with s round once, the square scales by a rounded number and rounds: q^2 / 2 is 11 u off. The
logarithm of s is 4 u off and moved by the error of s, 4 u and more for the rounded constant:

    |error| <= u (11 q^2 / 2 + 4 |log s| + 6 + loss / 2)        of q s: 9.5 u; by the variance 10 u s^2 / 2, 20 u s^2
    q^2 / 2
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, VARIANCE


@dataclass(frozen=True)
class GaussianTruth:
    """``torch.nn.functional.gaussian_nll_loss(input.double(), target.double(), var.double())``.

    Attributes:
        full, eps: of the function.
    """

    full: bool = False
    eps: float = 1e-6

    def value(self, tensors: Tensors) -> Exact:
        """(log v + (x - t)^2 / v) / 2."""
        variance = self._variance(tensors)
        square = 0.5 * (tensors[INPUT] - tensors[TARGET]) ** 2 / variance
        logs = 0.5 * np.log(variance) + (0.5 * np.log(2.0 * np.pi) if self.full else 0.0)
        loss = square + logs
        return Exact(loss, UNIT * (11.0 * square + 4.0 * np.abs(logs) + 6.0 + 0.5 * np.abs(loss)))

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """(x - t) / v, its negative, and (1 / v - (x - t)^2 / v^2) / 2."""
        variance = self._variance(tensors)
        distance = tensors[INPUT] - tensors[TARGET]
        slope = distance / variance
        share, square = 0.5 / variance, 0.5 * distance**2 / variance**2
        error, by_variance = 9.5 * UNIT * np.abs(slope), UNIT * (10.0 * share + 20.0 * square)
        return {
            INPUT: Exact(slope, error),
            TARGET: Exact(-slope, error),
            VARIANCE: Exact(share - square, by_variance),
        }

    def _variance(self, tensors: Tensors) -> np.ndarray:
        return np.maximum(tensors[VARIANCE], float(np.float32(self.eps)))
