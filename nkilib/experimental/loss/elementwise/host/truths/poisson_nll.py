"""Poisson's likelihood. Products and sums round once, u / 2 each; exponentials and logarithms are good to u / 2.

    exp(x) - t x         |error| <= u (exp(x) + |t x| + loss) / 2                  u more of exp: u exp(x)
    x - t log(x + eps)   |error| <= u (2 |t log(x + eps)| + |t| + loss) / 2        u more of log: u |t log(x + eps)|

where u t / 2 is what the rounding of x + eps costs its logarithm. Stirling's estimate where t > 1, with S = (t + 1/2)
log t and c = log(2 pi) / 2, which is a rounded number: S is off by 3 u / 2, and with three more sums

    |error| <= the above + u (3 S + c + (S + c) + estimate + loss) / 2             u more of log: u S

Derivatives likewise, with the error of a reciprocal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET

_STATED = {
    (True, False): term_errors.POISSON_OF_LOG_RATE,
    (False, False): term_errors.POISSON_OF_RATE,
    (True, True): term_errors.FULL_POISSON_OF_LOG_RATE,
    (False, True): term_errors.FULL_POISSON_OF_RATE,
}
_HALF_LOG_TAU = 0.5 * np.log(2.0 * np.pi)


@dataclass(frozen=True)
class PoissonTruth:
    """``torch.nn.functional.poisson_nll_loss(input.double(), target.double())``.

    Attributes:
        log_input, full, eps: of the function.
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8

    @property
    def stated(self) -> TermError:
        """Of this form."""
        return _STATED[self.log_input, self.full]

    def value(self, tensors: Tensors) -> Derived:
        """exp(x) - t x, or x - t log(x + eps); and Stirling's estimate."""
        found = self._plain(tensors)
        return _with_estimate(found, tensors[TARGET]) if self.full else found

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """exp(x) - t and -x, or 1 - t / (x + eps) and -log(x + eps); and that of the estimate by the target."""
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            slope, by_target = np.exp(x) - t, -x
            error, of_target = functions.exp * np.exp(x) + 0.5 * np.abs(slope), np.zeros_like(x)
        else:
            share = t / (x + self._eps)
            slope, by_target = 1.0 - share, -self._log(x)
            error = (functions.reciprocal + 1.0) * np.abs(share) + 0.5 * np.abs(slope)
            of_target = functions.log * np.abs(by_target) + 0.5
        if self.full:
            above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
            estimate = np.where(above, logs + 0.5 / np.maximum(t, 1.0), 0.0)
            by_target = by_target + estimate
            of_estimate = np.where(above, functions.log * logs + (functions.reciprocal + 0.5) * 0.5, 0.0)
            of_target = of_target + of_estimate + 0.5 * np.abs(estimate) + 0.5 * np.abs(by_target)
        return {INPUT: Exact(slope, UNIT * error), TARGET: Exact(by_target, UNIT * of_target)}

    def _plain(self, tensors: Tensors) -> Derived:
        """Without the estimate."""
        x, t = tensors[INPUT], tensors[TARGET]
        if self.log_input:
            rate, product = np.exp(x), t * x
            loss = rate - product
            own = 0.5 * (rate + np.abs(product) + np.abs(loss))
            return Derived.of_units(loss, (rate, product), own, {"exp": rate})
        product = t * self._log(x)
        loss = x - product
        own = np.abs(product) + 0.5 * (np.abs(t) + np.abs(loss))
        return Derived.of_units(loss, (x, product, t), own, {"log": product})

    @property
    def _eps(self) -> float:
        return float(np.float32(self.eps))

    def _log(self, x: Float64Array) -> Float64Array:
        found: Float64Array = np.log(x + self._eps)
        return found


def _with_estimate(plain: Derived, t: Float64Array) -> Derived:
    """The loss and Stirling's estimate of the target."""
    above, logs = t > 1.0, np.log(np.maximum(t, 1.0))
    product = np.where(above, (t + 0.5) * logs, 0.0)
    with_constant = np.where(above, product + _HALF_LOG_TAU, 0.0)
    estimate = np.where(above, with_constant - t, 0.0)
    loss = plain.value + estimate
    constant = above * _HALF_LOG_TAU
    units = 0.5 * (3.0 * product + constant + with_constant + np.abs(estimate) + np.abs(loss))
    largest = np.max([plain.largest, product, above * np.abs(t), np.abs(loss)], axis=0)
    logarithm = plain.functions.get("log", 0.0) + UNIT * product
    functions = {**plain.functions, "log": logarithm}
    return Derived(loss, largest, plain.own + UNIT * units, functions, plain.beside)
