"""Binary cross-entropy of logits, with s = softplus(-|x|), to u / 2.

Without a weight: r = [x > 0] - t rounds once where x > 0, so do its product with x, and the sum:

    |error| <= u (s / 2 + |x r| / 2 + [x > 0] |x r| / 2 + loss / 2)        u more of softplus: u s

With a weight p: p t, 1 - t and their sum w round once, the three products likewise, and two sums, of which one adds 0:

    |error| <= u (3 w s / 2 + (|p t| + |1 - t|) s / 2 + |p t min(x, 0)| + |(1 - t) max(x, 0)| + loss / 2)

and u w s for u more of softplus. Of the derivatives: the errors of sigmoid or softplus, and the roundings of products
and sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array, Tensors
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host import term_errors
from nkilib.experimental.loss.elementwise.kind import INPUT, POSITIVE_WEIGHT, TARGET


@dataclass(frozen=True)
class BceWithLogitsTruth:
    """``torch.nn.functional.binary_cross_entropy_with_logits(input.double(), target.double())``."""

    stated: ClassVar[TermError] = term_errors.BCE_WITH_LOGITS

    def value(self, tensors: Tensors) -> Derived:
        """softplus(-|x|) + x ([x > 0] - t)."""
        x, t = tensors[INPUT], tensors[TARGET]
        soft, rest = _softplus(-np.abs(x)), x * ((x > 0.0) - t)
        loss, size = soft + rest, np.abs(rest)
        own = 0.5 * (soft + size + (x > 0.0) * size + np.abs(loss))
        return Derived.of_units(loss, (soft, rest), own, {"softplus": soft})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """sigmoid(x) - t and -x."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = _sigmoid(x) - t
        error = UNIT * (functions.sigmoid * _sigmoid(x) + 0.5 * np.abs(slope))
        return {INPUT: Exact(slope, error), TARGET: Exact(-x, np.zeros_like(x))}


@dataclass(frozen=True)
class BceWithPositiveWeightTruth:
    """The same with ``pos_weight``."""

    stated: ClassVar[TermError] = term_errors.BCE_WITH_POSITIVE_WEIGHT

    def value(self, tensors: Tensors) -> Derived:
        """w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        soft, positive, negative = _softplus(-np.abs(x)), p * t, 1.0 - t
        weighted = (positive + negative) * soft
        below, above = positive * np.minimum(x, 0.0), negative * np.maximum(x, 0.0)
        loss = weighted - below + above
        shares = 0.5 * (np.abs(positive) + np.abs(negative)) * soft
        own = 1.5 * np.abs(weighted) + shares + np.abs(below) + np.abs(above) + 0.5 * np.abs(loss)
        return Derived.of_units(loss, (weighted, below, above), own, {"softplus": weighted})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """(1 - t) - w sigmoid(-x) and (p - 1) softplus(-x) - x."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        positive, negative, sigmoid = p * t, 1.0 - t, _sigmoid(-x)
        weighted, soft = (positive + negative) * sigmoid, (p - 1.0) * _softplus(-x)
        slope, by_target = negative - weighted, soft - x
        shares = 0.5 * (np.abs(positive) + np.abs(negative) + np.abs(positive + negative)) * sigmoid
        of_weighted = (functions.sigmoid + 0.5) * np.abs(weighted)
        error = UNIT * (of_weighted + shares + 0.5 * np.abs(negative) + 0.5 * np.abs(slope))
        of_target = UNIT * ((functions.softplus + 1.0) * np.abs(soft) + 0.5 * np.abs(by_target))
        return {INPUT: Exact(slope, error), TARGET: Exact(by_target, of_target)}


def _softplus(x: Float64Array) -> Float64Array:
    found: Float64Array = np.logaddexp(0.0, x)
    return found


def _sigmoid(x: Float64Array) -> Float64Array:
    found: Float64Array = np.exp(-np.logaddexp(0.0, -x))
    return found
