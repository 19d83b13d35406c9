"""Error of an order, with d = x1 - x2: d rounds once and so does p = t d, u / 2 of p each, and z = margin - p too.

|error| <= u |p| + u |z| / 2: at most 1.5 u of the largest of margin, p and z    of a derivative: 0, or u |d| / 2

Where |z| is not larger than its error, a derivative may be that of either side.
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
from nkilib.experimental.loss.elementwise.kind import TARGET
from nkilib.experimental.loss.elementwise.kinds.margin_ranking import INPUT1, INPUT2


@dataclass(frozen=True)
class MarginRankingTruth:
    """``torch.nn.functional.margin_ranking_loss(input1.double(), input2.double(), target.double(), margin)``.

    Attributes:
        margin: rounded to float32.
    """

    margin: float
    stated: ClassVar[TermError] = term_errors.MARGIN_RANKING

    def value(self, tensors: Tensors) -> Derived:
        """max(margin - t d, 0)."""
        product, reach = _product(tensors), self._reach(tensors)
        own = np.abs(product) + 0.5 * np.abs(reach)
        return Derived.of_units(np.maximum(reach, 0.0), (float(np.float32(self.margin)), product, reach), own)

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """-t, t and -d where the loss counts."""
        reach = self._reach(tensors)
        error = self.value(tensors).own
        target, difference = tensors[TARGET], tensors[INPUT1] - tensors[INPUT2]
        counts = (reach >= 0.0).astype(np.float64)
        is_near = np.abs(reach) <= error
        of_target = np.where(is_near, np.abs(target), 0.0)
        of_difference = np.where(is_near, np.abs(difference), 0.5 * UNIT * np.abs(difference))
        return {
            INPUT1: Exact(-counts * target, of_target),
            INPUT2: Exact(counts * target, of_target),
            TARGET: Exact(-counts * difference, of_difference),
        }

    def _reach(self, tensors: Tensors) -> Float64Array:
        """margin - t d."""
        return float(np.float32(self.margin)) - _product(tensors)


def _product(tensors: Tensors) -> Float64Array:
    """t d."""
    return tensors[TARGET] * (tensors[INPUT1] - tensors[INPUT2])
