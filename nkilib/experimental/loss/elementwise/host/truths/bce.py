"""Binary cross-entropy of probabilities. A logarithm is 4 u off; that of a raised number is a difference of two, each
of at most |A| + 56.2, and x + exp(-100) in the place of x adds exp(-100) / x, which counts near 2^-126 alone.

    |error of A| <= u (5 |A| + 5 * 56.2 [x < 2^-32]) + exp(-100) / x        |error of B| <= 5 u (|B| + 64 [x = 1])
    |error| <= t |error of A| + (1 - t) |error of B| + 2 u (t |A| + (1 - t) |B|)

Of the derivative: 1 - x, the product with x, x - t, the square of the inverse root and the product with it round once,
u / 2 each, and the inverse root is 4 u off, twice: 11 u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET
from nkilib.experimental.loss.elementwise.kinds.bce import LEAST_LOG, LEAST_PRODUCT, LOWERED, RAISED, SMALL

_LOG_UNITS, _SLOPE_UNITS = 5.0, 11.0


@dataclass(frozen=True)
class BceTruth:
    """``torch.nn.functional.binary_cross_entropy(input.double(), target.double())``."""

    def value(self, tensors: Tensors) -> Exact:
        """-(t A + (1 - t) B)."""
        t = tensors[TARGET]
        logs, rest = self._logs(tensors)
        terms = t * np.abs(logs.value) + (1.0 - t) * np.abs(rest.value)
        error = np.abs(t) * logs.error + np.abs(1.0 - t) * rest.error + 2.0 * UNIT * np.abs(terms)
        return Exact(-(t * logs.value + (1.0 - t) * rest.value), error)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """(x - t) / max(x (1 - x), 1e-12) and B - A."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = (x - t) / np.maximum(x * (1.0 - x), LEAST_PRODUCT)
        logs, rest = self._logs(tensors)
        by_target = rest.value - logs.value
        error = logs.error + rest.error + 0.5 * UNIT * np.abs(by_target)
        return {INPUT: Exact(slope, _SLOPE_UNITS * UNIT * np.abs(slope)), TARGET: Exact(by_target, error)}

    @staticmethod
    def _logs(tensors: Tensors) -> tuple[Exact, Exact]:
        x = tensors[INPUT]
        with np.errstate(all="ignore"):
            logs = np.maximum(np.log(x), LEAST_LOG)
            rest = np.maximum(np.log1p(-x), LEAST_LOG)
            floor = np.where(x > 0.0, np.exp(LEAST_LOG) / x, 0.0)
        raised = np.where(x < SMALL, np.log(RAISED), 0.0)
        error = _LOG_UNITS * UNIT * (np.abs(logs) + raised) + floor
        return Exact(logs, error), Exact(rest, _LOG_UNITS * UNIT * (np.abs(rest) + (x >= 1.0) * LOWERED))
