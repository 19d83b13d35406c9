"""The normal distribution's likelihood, with v = max(var, eps), s = 1 / sqrt(v) to u / 2, and q = (x - t) s.

x - t, its product with s and the square round once, and s counts twice: q^2 / 2 is off by 7 u / 2 of itself. The error
of s moves log s by u / 2, and that of the constant of ``full``, and its product with s, by u more; the logarithm is
good to u / 2:

    |error| <= u (7 q^2 / 4 + |log s| / 2 + 1 / 2 + loss / 2), and u more for ``full``

u more of the inverse root: u (q^2 + 1); of the logarithm: u |log s|. Of derivatives: q s is off by 1.5 u and twice the
error e of the inverse root; s^2 (1 - q^2) / 2 by its products and sums, and e counts twice in s^2 and in q^2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET, VARIANCE


@dataclass(frozen=True)
class GaussianTruth:
    """``torch.nn.functional.gaussian_nll_loss(input.double(), target.double(), var.double())``.

    Attributes:
        full, eps: of the function.
    """

    full: bool = False
    eps: float = 1e-6

    @property
    def stated(self) -> TermError:
        """Of this form."""
        return term_errors.FULL_GAUSSIAN if self.full else term_errors.GAUSSIAN

    def value(self, tensors: Tensors) -> Derived:
        """(log v + (x - t)^2 / v) / 2."""
        variance = self._variance(tensors)
        square = 0.5 * (tensors[INPUT] - tensors[TARGET]) ** 2 / variance
        logs = 0.5 * np.log(variance) + (0.5 * np.log(2.0 * np.pi) if self.full else 0.0)
        loss = square + logs
        own = 3.5 * square + 0.5 * (np.abs(logs) + np.abs(loss)) + (1.5 if self.full else 0.5)
        functions = {"rsqrt": 2.0 * square + 1.0, "log": logs}
        return Derived.of_units(loss, (square, logs, 1.0), own, functions)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """(x - t) / v, its negative, and (1 / v - (x - t)^2 / v^2) / 2."""
        variance = self._variance(tensors)
        distance = tensors[INPUT] - tensors[TARGET]
        slope = distance / variance
        share, square = 0.5 / variance, 0.5 * distance**2 / variance**2
        of_inverse = 2.0 * functions.rsqrt
        error = (1.5 + of_inverse) * UNIT * np.abs(slope)
        of_square = (2.5 + of_inverse) * square
        by_variance = UNIT * (of_square + (0.5 + of_inverse + 1.0) * (share + square))
        return {
            INPUT: Exact(slope, error),
            TARGET: Exact(-slope, error),
            VARIANCE: Exact(share - square, by_variance),
        }

    def _variance(self, tensors: Tensors) -> np.ndarray:
        return np.maximum(tensors[VARIANCE], float(np.float32(self.eps)))
