"""Binary cross-entropy of logits, with s = softplus(-|x|), which is 4 u off.

Without a weight: r = [x > 0] - t rounds once, so do its product with x, and the sum:

    |error| <= u (4 s + |x r| + loss / 2)

With a weight p: p t, 1 - t and their sum w round once, the three products likewise, and two sums:

    |error| <= u (5 w s + (|p t| + |1 - t|) s + 2 |p t min(x, 0)| + 2 |(1 - t) max(x, 0)| + loss)

Of the derivatives: 4 u of sigmoid or softplus and the roundings of products and sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.reference import Float64Array
from nkilib.experimental.loss.elementwise.host.truth import Exact, Tensors
from nkilib.experimental.loss.elementwise.kind import INPUT, POSITIVE_WEIGHT, TARGET


@dataclass(frozen=True)
class BceWithLogitsTruth:
    """``torch.nn.functional.binary_cross_entropy_with_logits(input.double(), target.double())``."""

    def value(self, tensors: Tensors) -> Exact:
        """softplus(-|x|) + x ([x > 0] - t)."""
        x, t = tensors[INPUT], tensors[TARGET]
        soft, rest = _softplus(-np.abs(x)), x * ((x > 0.0) - t)
        loss = soft + rest
        return Exact(loss, UNIT * (4.0 * soft + np.abs(rest) + 0.5 * np.abs(loss)))

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """sigmoid(x) - t and -x."""
        x, t = tensors[INPUT], tensors[TARGET]
        slope = _sigmoid(x) - t
        error = UNIT * (4.0 * _sigmoid(x) + 0.5 * np.abs(slope))
        return {INPUT: Exact(slope, error), TARGET: Exact(-x, np.zeros_like(x))}


@dataclass(frozen=True)
class BceWithPositiveWeightTruth:
    """The same with ``pos_weight``."""

    def value(self, tensors: Tensors) -> Exact:
        """w softplus(-|x|) - p t min(x, 0) + (1 - t) max(x, 0)."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        soft, positive, negative = _softplus(-np.abs(x)), p * t, 1.0 - t
        weighted = (positive + negative) * soft
        below, above = positive * np.minimum(x, 0.0), negative * np.maximum(x, 0.0)
        loss = weighted - below + above
        terms = 5.0 * np.abs(weighted) + (np.abs(positive) + np.abs(negative)) * soft
        terms += 2.0 * np.abs(below) + 2.0 * np.abs(above) + np.abs(loss) + np.abs(weighted - below)
        return Exact(loss, UNIT * terms)

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """(1 - t) - w sigmoid(-x) and (p - 1) softplus(-x) - x."""
        x, t, p = tensors[INPUT], tensors[TARGET], tensors[POSITIVE_WEIGHT]
        positive, negative, sigmoid = p * t, 1.0 - t, _sigmoid(-x)
        weighted, soft = (positive + negative) * sigmoid, (p - 1.0) * _softplus(-x)
        slope, by_target = negative - weighted, soft - x
        shares = 0.5 * (np.abs(positive) + np.abs(negative) + np.abs(positive + negative)) * sigmoid
        error = UNIT * (5.0 * np.abs(weighted) + shares + 0.5 * np.abs(negative) + 0.5 * np.abs(slope))
        of_target = UNIT * (5.5 * np.abs(soft) + 0.5 * np.abs(by_target))
        return {INPUT: Exact(slope, error), TARGET: Exact(by_target, of_target)}


def _softplus(x: Float64Array) -> Float64Array:
    found: Float64Array = np.logaddexp(0.0, x)
    return found


def _sigmoid(x: Float64Array) -> Float64Array:
    found: Float64Array = np.exp(-np.logaddexp(0.0, -x))
    return found
