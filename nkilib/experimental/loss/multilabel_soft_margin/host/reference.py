# SPDX-License-Identifier: Apache-2.0
# Copyright The nkilib authors

"""The reference of the multi-label soft margin loss, and the derivation of its error.

Let u = 2^-23. For a logit x and a target t, s = softplus(-|x|) has an error of u / 2, and h = x
([x > 0] - t) rounds twice.

Each is summed over the C classes with n consecutive additions, n u / 2 of the sum of magnitudes. The sum of
both sums, 1 / C and the product with it round once each. Let T be the sum of s + |h|, divided by C, which
is the loss itself for targets in [0, 1]:

    |error| <= u (n / 2 + 5 / 2) T        u more for softplus: u of the mean of s

With a weight, s + h is rounded, and so is the product with the weight: u T more. The error of a derivative
consists of those of the sigmoid, the difference and three products; for the weight, of the error of s + h,
and u for 1 / C and the product with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array
from nkilib.core.host.function_errors import SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.skeletons.rowwise.host.reference import Tensors, summed

ERROR: Final = TermError(2.5, {"softplus": 1.0}, additions=0.5)
WEIGHTED_ERROR: Final = TermError(3.5, {"softplus": 1.0}, form="with weight", additions=0.5)


@dataclass(frozen=True)
class MultilabelSoftMarginReference:
    """``F.multilabel_soft_margin_loss(..., reduction="none")`` in float64, with the optional tensor ``"weight"``.

    Attributes:
        has_weight: whether there is a weight.
    """

    has_weight: bool = False

    @property
    def stated(self) -> TermError:
        """The error that the guarantee of the loss states, with or without a weight."""
        plain, weighted = ERROR, WEIGHTED_ERROR
        return weighted if self.has_weight else plain

    def value(self, tensors: Tensors) -> Derived:
        """Return the loss of each row: the mean over its classes."""
        terms, classes = _Terms.of(tensors), tensors["input"].shape[1]
        weight = tensors["weight"] if self.has_weight else np.ones(1)
        size = np.abs(weight)
        units = size * (terms.units + (terms.size if self.has_weight else 0.0))
        sums = summed(size * terms.size, UNIT * units)
        own = (sums.error + 1.5 * UNIT * sums.value) / classes
        functions = {"softplus": UNIT * (size * terms.soft).sum(axis=1) / classes}
        value = (weight * (terms.soft + terms.hard)).sum(axis=1) / classes
        return Derived(value, sums.value / classes, own, functions)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Return the derivatives: those of input and target from sigmoid(x) - t and -x, that of the weight from both
        terms.
        """
        x, t, classes = tensors["input"], tensors["target"], tensors["input"].shape[1]
        scale = (tensors["weight"] if self.has_weight else np.ones(1)) / classes
        sigmoid = np.where(x >= 0.0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))
        error = functions.sigmoid * UNIT * sigmoid + 2.0 * UNIT * np.abs(sigmoid - t)
        derivatives = {
            "input": Exact(scale * (sigmoid - t), np.abs(scale) * error),
            "target": Exact(-scale * x, np.abs(scale) * 1.5 * UNIT * np.abs(x)),
        }
        if self.has_weight:
            terms = _Terms.of(tensors)
            units = terms.units + 1.5 * terms.size + functions.further("softplus") * terms.soft
            derivatives["weight"] = Exact((terms.soft + terms.hard) / classes, UNIT * units / classes)
        return derivatives


class _Terms(NamedTuple):
    """The two terms of the loss of each element, without a weight.

    Attributes:
        soft, hard: s = softplus(-|x|) and h = x ([x > 0] - t).
    """

    soft: Float64Array
    hard: Float64Array

    @classmethod
    def of(cls, tensors: Tensors) -> _Terms:
        """Compute the terms from input and target."""
        x, t = tensors["input"], tensors["target"]
        return cls(np.log1p(np.exp(-np.abs(x))), np.where(x == 0.0, 0.0, x * ((x > 0.0) - t)))

    @property
    def size(self) -> Float64Array:
        """The magnitude s + |h|."""
        return self.soft + np.abs(self.hard)

    @property
    def units(self) -> Float64Array:
        """The error of s and h together, in multiples of u."""
        return 0.5 * self.soft + np.abs(self.hard)
