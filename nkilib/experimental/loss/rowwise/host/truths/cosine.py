"""Cosine embedding.

With n additions in a row, the product of the rows is off by (n + 1) u / 2 of the sum of magnitudes, and a squared norm,
with its constant, by (n + 2) u / 2 of itself; the inverse root by half of that and by its root and its reciprocal, to
u / 2 each. The cosine: that of the product by the norms, and of itself those of both inverse norms and u of products.
The loss: that of the cosine, and u / 2 of itself and of the margin.

    |error| <= u (n + 9 / 2 + |margin| / 2 + loss / 2)        u more of roots or reciprocals: 2 u |cos|

A gradient k (y / (|x| |y|) - cos x / |x|^2): of the first term those of the inverse norms and 4 u; of the second those
and the error of the cosine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from nkilib.base.guarantee import TermError
from nkilib.core.host.exact import Derived, Exact, Float64Array
from nkilib.core.host.function_errors import CORRECT, SIMULATED, FunctionErrors
from nkilib.core.host.rounding import UNIT
from nkilib.experimental.loss.rowwise.host import term_errors
from nkilib.experimental.loss.rowwise.host.truth import Tensors, additions, summed

# As the kernel has it, and ATen's cosine_embedding_loss.
SQUARED_EPS = 1e-12


@dataclass(frozen=True)
class CosineTruth:
    """``F.cosine_embedding_loss(..., reduction="none")`` in float64.

    Attributes:
        margin: of it.
    """

    margin: float = 0.0
    stated: ClassVar[TermError] = term_errors.COSINE

    def value(self, tensors: Tensors) -> Derived:
        """1 - cos, or max(0, cos - margin), by the target."""
        of_rows, target = _cosine(tensors), tensors["target"]
        cosine, margin = of_rows.exact, abs(self.margin)
        beyond = np.maximum(0.0, cosine.value - self.margin)
        value = np.where(target == 1.0, 1.0 - cosine.value, np.where(target == -1.0, beyond, 0.0))
        counts = np.abs(target) == 1.0
        own = np.where(counts, cosine.error + 0.5 * UNIT * (margin + np.abs(value)), 0.0)
        of_function = np.where(counts, 2.0 * UNIT * np.abs(cosine.value), 0.0)
        largest = np.maximum(np.abs(value), max(1.0, margin))
        return Derived(value, largest, own, {"sqrt": of_function, "reciprocal": of_function})

    def derivative(self, tensors: Tensors, functions: FunctionErrors = SIMULATED) -> dict[str, Exact]:
        """Undefined where cos - margin may have another sign."""
        of_rows = _cosine(tensors, functions)
        cosine, inverses, relative = of_rows.exact, of_rows.inverses, of_rows.relative
        target, beyond = tensors["target"], cosine.value - self.margin
        is_unsure = (target == -1.0) & (np.abs(beyond) <= cosine.error + UNIT * (1.0 + abs(self.margin)))
        by_cosine = np.where(target == 1.0, -1.0, 0.0) + np.where((target == -1.0) & (beyond >= 0.0), 1.0, 0.0)
        found = {}
        for name, other, inverse in (("input1", "input2", inverses[0]), ("input2", "input1", inverses[1])):
            of_other = (by_cosine * inverses[0] * inverses[1])[:, None] * tensors[other]
            of_itself = (by_cosine * inverse**2)[:, None] * tensors[name]
            error = (relative + 6.0 * UNIT) * np.abs(of_other) + np.abs(of_itself) * (
                cosine.error + (relative + 6.0 * UNIT) * np.abs(cosine.value)
            )[:, None]
            value = of_other - of_itself * cosine.value[:, None]
            found[name] = Exact(value, np.where(is_unsure[:, None], np.inf, error))
        return found


@dataclass(frozen=True)
class _Cosine:
    """Of rows.

    Attributes:
        exact: the cosines.
        inverses: of the norms of either row.
        relative: what the product of two of these is off by.
    """

    exact: Exact
    inverses: list[Float64Array]
    relative: float


def _cosine(tensors: Tensors, functions: FunctionErrors = CORRECT) -> _Cosine:
    first, second = tensors["input1"], tensors["input2"]
    terms = first * second
    product = summed(terms, 0.5 * UNIT * np.abs(terms))
    inverses = [1.0 / np.sqrt((each * each).sum(axis=1) + SQUARED_EPS) for each in (first, second)]
    of_inverses = 2.0 * (functions.sqrt + functions.reciprocal)
    relative = (0.5 * (additions(first.shape[1]) + 2.0) + of_inverses) * UNIT
    value = product.value * inverses[0] * inverses[1]
    error = product.error * inverses[0] * inverses[1] + (relative + UNIT) * np.abs(value)
    return _Cosine(Exact(value, error), inverses, relative)
