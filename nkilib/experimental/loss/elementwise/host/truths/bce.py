"""Binary cross-entropy of probabilities x, with A = log x and B = log(1 - x), for targets in [0, 1].

A: a logarithm to u / 2. That of a number below 2^-32 is raised by 2^81: the number and exp(-100), which it is added to,
round once, u / 2 of 1; the logarithm is u / 2 of A + 56.2; the constant 56.2 is off by 10.8 u of 1; the difference
rounds. x + exp(-100) in the place of x adds exp(-100) / x, which counts near 2^-126 alone.

B: y = 1 - x is off by at most r = min(x, u / 4), and exact from x = 1/2 on. Its logarithm is u / 2 of at most |B| + r;
r x / (1 - x) is what remains of the error of y, and the difference rounds. x = 1 gives log(exp(-36)) - 64.

    |error| <= t |error of A| + (1 - t) |error of B| + u (t |A| + (1 - t) |B| + [t < 1/2] |B| / 2 + loss) / 2

u more of log: u (t |A or A + 56.2| + (1 - t) (|B| + r)).

Of the derivative: 1 - x, the product with x, x - t, the square of the inverse root and the product with it round once,
u / 2 each, and the inverse root counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, TARGET
from nkilib.experimental.loss.elementwise.kinds.bce import LEAST_LOG, LEAST_PRODUCT, LOWERED, RAISED, SMALL

# How far the float32 nearest to log(RAISED) is from it, in u of 1.
_RAISED_LOG_UNITS = 10.8


class _Logarithm(NamedTuple):
    """What float32 gives for one of the two.

    Attributes:
        value: the logarithm.
        units: its error in u, with logarithms to u / 2.
        taken: the size of the logarithm that is taken for it.
    """

    value: Float64Array
    units: Float64Array
    taken: Float64Array

    def error(self, functions: FunctionErrors) -> Float64Array:
        """With another logarithm."""
        return UNIT * (self.units + functions.further("log") * self.taken)


@dataclass(frozen=True)
class BceTruth:
    """``torch.nn.functional.binary_cross_entropy(input.double(), target.double())``."""

    stated: ClassVar[TermError] = term_errors.BCE

    def value(self, tensors: Tensors) -> Derived:
        """-(t A + (1 - t) B)."""
        x, t = tensors[INPUT], tensors[TARGET]
        of_input, of_rest = _log(x), _log_of_complement(x)
        first, second = -t * of_input.value, (t - 1.0) * of_rest.value
        loss = first + second
        own = np.abs(t) * of_input.units + np.abs(1.0 - t) * of_rest.units
        own += 0.5 * (np.abs(first) + np.abs(second) + np.abs(loss)) + 0.25 * (t < 0.5) * np.abs(of_rest.value)
        taken = np.abs(t) * of_input.taken + np.abs(1.0 - t) * of_rest.taken
        return Derived.of_units(loss, (first, second), own, {"log": taken})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """(x - t) / max(x (1 - x), 1e-12) and B - A."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = (x - t) / np.maximum(x * (1.0 - x), LEAST_PRODUCT)
        of_slope = (2.5 + 2.0 * functions.rsqrt) * UNIT * np.abs(slope)
        of_input, of_rest = _log(x), _log_of_complement(x)
        by_target = of_rest.value - of_input.value
        error = of_input.error(functions) + of_rest.error(functions) + 0.5 * UNIT * np.abs(by_target)
        return {INPUT: Exact(slope, of_slope), TARGET: Exact(by_target, error)}


def _log(x: Float64Array) -> _Logarithm:
    """A."""
    with np.errstate(all="ignore"):
        value = np.maximum(np.log(x), LEAST_LOG)
        floor = np.where(x > 0.0, np.exp(LEAST_LOG) / x, 0.0)
    raised = np.abs(value + np.log(RAISED))
    units = 0.5 * raised + 0.5 + _RAISED_LOG_UNITS + 0.5 * np.abs(value)
    is_small = x < SMALL
    return _Logarithm(
        value,
        np.where(is_small, units, 0.5 * np.abs(value)) + floor / UNIT,
        np.where(is_small, raised, np.abs(value)),
    )


def _log_of_complement(x: Float64Array) -> _Logarithm:
    """B."""
    with np.errstate(all="ignore"):
        value = np.maximum(np.log1p(-x), LEAST_LOG)
        rounded = np.where(x < 0.5, np.minimum(np.abs(x), 0.25 * UNIT), 0.0)
        remaining = np.where(x < 0.5, rounded / UNIT * np.abs(x) / (1.0 - x) + 0.5 * np.abs(value), 0.0)
    is_one, lowered = x >= 1.0, abs(LEAST_LOG + LOWERED)
    taken = np.where(is_one, lowered, np.abs(value) + rounded)
    units = 0.5 * taken + np.where(is_one, 0.5 + 0.5 * np.abs(value), remaining)
    return _Logarithm(value, units, taken)
