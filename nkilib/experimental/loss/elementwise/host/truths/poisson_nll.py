"""Poisson's likelihood. An exponential is 3 u off and a logarithm 4 u, a reciprocal 4 u, eps and its sum with x
round once, products and sums u / 2 each. With l = log(x + eps), L = log t and the terms of Stirling's estimate:

    |error| <= u (3 exp(x) + |t x| / 2 + loss / 2)        or u (5 |t l| + |t| + loss / 2)
    and with full, where t > 1: u (5 (t + 1/2) L + (t + 1/2) L / 2 + t + estimate + loss)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.reference import Float64Array
from nkilib.experimental.loss.elementwise.host.truth import EXP_UNITS, Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET


@dataclass(frozen=True)
class PoissonTruth:
    """``torch.nn.functional.poisson_nll_loss(input.double(), target.double())``.

    Attributes:
        log_input, full, eps: of the function.
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    def value(self, tensors: Tensors) -> Exact:
        """exp(x) - t x, or x - t log(x + eps); and Stirling's estimate."""
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            rate, product = np.exp(x), t * x
            loss = rate - product
            error = EXP_UNITS * rate + 0.5 * np.abs(product) + 0.5 * np.abs(loss)
        else:
            product = t * self._log(x)
            loss = x - product
            error = 5.0 * np.abs(product) + np.abs(t) + 0.5 * np.abs(loss)
        if self.full:
            above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
            estimate = np.where(above, (t + 0.5) * logs - t + 0.5 * np.log(2.0 * np.pi), 0.0)
            error = error + np.where(above, 5.5 * (t + 0.5) * logs + t + np.abs(estimate) + 1.0, 0.0)
            loss = loss + estimate
            error = error + np.abs(loss)
        return Exact(loss, UNIT * error)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """exp(x) - t and -x, or 1 - t / (x + eps) and -log(x + eps); and that of the estimate by the target."""
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            slope, by_target = np.exp(x) - t, -x
            error, of_target = EXP_UNITS * np.exp(x) + 0.5 * np.abs(slope), np.zeros_like(x)
        else:
            share = t / (x + self._eps)
            slope, by_target = 1.0 - share, -self._log(x)
            error, of_target = 5.5 * np.abs(share) + 0.5 * np.abs(slope), 4.0 * np.abs(by_target) + 1.0
        if self.full:
            above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
            estimate = np.where(above, logs + 0.5 / np.maximum(t, 1.0), 0.0)
            by_target = by_target + estimate
            of_target = of_target + np.where(above, 4.0 * logs + 2.0, 0.0) + np.abs(estimate) + np.abs(by_target)
        return {INPUT: Exact(slope, UNIT * error), TARGET: Exact(by_target, UNIT * of_target)}

    @property
    def _eps(self) -> float:
        return float(np.float32(self.eps))

    def _log(self, x: Float64Array) -> Float64Array:
        found: Float64Array = np.log(x + self._eps)
        return found
