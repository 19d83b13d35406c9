"""Multi-label soft margin.

softplus(-abs(x)) is allowed 4 u, x ([x > 0] - t) rounds twice, u of itself. With a weight each is rounded twice more.
A sum of n additions in a row adds n u / 2 of the sum of both. Derivatives: the sigmoid 4 u of itself, the difference
and products 3 u of the result; by the weight both terms, and 2 u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.elementwise.host.reference import Float64Array
from nkilib.experimental.loss.elementwise.host.truth import Exact
from nkilib.experimental.loss.rowwise.host.truth import FUNCTION_UNITS, Tensors, summed


@dataclass(frozen=True)
class MultilabelSoftMarginTruth:
    """``F.multilabel_soft_margin_loss(..., reduction="none")`` in float64, with the tensor ``"weight"`` where it is."""

    def value(self, tensors: Tensors) -> Exact:
        """The mean over classes."""
        x, t, weight = tensors["input"], tensors["target"], tensors.get("weight", np.ones(1))
        terms, classes = _terms(x, t), x.shape[1]
        sums = summed(np.abs(weight * terms.value), np.abs(weight) * terms.error)
        return Exact(
            (weight * terms.value).sum(axis=1) / classes, sums.error / classes + 2.0 * UNIT * sums.value / classes
        )

    def derivative(self, tensors: Tensors) -> dict[str, Exact]:
        """sigmoid(x) - t, and -x; by the weight the terms."""
        x, t, weight = tensors["input"], tensors["target"], tensors.get("weight", np.ones(1))
        scale = weight / x.shape[1]
        sigmoid = np.where(x >= 0.0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))
        error = FUNCTION_UNITS * UNIT * sigmoid + 3.0 * UNIT * np.abs(sigmoid - t)
        found = {
            "input": Exact(scale * (sigmoid - t), np.abs(scale) * error),
            "target": Exact(-scale * x, np.abs(scale) * 3.0 * UNIT * np.abs(x)),
        }
        if "weight" in tensors:
            terms, classes = _terms(x, t), x.shape[1]
            found["weight"] = Exact(terms.value / classes, (terms.error + 2.0 * UNIT * terms.value) / classes)
        return found


def _terms(x: Float64Array, t: Float64Array) -> Exact:
    """The losses of elements without weight, sums of two numbers of at least 0."""
    soft = np.log1p(np.exp(-np.abs(x)))
    hard = np.where(x == 0.0, 0.0, x * ((x > 0.0) - t))
    return Exact(soft + hard, FUNCTION_UNITS * UNIT * soft + UNIT * np.abs(hard) + UNIT * (soft + np.abs(hard)))
