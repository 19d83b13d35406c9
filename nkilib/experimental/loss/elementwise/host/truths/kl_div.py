"""Kullback-Leibler divergence of log-probabilities x, with l = log t to u / 2. The difference and the product round.

    t (l - x)       |error| <= u t (|l| / 2 + |l - x|) + 2^-63    2^-64 is added to t, which adds at most as much to t l
    e^t (t - x)     |error| <= 3 u / 2 of it                      the exponential, the difference and the product

u more of log: u |t l|; of exp: u of the loss. Of derivatives: 1 and the difference round once, u / 2 each; a target
below 2^-32 is raised by 2^64 before its logarithm is taken, which is of at most 2 |l| and subtracted from 2 |l|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.host.reference import kl_div_gradients_reference, kl_div_reference
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET
from nkilib.experimental.loss.elementwise.kinds.kl_div import LEAST_TARGET


@dataclass(frozen=True)
class KlDivTruth:
    """``torch.nn.functional.kl_div(input.double(), target.double(), log_target=log_target)``.

    Attributes:
        log_target: of the function.
    """

    log_target: bool = False

    @property
    def stated(self) -> TermError:
        """Of this form."""
        return term_errors.KL_DIV_OF_LOG_TARGET if self.log_target else term_errors.KL_DIV

    def value(self, tensors: Tensors) -> Derived:
        """t (log t - x), or exp(t) (t - x)."""
        x, t = tensors[INPUT], tensors[TARGET]
        found = kl_div_reference(x, t, self.log_target)
        if self.log_target:
            return Derived.of_units(found, (), 1.5 * np.abs(found), {"exp": found})
        log, size = np.log(t + LEAST_TARGET), np.abs(t)
        own = size * (0.5 * np.abs(log) + np.abs(log - x))
        return Derived.of_units(found, (t * log, t * x), own, {"log": t * log}, beside=2.0 * LEAST_TARGET / UNIT)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """-t and log t + 1 - x, or -exp(t) and exp(t) (t - x + 1)."""
        x, t = tensors[INPUT], tensors[TARGET]
        exact = kl_div_gradients_reference(x, t, self.log_target)
        if self.log_target:
            of_input = functions.exp * np.abs(exact.input)
            of_target = (functions.exp + 1.5) * np.exp(t) * (np.abs(t - x) + 1.0)
        else:
            log = np.abs(np.log(t))
            of_input = np.zeros_like(exact.input)
            of_target = (2.0 * functions.log + 1.0) * log + 0.5 * (1.0 + log) + 0.5 * np.abs(exact.target)
        return {INPUT: Exact(exact.input, UNIT * of_input), TARGET: Exact(exact.target, UNIT * of_target)}
